//! The control channel of the agents: a WebSocket for each device.
//!
//! Every connected device has one task (`connection.rs`). It compares the database with what it has sent to the
//! agent, on every hint and on every heartbeat of the agent. A lost hint only delays this until the next
//! heartbeat.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod arrivals;
mod bucket;
mod connection;
mod pace;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use culvert_service::Service;
use culvert_service::connected_agents::ConnectedAgents;
use culvert_service::metrics::{ConnectionRefusals, HeartbeatMetrics};
use culvert_wire::client_network::client_address;
use culvert_wire::clock::Clock;
use culvert_wire::control::{CONNECT_PATH, FRAME_LIMIT, PROTOCOL};
use culvert_wire::unproven;
use ipnet::IpNet;
use salvo::http::{HeaderValue, StatusError};
use salvo::websocket::WebSocketUpgrade;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, Router, async_trait};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use arrivals::Arrivals;

/// What the control channel needs of the host.
pub struct Control {
    pub service: Arc<Service>,
    pub agents: Arc<ConnectedAgents>,
    pub heartbeats: HeartbeatMetrics,
    pub arrivals: Arrivals,
    /// Called with a connection's peer after the handshake: it no longer counts as an unknown client's.
    pub on_proven: Box<dyn Fn(SocketAddr) + Send + Sync>,
    pub refused: ConnectionRefusals,
    /// Networks of proxies whose `X-Forwarded-For` header is trusted.
    pub trusted_proxies: Vec<IpNet>,
    pub clock: Clock,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
}

/// The route of the agents' WebSocket.
pub fn router(control: &Arc<Control>) -> Router {
    Router::with_path(CONNECT_PATH.trim_start_matches('/')).get(Connect(control.clone()))
}

/// Bytes that a connection reads at once, which each of them has allocated all the time; the default is 128 KiB. Frames are
/// mostly shorter, and a longer one is read in pieces.
const READ_BUFFER: usize = 1024;

struct Connect(Arc<Control>);

#[async_trait]
impl Handler for Connect {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let control = self.0.clone();
        let Some(peer) = req.remote_addr().ip() else { return };
        let forwarded = req.headers().get_all("x-forwarded-for").iter().map(HeaderValue::as_bytes);
        let client = client_address(peer, forwarded, &control.trusted_proxies);
        let unproven = control.arrivals.unproven(client);
        let peer = req.remote_addr().clone().into_std();
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .max_message_size(Some(FRAME_LIMIT))
            .max_frame_size(Some(FRAME_LIMIT));
        let upgrade = WebSocketUpgrade::with_config(config).protocols(&[PROTOCOL]);
        let tasks = control.tasks.clone();
        let upgraded: Result<(), StatusError> = upgrade
            .upgrade(req, res, move |socket| async move {
                let life = connection::serve_connection(control, socket, Stranger { peer, client, unproven });
                // The task is tracked, so that shutdown waits until the goodbye is sent.
                let _ = tasks.spawn(life).await;
            })
            .await;
        if let Err(error) = upgraded {
            res.status_code(error.code);
        }
    }
}

/// A connection that has not proved its device yet.
struct Stranger {
    peer: Option<SocketAddr>,
    /// The client's address, behind trusted proxies the one that they name.
    client: IpAddr,
    unproven: unproven::Entry,
}
