//! How a node can be reached from this device: by TLS over TCP, and by QUIC over UDP.

use std::io;
use std::time::Duration;

use culvert_wire::clock::Clock;
use culvert_wire::control::NodeAddress;
use culvert_wire::{data2, tls};
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::carrier::connect_quic;

/// How long each way may take.
const WITHIN: Duration = Duration::from_secs(3);
/// How long the path's size is looked for, at most, and how long it has to stay the same.
const MEASURED_WITHIN: Duration = Duration::from_secs(2);
const STEADY_FOR: Duration = Duration::from_millis(250);

/// What was found of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// `host:port`
    pub address: String,
    /// The UDP port; none where the node does not offer QUIC.
    pub udp_port: Option<u16>,
    pub tls: Result<f64, String>,
    /// `None` where the node does not offer it.
    pub quic: Option<Result<QuicReport, String>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuicReport {
    pub handshake_ms: f64,
    /// Bytes of a visitor's datagram that go as one.
    pub datagram_bytes: usize,
    /// Bytes of a packet that the path carries, without the headers of IP and UDP.
    pub path_mtu: u16,
}

/// Tries both ways to a node.
pub(crate) async fn examine(node: &NodeAddress, clock: &Clock) -> NodeReport {
    let quic = async {
        let port = node.udp_port?;
        let tried = clock.timeout(WITHIN + MEASURED_WITHIN, try_quic(node, port, clock)).await;
        Some(tried.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|error| said(&error)))
    };
    let tls = async {
        let tried = clock.timeout(WITHIN, try_tls(node, clock)).await;
        tried.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|error| said(&error))
    };
    let (tls, quic) = tokio::join!(tls, quic);
    NodeReport { address: format!("{}:{}", node.host, node.port), udp_port: node.udp_port, tls, quic }
}

fn said(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => format!("no answer within {} s", WITHIN.as_secs()),
        _ => error.to_string(),
    }
}

/// Milliseconds of TCP's and TLS's handshakes.
async fn try_tls(node: &NodeAddress, clock: &Clock) -> io::Result<f64> {
    let begun = clock.moment();
    let config = tls::client(node.fingerprint.0.clone(), data2::ALPN).map_err(io::Error::other)?;
    let stream = TcpStream::connect((node.host.as_str(), node.port)).await?;
    let name = ServerName::try_from(node.host.clone()).map_err(io::Error::other)?;
    let _connected = TlsConnector::from(config).connect(name, stream).await?;
    Ok(milliseconds(clock.moment().since(begun)))
}

async fn try_quic(node: &NodeAddress, port: u16, clock: &Clock) -> io::Result<QuicReport> {
    let begun = clock.moment();
    let connecting = clock.timeout(WITHIN, connect_quic(node, port, clock)).await;
    let connection = connecting.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let handshake_ms = milliseconds(clock.moment().since(begun));
    let mtu = || connection.stats().path.current_mtu;
    let (measured, mut seen) = (clock.moment(), (mtu(), clock.moment()));
    while clock.moment().since(measured) < MEASURED_WITHIN && clock.moment().since(seen.1) < STEADY_FOR {
        clock.sleep(STEADY_FOR / 10).await;
        if mtu() != seen.0 {
            seen = (mtu(), clock.moment());
        }
    }
    let datagram_bytes = connection.max_datagram_size().unwrap_or_default();
    connection.close(culvert_wire::quic::REGULAR, b"it was a test");
    Ok(QuicReport { handshake_ms, datagram_bytes, path_mtu: seen.0 })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
