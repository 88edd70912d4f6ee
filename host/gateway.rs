//! The control channel of the agents: which devices are connected, and how commands reach them.
//!
//! Every connected device has one task (`connection`). It compares the database with what it has sent to the
//! agent, on every hint and on every heartbeat of the agent. A lost hint only delays this until the next
//! heartbeat.

mod connection;
pub mod grant;
mod handshake;
mod pace;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert_wire::client_network::client_address;
use culvert_wire::clock::Clock;
use culvert_wire::control::{CONNECT_PATH, FRAME_LIMIT, PROTOCOL};
use ipnet::IpNet;
use salvo::http::StatusError;
use salvo::websocket::WebSocketUpgrade;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, Router, async_trait};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::http::listener::Connections;
use crate::keyed_mutex::{KeyedMutex, KeyedMutexGuard};
use crate::metrics::ConnectionRefusals;
use crate::service::Service;
use culvert_store::presence::Connection;
use culvert_wire::unproven::{self, Unproven};

use pace::Paces;

/// When agents should reconnect to a host that has no place for them.
const BUSY_FOR: Duration = Duration::from_secs(10);

/// What the control channel needs of the host.
pub struct Control {
    pub service: Arc<Service>,
    pub agents: Arc<Gateway>,
    /// The connections to the listener. A connection no longer counts there after an agent's handshake.
    pub connections: Arc<Connections>,
    pub refused: ConnectionRefusals,
    /// Networks of proxies whose `X-Forwarded-For` header is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// The id of this host process, new at every start.
    pub host_id: Uuid,
    pub clock: Clock,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
}

/// The route of the agents' WebSocket.
pub fn router(control: &Arc<Control>) -> Router {
    Router::with_path(CONNECT_PATH.trim_start_matches('/')).get(Connect(control.clone()))
}

/// Limits on connections that have not proved their device yet: of all clients, and of one client. Each has
/// ten seconds for the handshake. Above a limit, the oldest one is closed.
const UNPROVEN: usize = 1024;
const UNPROVEN_PER_ADDRESS: usize = 64;

/// The devices that are connected to this host.
pub struct Gateway {
    connected: Mutex<HashMap<Uuid, ConnectionHandle>>,
    /// When each device was last heard of. The ticker records these times together.
    seen: Mutex<HashMap<Uuid, (Connection, DateTime<Utc>)>>,
    /// Places for agents, and for connections that have not proved their device yet.
    agents: Arc<Semaphore>,
    unproven: Arc<Unproven>,
    /// Serializes the arrivals of one device.
    arriving: KeyedMutex<Uuid>,
    paces: Arc<Paces>,
}

/// A connection, as the rest of the host sees it.
#[derive(Clone)]
struct ConnectionHandle {
    connection: Connection,
    woken: Arc<Notify>,
    replaced: CancellationToken,
}

impl Gateway {
    pub fn new(agents: usize, refused: ConnectionRefusals) -> Self {
        Self {
            connected: Mutex::default(),
            seen: Mutex::default(),
            agents: Arc::new(Semaphore::new(agents)),
            unproven: Unproven::new(UNPROVEN, UNPROVEN_PER_ADDRESS, move || refused.count("unproven")),
            arriving: KeyedMutex::new(),
            paces: Arc::default(),
        }
    }

    /// Waits for a device's turn to connect: one arrival at a time, at a limited rate. `None` if too many
    /// arrivals of the device wait already.
    async fn turn_to_connect(&self, device_id: Uuid, clock: &Clock) -> Option<KeyedMutexGuard> {
        let _waiting = self.paces.wait(device_id, clock.moment())?;
        let turn = self.arriving.lock(device_id).await;
        let now = clock.moment();
        let wait = self.paces.of(device_id, now, |pace| {
            let wait = pace.arrivals.wait(now);
            pace.arrivals.take(1, now);
            wait
        });
        if let Some(wait) = wait {
            clock.sleep(wait).await;
        }
        Some(turn)
    }

    /// Registers a connection. An older connection of the same device is replaced and ends.
    fn enter(&self, connection: Connection) -> ConnectionHandle {
        let entry = ConnectionHandle { connection, woken: Arc::new(Notify::new()), replaced: CancellationToken::new() };
        let former = lock(&self.connected).insert(connection.device_id, entry.clone());
        if let Some(former) = former {
            former.replaced.cancel();
        }
        entry
    }

    fn leave(&self, connection: Connection) {
        let mut connected = lock(&self.connected);
        if connected.get(&connection.device_id).is_some_and(|entry| entry.connection == connection) {
            connected.remove(&connection.device_id);
        }
    }

    /// The number of connected agents.
    pub fn connected(&self) -> usize {
        lock(&self.connected).len()
    }

    /// Has a device's connection compare the database with what it has sent to the agent.
    pub fn wake(&self, device_id: Uuid) {
        if let Some(entry) = lock(&self.connected).get(&device_id) {
            entry.woken.notify_one();
        }
    }

    fn record_seen(&self, connection: Connection, at: DateTime<Utc>) {
        lock(&self.seen).insert(connection.device_id, (connection, at));
    }

    /// Takes the times that were recorded since the last call.
    pub fn take_seen(&self) -> Vec<(Connection, DateTime<Utc>)> {
        lock(&self.seen).drain().map(|(_, seen)| seen).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Connect(Arc<Control>);

#[async_trait]
impl Handler for Connect {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let control = self.0.clone();
        let Some(peer) = req.remote_addr().ip() else { return };
        let forwarded = req.headers().get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok());
        let client = client_address(peer, forwarded, &control.trusted_proxies);
        let unproven = control.agents.unproven.enter(client);
        let peer = req.remote_addr().clone().into_std();
        let upgrade =
            WebSocketUpgrade::new().protocols(&[PROTOCOL]).max_message_size(FRAME_LIMIT).max_frame_size(FRAME_LIMIT);
        let tasks = control.tasks.clone();
        let upgraded: Result<(), StatusError> = upgrade
            .upgrade(req, res, move |socket| async move {
                let life = connection::serve_connection(control, socket, Stranger { peer, unproven });
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
    unproven: unproven::Entry,
}
