//! The listeners for visitors of http tunnels: many tunnels share them, and each request says by its name whose it is.
//!
//! hyper is named only here and in the files of this folder.

mod activity;
mod authority;
mod basic_auth;
mod body;
pub(crate) mod certificates;
mod connection;
mod cut;
mod destination;
mod exchange;
mod exchanges;
mod forwarded;
mod hasher;
mod headers;
mod http_version;
mod lent;
pub(crate) mod limits;
mod pages;
mod passthrough;
mod peer;
mod phase;
pub(crate) mod routes;
pub(crate) mod scheme;
mod timer;
mod tls;
mod transport;
mod upstream;
mod upstream_pool;
mod upstream_version;
mod upstreams;
mod visitor;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use culvert_wire::client_network::is_trusted;
use culvert_wire::node::Counted;
use culvert_wire::socket;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::future::FutureExt;

use super::Shared;
use super::addresses::{Addresses, Entry};
use super::agent_listener::ACCEPT_RETRY_DELAY;
use super::bounds::Bound;
use super::proxy_header::{self, Begin, Proxied};
use basic_auth::BasicAuthCheck;
use certificates::Held;
use exchanges::Exchanges;
use http_version::HttpVersion;
use limits::WebLimits;
use peer::Peer;
use phase::ConnectionPhase;
use scheme::{PublicPorts, Scheme};
use tls::{Handshaken, TlsFront};
use transport::Socket;
use upstreams::Upstreams;
use visitor::VisitorConnection;

pub(crate) struct Front {
    shared: Arc<Shared>,
    limits: WebLimits,
    upstreams: Upstreams,
    basic_auth: BasicAuthCheck,
    tls: TlsFront,
    addresses: Arc<Addresses>,
    pub(crate) ports: PublicPorts,
}

impl Front {
    /// # Errors
    ///
    /// Where the cryptography of this build is unusable, or the operating system gives no thread.
    pub(crate) fn new(shared: Arc<Shared>, limits: WebLimits, ports: PublicPorts) -> io::Result<Arc<Self>> {
        let clock = shared.clock.clone();
        let tls = TlsFront::new(
            clock.clone(),
            shared.certificates.clone(),
            limits.handshakes_per_second,
            limits.handshake_timeout,
        )
        .map_err(io::Error::other)?;
        Ok(Arc::new(Self {
            upstreams: Upstreams::new(clock.clone(), limits),
            basic_auth: BasicAuthCheck::new(clock)?,
            tls,
            addresses: Addresses::new(limits.connections_per_address),
            limits,
            ports,
            shared,
        }))
    }

    /// Does what is due every second.
    pub(crate) fn tick(&self) {
        self.upstreams.sweep();
    }

    /// Accepts visitors until the node stops.
    pub(crate) fn listen(self: &Arc<Self>, scheme: Scheme, listener: TcpListener) {
        let front = self.clone();
        let stop = front.shared.stop.clone();
        self.shared.tasks.spawn(async move { front.accept(scheme, listener).with_cancellation_token(&stop).await });
    }

