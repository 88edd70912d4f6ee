//! The listener for visitors of http tunnels: many tunnels share it, and each request says by its name whose it is.
//!
//! hyper is named only here and in the files of this folder.

mod authority;
mod basic_auth;
mod body;
mod cut;
mod exchange;
mod headers;
mod pages;
pub(crate) mod routes;
mod timer;
mod upstream;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use culvert_wire::client_network::prefix;
use culvert_wire::socket;
use culvert_wire::tally::Tally;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use super::agent_listener::ACCEPT_RETRY_DELAY;
use super::bounds::Bound;
use super::{Shared, lock};
use basic_auth::BasicAuthCheck;
use cut::CutSlot;
use timer::ClockTimer;
use upstream::Upstreams;

/// How long a connection may take to send a request's head, also the first and the next one.
const HEAD_WITHIN: Duration = Duration::from_secs(15);
/// Most bytes and fields of a request's head.
const HEAD_BYTES: usize = 32 * 1024;
const HEAD_FIELDS: usize = 100;
/// Bytes of a body that are read ahead.
const READ_BUFFER: usize = 128 * 1024;

pub(crate) struct Front {
    shared: Arc<Shared>,
    upstreams: Arc<Upstreams>,
    basic_auth: BasicAuthCheck,
    by_address: Mutex<Tally<IpAddr>>,
    /// The port as visitors see it, where it is not the listener's own.
    public_port: Option<u16>,
}

/// A visitor's connection. It is counted for its address as long as anything of it is there, a WebSocket too.
struct VisitorConnection {
    peer: Peer,
    slot: Arc<CutSlot>,
    _entry: Entry,
}

/// One end of a visitor's connection, and how it is spoken on.
#[derive(Clone, Copy)]
struct Peer {
    address: SocketAddr,
    /// The node's address that the visitor came to.
    local: SocketAddr,
    scheme: &'static str,
    /// The port as the visitor sees it.
    port: u16,
}

impl Front {
    pub(crate) fn new(shared: Arc<Shared>, public_port: Option<u16>) -> Arc<Self> {
        Arc::new(Self {
            upstreams: Arc::new(Upstreams::new(shared.clock.clone())),
            basic_auth: BasicAuthCheck::new(shared.clock.clone()),
            by_address: Mutex::default(),
            public_port,
            shared,
        })
    }

    /// Does what is due every second.
    pub(crate) fn tick(&self) {
        self.upstreams.sweep();
    }

    /// Accepts visitors until the node stops.
    pub(crate) fn listen(self: &Arc<Self>, listener: TcpListener) {
        let front = self.clone();
        let stop = front.shared.stop.clone();
        self.shared.tasks.spawn(async move { stop.run_until_cancelled(front.accept(listener)).await });
    }

    async fn accept(self: Arc<Self>, listener: TcpListener) {
        let shared = &self.shared;
        loop {
            // Meanwhile, new visitors wait in the listener's backlog.
            while shared.bounds.is_short_of_descriptors(&listener) {
                shared.clock.sleep(ACCEPT_RETRY_DELAY).await;
            }
            match listener.accept().await {
                Ok((stream, _)) if shared.bounds.is_in_reserve(&stream) => self.turn_away(&stream, Bound::Node),
                Ok((stream, address)) => match self.enter(address.ip()) {
                    Some(entry) => drop(tokio::spawn(self.clone().serve(stream, address, entry))),
                    None => self.turn_away(&stream, Bound::Address),
                },
                Err(error) => {
                    shared.log_unaccepted(&error);
                    shared.clock.sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    fn turn_away(&self, stream: &TcpStream, bound: Bound) {
        socket::reset(stream);
        self.shared.bounds.refused(bound);
    }

    /// Counts a connection of an address; `None` if it has too many.
    fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Entry> {
        let network = prefix(address);
        let mut by_address = lock(&self.by_address);
        if by_address.of(&network) >= self.shared.bounds.http_connections_per_address {
            return None;
        }
        by_address.add(network, 1);
        Some(Entry { front: self.clone(), network })
    }

    async fn serve(self: Arc<Self>, stream: TcpStream, address: SocketAddr, entry: Entry) {
        let local = match socket::prepare(&stream).and_then(|()| stream.local_addr()) {
            Ok(local) => local,
            Err(error) => return tracing::debug!(%error, %address, "a visitor has gone"),
        };
        let port = self.public_port.unwrap_or(local.port());
        let peer = Peer { address, local, scheme: "http", port };
        let slot = Arc::new(CutSlot::default());
        let (front, visitor) = (self.clone(), Arc::new(VisitorConnection { peer, slot: slot.clone(), _entry: entry }));
        let service = service_fn(move |request| {
            let (front, visitor) = (front.clone(), visitor.clone());
            async move { Ok::<_, Infallible>(exchange::serve(&front, &visitor, request).await) }
        });
        let mut connection = http1::Builder::new()
            .timer(ClockTimer(self.shared.clock.clone()))
            .header_read_timeout(HEAD_WITHIN)
            .max_headers(HEAD_FIELDS)
            .max_header_size(HEAD_BYTES)
            .max_buf_size(READ_BUFFER)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let ended = poll_fn(|context| match Pin::new(&mut connection).poll(context) {
            Poll::Ready(ended) => Poll::Ready(ended.map_err(io::Error::other)),
            Poll::Pending => slot.poll(context).map(Err),
        });
        let stop = self.shared.stop.clone();
        let ended = stop.run_until_cancelled(ended).await;
        tracing::debug!(?ended, %address, "a visitor's connection has ended");
        if slot.is_under_way()
            && let Some(parts) = connection.into_parts()
        {
            // An answer that was cut short must not look complete.
            socket::reset(parts.io.inner());
        }
    }
}

/// A connection that is counted for its address. Dropping it ends the count.
struct Entry {
    front: Arc<Front>,
    network: IpAddr,
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.front.by_address).end_one(&self.network);
    }
}
