//! What a visitor of http tunnels may take of a node.

use std::time::Duration;

/// The settings of `node.http`; see `docs/operate/settings.md`.
#[derive(Clone, Copy, Debug)]
pub struct WebLimits {
    pub connections_per_address: usize,
    pub handshakes_per_second: usize,
    pub handshake_timeout: Duration,
    pub first_byte_timeout: Duration,
    pub header_timeout: Duration,
    pub keep_alive: Duration,
    pub header_bytes: usize,
    pub header_count: usize,
    pub uri_bytes: usize,
    pub h2_streams: u32,
    pub h2_stream_window: u32,
    pub h2_connection_window: u32,
    pub upstream_connections: usize,
    pub upstream_idle: Duration,
}
