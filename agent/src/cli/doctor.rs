//! `doctor`: how the server and the nodes can be reached.

use super::{CliError, Output, ask, print};
use crate::doctor::{NodeReport, QuicReport};
use crate::ipc::{Answer, DoctorReport, Request};
use crate::state_dir::StateDir;

pub(super) async fn doctor(state: &StateDir, output: Output) -> Result<(), CliError> {
    if let Answer::Doctor(report) = ask(state, Request::Doctor).await? {
        print(output, &report, || describe(&report));
    }
    Ok(())
}

fn describe(report: &DoctorReport) -> String {
    let DoctorReport { server, connected, nodes } = report;
    let mut text = format!("server  {server}: {}", if *connected { "connected" } else { "not connected" });
    for node in nodes {
        text += &format!("\nnode    {}\n  TLS   {}\n  QUIC  {}", node.address, of_tls(node), of_quic(node));
    }
    if nodes.is_empty() {
        text += "\nno node is known: nodes are those of the tunnels that run here";
    }
    text
}

fn of_tls(node: &NodeReport) -> String {
    match &node.tls {
        Ok(ms) => format!("works, handshake {ms:.1} ms"),
        Err(error) if matches!(node.quic, Some(Ok(_))) => format!("blocked: {error}; let TCP through the firewall"),
        Err(error) => format!("blocked: {error}; tunnels of this node are offline"),
    }
}

fn of_quic(node: &NodeReport) -> String {
    match &node.quic {
        None => "not offered by the node (node.udp_listen)".into(),
        Some(Ok(QuicReport { handshake_ms, datagram_bytes, path_mtu })) => format!(
            "works, handshake {handshake_ms:.1} ms; packets of {path_mtu} bytes, datagrams of visitors up to \
             {datagram_bytes} bytes go as one"
        ),
        Some(Err(error)) => {
            let port = node.udp_port.unwrap_or_default();
            format!("blocked: {error}; let UDP port {port} through the firewall. Visitors and datagrams go over TLS")
        }
    }
}
