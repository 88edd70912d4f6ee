//! Assignments of nodes: what an idle second costs, and what changes cost amid many.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time")]

use std::net::SocketAddr;
use std::time::Instant;

use culvert::app::Host;
use culvert::config::{Config, Listen};
use culvert_bench::{median, verdict};
use culvert_domain::local_service::{LocalScheme, LocalService};
use culvert_domain::protocol::Protocol;
use culvert_domain::session::Target;
use culvert_domain::tunnel::TunnelSpec;
use culvert_service::jobs::Ticker;
use culvert_service::nodes::channel::serve_node;
use culvert_store::tunnels::NewTunnel;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::clock::Clock;
use culvert_wire::control::NodeAddress;
use culvert_wire::node::{Assignment, NodeEnd, NodeHello, ToHost, ToNode, in_process};
use tempfile::TempDir;
use uuid::Uuid;

const ROUNDS: usize = 21;
const FEW: usize = 1_000;
const MANY: usize = 10_000;
/// Tunnels that are created in one transaction.
const BATCH: usize = 500;

#[tokio::main]
async fn main() {
    let (one, few, many) = (Stage::new(1).await, Stage::new(FEW).await, Stage::new(MANY).await);
    let mut idle = [Vec::new(), Vec::new()];
    let mut changed = [Vec::new(), Vec::new()];
    let mut changed_one = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (times, stage) in idle.iter_mut().zip([&one, &many]) {
            times.push(stage.idle_second().await);
        }
        for (times, stage) in changed.iter_mut().zip([&few, &many]) {
            times.push(stage.change(stage.tunnels.len() / 10).await);
        }
        for (times, stage) in changed_one.iter_mut().zip([&few, &many]) {
            times.push(stage.change(1).await);
        }
    }
    let [idle_one, idle_many] = idle.map(median);
    println!("an idle second, the median of {ROUNDS}, in microseconds");
    println!("  with 1 assignment {:.0}, with {MANY} {:.0}", idle_one * 1e6, idle_many * 1e6);
    let ratio = idle_many / idle_one;
    verdict(&format!("with {MANY}, to 1"), ratio, "<= 1.50", ratio <= 1.5);
    let [one_of_few, one_of_many] = changed_one.map(median);
    println!("one change until it is applied, the median of {ROUNDS}, in milliseconds");
    println!("  among {FEW} {:.2}, among {MANY} {:.2}", one_of_few * 1e3, one_of_many * 1e3);
    let ratio = one_of_many / one_of_few;
    verdict("among 10,000, to among 1,000", ratio, "<= 1.50", ratio <= 1.5);
    let [few, many] = changed.map(median);
    println!("changes until they are applied, the median of {ROUNDS}, in milliseconds");
    println!("  100 among {FEW} {:.1}, 1,000 among {MANY} {:.1}", few * 1e3, many * 1e3);
    verdict("1,000 among 10,000, to 100 among 1,000", many / few, "<= 12.00", many / few <= 12.0);
}

/// A host with assignments of one node, which the benchmark plays.
struct Stage {
    host: Host,
    node_id: Uuid,
    tunnels: Vec<Uuid>,
    _folder: TempDir,
}