    async fn accept(self: Arc<Self>, scheme: Scheme, listener: TcpListener) {
        let shared = &self.shared;
        loop {
            // Meanwhile, new visitors wait in the listener's backlog.
            while shared.bounds.is_short_of_descriptors(&listener) {
                shared.clock.sleep(ACCEPT_RETRY_DELAY).await;
            }
            match listener.accept().await {
                Ok((stream, _)) if shared.bounds.is_in_reserve(&stream) => self.turn_away(&stream, Bound::Node),
                Ok((stream, address)) if is_trusted(address.ip(), &shared.trusted_proxies) => {
                    tokio::spawn(self.clone().serve_proxied(scheme, stream, address));
                }
                Ok((stream, address)) => match stream.local_addr() {
                    Ok(local) => self.clone().admit(scheme, stream, Proxied { visitor: address, local }),
                    Err(error) => tracing::debug!(%error, %address, "a visitor has gone"),
                },
                Err(error) => {
                    shared.log_unaccepted(&error);
                    shared.clock.sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Serves a visitor whom a trusted proxy brings. Where it says who that is, before the first byte, it counts as that
    /// visitor; else the headers of each request may say so.
    async fn serve_proxied(self: Arc<Self>, scheme: Scheme, mut stream: TcpStream, proxy: SocketAddr) {
        let begin = proxy_header::read(&mut stream, &self.shared.clock).await;
        match (begin, stream.local_addr()) {
            (Ok(Begin::Header(proxied)), _) => self.admit(scheme, stream, proxied),
            (Ok(Begin::Anonymous | Begin::NoHeader | Begin::Silence), Ok(local)) => {
                self.serve(scheme, stream, Proxied { visitor: proxy, local }, None).await;
            }
            (begin, _) => {
                tracing::debug!(?begin, %proxy, "a trusted proxy's connection has ended");
                socket::reset(&stream);
            }
        }
    }

    /// Serves a visitor, if their address may come.
    fn admit(self: Arc<Self>, scheme: Scheme, stream: TcpStream, came: Proxied) {
        let address = came.visitor.ip();
        if scheme == Scheme::Https && !self.tls.allows(address) {
            return self.turn_away(&stream, Bound::Address);
        }
        match self.addresses.enter(address) {
            Some(entry) => drop(tokio::spawn(self.serve(scheme, stream, came, Some(entry)))),
            None => self.turn_away(&stream, Bound::Address),
        }
    }

    fn turn_away(&self, stream: &TcpStream, bound: Bound) {
        socket::reset(stream);
        self.shared.bounds.refused(bound);
    }

    async fn serve(self: Arc<Self>, scheme: Scheme, stream: TcpStream, came: Proxied, entry: Option<Entry>) {
        let Proxied { visitor: address, local } = came;
        let ended = match socket::prepare(&stream) {
            Ok(()) => {
                let port = self.ports.of(scheme).unwrap_or(local.port());
                let peer = Peer { address, local, scheme, port };
                match scheme {
                    Scheme::Http => self.serve_http1(peer, None, stream, entry).await,
                    Scheme::Https => self.serve_https(peer, stream, entry).await,
                }
            }
            Err(error) => Err(error),
        };
        tracing::debug!(?ended, %address, "a visitor's connection has ended");
    }

    async fn serve_https(self: Arc<Self>, peer: Peer, stream: TcpStream, entry: Option<Entry>) -> io::Result<()> {
        if self.shared.routes.has_passed_through()
            && let Some(name) = passthrough::name(&stream, &self.shared, self.limits.handshake_timeout).await?
        {
            return passthrough::relay(&self.shared, peer, name, stream, entry);
        }
        // In a box, which is gone when the handshake is over.
        let accepted = Box::pin(self.tls.accept(stream)).await;
        // That of an authority which looks for a challenge is no visitor's.
        if !matches!(accepted, Ok(None)) {
            let outcome = if accepted.is_ok() { "succeeded" } else { "failed" };
            self.shared.counts.count(Counted::Handshakes, outcome);
        }
        let Some(Handshaken { stream, shown, is_h2 }) = accepted? else { return Ok(()) };
        if !is_h2 {
            return self.serve_http1(peer, Some(shown), stream, entry).await;
        }
        let exchanges = Exchanges::new(self.shared.clock.clone(), entry.is_none());
        let version = HttpVersion::Http2(exchanges.clone());
        let visitor = VisitorConnection::new(peer, Some(shown), version, entry);
        connection::http2(self, Arc::new(visitor), &exchanges, stream).await
    }

    async fn serve_http1(
        self: Arc<Self>,
        peer: Peer,
        shown: Option<Arc<Held>>,
        stream: impl Socket,
        entry: Option<Entry>,
    ) -> io::Result<()> {
        let phase = ConnectionPhase::new(self.shared.clock.clone(), self.limits);
        let version = HttpVersion::Http1(phase.clone());
        let visitor = VisitorConnection::new(peer, shown, version, entry);
        connection::http1(self, Arc::new(visitor), &phase, stream).await
    }
}
