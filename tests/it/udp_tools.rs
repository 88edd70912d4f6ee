//! Datagrams of a program that nobody here wrote: iperf3.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use culvert_test_macros::both_engines;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::process::Command;

use crate::support::device::Remote;
use crate::support::host::{Engine, TestHost, own_address, within};

const IPERF: u16 = 5201;

/// Payload that the visitor's side has sent and received.
#[derive(Default)]
struct Recorded {
    sent: AtomicU64,
    received: AtomicU64,
}

/// What iperf3 takes for its server: connections lead there directly, datagrams through the tunnel, and are recorded.
async fn visitors_side(server: SocketAddr, public: SocketAddr) -> (SocketAddr, Arc<Recorded>) {
    let here = SocketAddr::new(own_address(), IPERF);
    let (listener, socket) = (TcpListener::bind(here).await.unwrap(), UdpSocket::bind(here).await.unwrap());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await?;
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    let recorded = Arc::<Recorded>::default();
    let (tunnel, records) = (UdpSocket::bind((own_address(), 0)).await.unwrap(), recorded.clone());
    tunnel.connect(public).await.unwrap();
    tokio::spawn(async move {
        let (mut sent, mut answer, mut client) = (vec![0; 65_536], vec![0; 65_536], None);
        loop {
            tokio::select! {
                Ok((length, from)) = socket.recv_from(&mut sent) => {
                    client = Some(from);
                    tunnel.send(&sent[..length]).await.unwrap();
                    records.sent.fetch_add(length as u64, Ordering::Relaxed);
                }
                Ok(length) = tunnel.recv(&mut answer) => {
                    records.received.fetch_add(length as u64, Ordering::Relaxed);
                    socket.send_to(&answer[..length], client.unwrap()).await.unwrap();
                }
            }
        }
    });
    (here, recorded)
}

/// Usage is what the visitor's side has recorded, for each direction, and what iperf3 says that it has sent.
#[both_engines]
async fn datagrams_of_iperf3_are_counted_to_the_byte(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
    let server = SocketAddr::new(own_address(), IPERF);
    let mut iperf = Command::new("iperf3");
    iperf.args(["--server", "--one-off", "--forceflush", "--bind", &server.ip().to_string()]);
    let mut serving = iperf.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(serving.stdout.take().unwrap()).lines();
    while !within(20, lines.next_line()).await.unwrap().unwrap().contains("listening") {}
    let target = json!({"protocol": "udp", "local_host": server.ip().to_string(), "local_port": IPERF});
    let tunnel = api.post("/tunnels", target).await.id();
    host.run_tunnel(&api, &device, tunnel).await;
    let (here, recorded) = visitors_side(server, host.public(&api, tunnel).await).await;

    let mut client = Command::new("iperf3");
    client.args(["--udp", "--json", "--bitrate", "10M", "--length", "1200", "--bytes", "2400000"]);
    client.args(["--client", &here.ip().to_string()]).kill_on_drop(true);
    let output = within(60, client.output()).await.unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sum = &report["end"]["sum"];
    assert_eq!((&sum["bytes"], &sum["lost_packets"]), (&json!(2_400_000), &json!(0)), "{report}");

    device.stop_tunnel(&tunnel.to_string()).await.unwrap();
    host.until_tunnel(&api, tunnel, "stopped").await;
    let usage = api.get(&format!("/tunnels/{tunnel}/usage")).await.data()["bandwidth"]["today"].clone();
    let (sent, received) = (recorded.sent.load(Ordering::Relaxed), recorded.received.load(Ordering::Relaxed));
    assert_eq!((&usage["bytes_in"], &usage["bytes_out"]), (&json!(sent), &json!(received)), "{usage}");
    // The client begins a stream with four bytes, which the server answers.
    assert_eq!((sent, received), (2_400_004, 4));
}
