//! The version of HTTP that a visitor speaks.

use std::sync::Arc;

use super::exchanges::Exchanges;
use super::phase::ConnectionPhase;

/// What an exchange needs of its connection, by the version of HTTP.
pub(super) enum HttpVersion {
    /// One exchange at a time: to cut it, the connection is cut.
    Http1(Arc<ConnectionPhase>),
    /// Many exchanges at a time: each is cut alone.
    Http2(Arc<Exchanges>),
}
