//! A visitor's connection, as its requests see it.

use std::sync::{Arc, Mutex, OnceLock};

use super::certificates::Held;
use super::exchanges::Exchanges;
use super::forwarded::Forwarded;
use super::http_version::HttpVersion;
use super::peer::Peer;
use super::phase::ConnectionPhase;
use super::upstream_pool::UpstreamPool;
use super::upstreams::Upstreams;
use crate::addresses::Entry;
use crate::lock;

/// A visitor's connection. It is counted for its address as long as anything of it is there, a WebSocket too.
pub(super) struct VisitorConnection {
    pub peer: Peer,
    /// The certificate that the visitor was shown; `None` in the clear.
    pub shown: Option<Arc<Held>>,
    pub version: HttpVersion,
    /// `None` for a trusted proxy, which is not counted.
    pub _entry: Option<Entry>,
    /// Connections to services that are told who this visitor is. They end with the visitor's.
    own_pool: OnceLock<Arc<UpstreamPool>>,
    /// Those of the last request.
    forwarded: Mutex<Option<Arc<Forwarded>>>,
}

impl Drop for VisitorConnection {
    fn drop(&mut self) {
        if let Some(own) = self.own_pool.get() {
            own.end_all();
        }
    }
}

impl VisitorConnection {
    pub(super) fn new(peer: Peer, shown: Option<Arc<Held>>, version: HttpVersion, entry: Option<Entry>) -> Self {
        Self { peer, shown, version, _entry: entry, own_pool: OnceLock::new(), forwarded: Mutex::default() }
    }

    /// The headers by which a service learns whom a request for a name is from.
    pub(super) fn forwarded(&self, peer: Peer, name: &str) -> Arc<Forwarded> {
        let mut last = lock(&self.forwarded);
        match &*last {
            Some(last) if last.is_of(peer, name) => last.clone(),
            _ => last.insert(Forwarded::new(peer, name)).clone(),
        }
    }

    /// Where connections to services are kept.
    pub(super) fn pool<'a>(&'a self, upstreams: &'a Upstreams, names_visitors: bool) -> &'a Arc<UpstreamPool> {
        if names_visitors { self.own_pool.get_or_init(|| upstreams.of_visitor()) } else { upstreams.common() }
    }

    /// The phase of a connection of HTTP/1.1.
    pub(super) fn phase(&self) -> Option<&Arc<ConnectionPhase>> {
        match &self.version {
            HttpVersion::Http1(phase) => Some(phase),
            HttpVersion::Http2(_) => None,
        }
    }

    /// The exchanges of a connection of HTTP/2.
    pub(super) fn exchanges(&self) -> Option<&Arc<Exchanges>> {
        match &self.version {
            HttpVersion::Http1(_) => None,
            HttpVersion::Http2(exchanges) => Some(exchanges),
        }
    }

    /// Whether requests for a name may come on this connection: what was shown must prove it, whatever name the handshake
    /// was for.
    pub(super) fn proves(&self, name: &str) -> bool {
        self.shown.as_ref().is_none_or(|shown| shown.covers(name))
    }
}