impl Stage {
    async fn new(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let data_dir = folder.path().join("data");
        let mut config = Config { data_dir, listen: any, admin_listen: any, ..Config::default() };
        config.node.listen = any;
        (config.node.http_listen, config.node.https_listen) = (Listen::Off, Listen::Off);
        let host = Host::start(config, Clock::system(), Ticker::Manual).await.unwrap();
        let node_id = host.app.service.nodes().ids()[0];
        play(&host, node_id).await;
        let store = &host.app.store;
        let account = store.write(None, |write| {
            Box::pin(async move { write.create_account("b@example.com", "B", "self-hosted").await })
        });
        let scope_id = account.await.unwrap().unwrap().id;
        let mut tunnels = Vec::new();
        while tunnels.len() < count {
            let size = BATCH.min(count - tunnels.len());
            let first = tunnels.len();
            let made = store.write(Some(scope_id), move |write| {
                Box::pin(async move {
                    let mut ids = Vec::new();
                    let domain_id = write.placement_candidates().await?.remove(0).domain_id;
                    for number in first..first + size {
                        let new = new_tunnel(write.clock.id(), scope_id, node_id, domain_id, number);
                        write.insert_tunnel(&new).await?;
                        let tunnel = write.tunnel(scope_id, new.id).await?.unwrap();
                        let target = Target {
                            host: "127.0.0.1".into(),
                            port: 80,
                            scheme: LocalScheme::Auto,
                            tls_verify: None,
                            extra: Vec::new(),
                        };
                        let id = write.clock.id();
                        culvert_service::sessions::open(write, &tunnel, id, id, &target).await?;
                        ids.push(new.id);
                    }
                    Ok(ids)
                })
            });
            tunnels.extend(made.await.unwrap());
        }
        let stage = Self { host, node_id, tunnels, _folder: folder };
        stage.host.app.service.nodes().wait_until_applied([node_id]).await;
        stage
    }

    async fn idle_second(&self) -> f64 {
        let start = Instant::now();
        self.host.app.service.nodes().tick(1).await.unwrap();
        start.elapsed().as_secs_f64()
    }

    /// From the commit of changes until the node has applied them.
    async fn change(&self, number: usize) -> f64 {
        let changed = self.tunnels[..number].to_vec();
        self.host.app.store.resend_assignments(self.node_id, changed).await.unwrap();
        let start = Instant::now();
        self.host.app.service.nodes().wait_until_applied([self.node_id]).await;
        start.elapsed().as_secs_f64()
    }
}

fn new_tunnel(id: Uuid, scope_id: Uuid, node_id: Uuid, domain_id: Uuid, number: usize) -> NewTunnel {
    let spec = TunnelSpec {
        name: format!("tunnel-{number}"),
        protocol: Protocol::Tcp,
        local_host: "127.0.0.1".into(),
        local_port: 80,
        subdomain: None,
        region: None,
        country: None,
        preset_id: None,
        https: false,
        basic_auth: false,
        basic_auth_user: None,
        idle_timeout: None,
        buffer_size: 65_536,
        pro_network: false,
        service: LocalService::default(),
    };
    let remote_port = 20_000 + u16::try_from(number).unwrap();
    NewTunnel {
        id,
        scope_id,
        created_by: scope_id,
        spec,
        node_id,
        domain_id,
        remote_port,
        restricted: false,
        basic_auth_hash: None,
    }
}

/// Takes the place of the host's own node, and says that everything is served.
async fn play(host: &Host, node_id: Uuid) {
    let (host_end, NodeEnd { sender, mut receiver }) = in_process();
    tokio::spawn(serve_node(host.app.service.clone(), host_end));
    let address =
        NodeAddress { host: "127.0.0.1".into(), port: 1, udp_port: None, fingerprint: Base64Bytes(vec![0; 32]) };
    let hello = NodeHello { node_id, boot_id: Uuid::from_u128(1), revision: 0, address, has_countries: false };
    sender.send(ToHost::Hello(hello)).await.unwrap();
    let (first, mut begun) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        while let Some(frame) = receiver.recv().await {
            let (revision, put) = match frame {
                ToNode::Desired { revision, assignments, .. } => (revision, assignments),
                ToNode::Change { revision, put, .. } => (revision, put),
                _ => continue,
            };
            for Assignment { tunnel_id, session_id, epoch, .. } in put {
                let _ = sender.send(ToHost::Serving { tunnel_id, session_id, epoch, unopened: Vec::new() }).await;
            }
            let _ = sender.send(ToHost::Applied { revision }).await;
            first.send_replace(true);
        }
    });
    begun.wait_for(|begun| *begun).await.unwrap();
}
