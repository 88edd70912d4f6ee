//! What a host keeps for many devices: 1,000 of them, each with ten tunnels that run and have no visitors.
//!
//! The agents are real ones, in this process. Each tunnel takes a descriptor of the host and each device some more, which
//! needs a hard limit of 20,000 (`ulimit -Hn`).

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this is what it is for")]
#![allow(clippy::disallowed_methods, reason = "it waits for processes to come to rest")]

use std::path::Path;
use std::time::{Duration, Instant};

use culvert_agent::agent::{Agent, Setup};
use culvert_agent::carrier::TransportChoice;
use culvert_agent::device::{Device, DeviceKey};
use culvert_agent::ipc::{self, Answer, Request, Status};
use culvert_agent::state_dir::StateDir;
use culvert_agent::target::LinkLocal;
use culvert_bench::service::{ADDRESS, Service};
use culvert_bench::verdict;
use culvert_wire::clock::Clock;
use culvert_wire::control::Capability;
use culvert_wire::enrolment::{ENROL_PATH, Enrol, Enrolled};
use futures_util::StreamExt;
use futures_util::stream;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const DEVICES: usize = 1_000;
const TUNNELS: usize = 10;
/// Devices that are set up at once.
const AT_ONCE: usize = 4;
const REST: Duration = Duration::from_mins(1);
const WATCHED: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() {
    culvert_wire::socket::allow_many();
    let settings = [
        ("CULVERT_RATE_LIMIT__PER_MINUTE", "1000000"),
        ("CULVERT_RATE_LIMIT__PER_DAY", "10000000"),
        ("CULVERT_NODE__PORTS", "20000-31999"),
        ("CULVERT_NODE__UNPROVEN_PER_ADDRESS", "1024"),
    ];
    let service = Service::with(&settings).await;
    let local = TcpListener::bind((ADDRESS, 0)).await.unwrap();
    let port = local.local_addr().unwrap().port();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let idle = service.host().resident();
    let folder = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    stream::iter(0..DEVICES).for_each_concurrent(AT_ONCE, |number| set_up(&service, &folder, number, port)).await;
    println!("{DEVICES} devices with {TUNNELS} tunnels each run after {:.0} s", begun.elapsed().as_secs_f64());
    tokio::time::sleep(REST).await;
    let more = service.host().resident() - idle;
    verdict("MiB more, host", more, "<= 100", more <= 100.0);
    let (before, since) = (service.host().cpu(), Instant::now());
    tokio::time::sleep(WATCHED).await;
    let share = (service.host().cpu() - before) / since.elapsed().as_secs_f64() * 100.0;
    println!("  the host takes {share:.1} % of a core, with the agents' heartbeats");
}

/// Enrols a device, runs its agent, and starts its tunnels.
async fn set_up(service: &Service, folder: &TempDir, number: usize, port: u16) {
    let (clock, path) = (Clock::system(), folder.path().join(number.to_string()));
    let state = enrol(service, &clock, &path).await;
    let device = Device::load(&state).unwrap().unwrap();
    let setup = Setup {
        state: state.clone(),
        device,
        clock,
        link_local: LinkLocal::Refused,
        transport: TransportChoice::Auto,
        replaceable: false,
    };
    tokio::spawn(Agent::run(setup, CancellationToken::new()));
    while !is_connected(&state).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..TUNNELS {
        let target = json!({"protocol": "tcp", "local_host": ADDRESS, "local_port": port});
        let tunnel = service.post("tunnels", target).await["id"].as_str().unwrap().to_owned();
        let started = ipc::ask(&state, &Request::Start { tunnel, accept: None }).await.unwrap().unwrap();
        assert!(matches!(started, Ok(Answer::Started(_))), "{started:?}");
    }
}

async fn is_connected(state: &StateDir) -> bool {
    let answer = ipc::ask(state, &Request::Status).await.unwrap();
    matches!(answer, Some(Ok(Answer::Status(Status { connected: true, .. }))))
}

async fn enrol(service: &Service, clock: &Clock, path: &Path) -> StateDir {
    let key = DeviceKey::generate(clock);
    let enrol = Enrol {
        code: service.device_code(),
        name: None,
        platform: "bench".into(),
        version: "1".into(),
        capabilities: Capability::ALL.map(String::from).to_vec(),
        public_key: key.public(),
    };
    let url = format!("http://{ADDRESS}:8080");
    let answer = reqwest::Client::builder().no_proxy().build().unwrap().post(format!("{url}{ENROL_PATH}"));
    let Enrolled { device_id, name } = answer.json(&enrol).send().await.unwrap().json().await.unwrap();
    let state = StateDir::open(path).unwrap();
    Device { id: device_id, name, server: url, key }.save(&state).unwrap();
    state
}
