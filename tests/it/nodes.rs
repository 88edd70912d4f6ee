//! Host and node: what a node is sent, what it reports, and what becomes of frames that are lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert::embedded::identities;
use culvert_domain::error::Chain;
use culvert_node::bounds::Limits;
use culvert_node::countries::Countries;
use culvert_node::{Node, NodeContext, Settings};
use culvert_service::nodes::channel::serve_node;
use culvert_test_macros::both_engines;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::clock::Clock;
use culvert_wire::control::{Done, Grant, ToAgent};
use culvert_wire::data::{ATTACHED, FENCED, UNKNOWN_KEY};
use culvert_wire::lease_token::SigningKey;
use culvert_wire::node::{Assignment, ToHost};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::database::execute_at;
use crate::support::host::{Engine, Person, TestHost, own_address, within};
use crate::support::node::{Ended, Fault, Faults, PlayedNode, faulty_channel};
use crate::support::program::{Place, Program};
use crate::support::visitor::{echo_service, exchange, is_closed};
use crate::support::wire::Wire;

/// The environment variable that says how often a tunnel is stopped, on both engines together.
const STOPS: &str = "STOPS";

/// A device of which the test holds the wire, and a tunnel.
struct Stage {
    host: TestHost,
    ada: Person,
    api: Api,
    tunnel: Uuid,
    device: Uuid,
    wire: Wire,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        let host = TestHost::with(engine, |config| {
            (config.rate_limit.per_minute, config.rate_limit.per_day) = (1_000_000, 1_000_000);
        })
        .await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
        let (device, wire) = host.wired(&ada, ada.account_id).await;
        Self { host, ada, api, tunnel, device: device.id, wire }
    }

    async fn request(&self, action: &str) -> Uuid {
        let body = if action == "start" { json!({"device_id": self.device}) } else { json!({}) };
        self.api.post(&format!("/tunnels/{}/actions/{action}", self.tunnel), body).await.id()
    }

    async fn start(&mut self) -> Grant {
        self.request("start").await;
        within(20, self.wire.obey(Done::Start)).await.unwrap()
    }

    async fn usage(&self) -> Value {
        self.api.get(&format!("/tunnels/{}/usage", self.tunnel)).await.data()["bandwidth"]["month"]["bytes_in"].clone()
    }
}

/// What the database says that a node is to serve.
async fn stored(host: &TestHost, node_id: Uuid) -> BTreeMap<Uuid, Assignment> {
    let assigned = host.app.store.assignments(node_id).await.unwrap();
    assigned.into_iter().map(|assigned| (assigned.assignment.tunnel_id, assigned.assignment)).collect()
}

/// covers: POST /tunnels/{tunnel_id}/actions/stop
#[both_engines]
async fn withheld_end_fails_stop_with_node_unavailable(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let mut node = stage.host.played_node(Ended::Withheld).await;
    let grant = stage.start().await;
    node.until(|held| held.assignments.contains_key(&grant.tunnel_id)).await;
    let stop = stage.request("stop").await;
    let clock = stage.host.clock.clone();
    let obey = stage.wire.obey(Done::Stop);
    let time = async {
        let held = node.until(|held| held.ended == [grant.lease_id]).await;
        assert!(held.assignments.is_empty());
        clock.advance(Duration::from_secs(4));
        clock.advance(Duration::from_secs(1));
        node.until(|held| held.assignments.contains_key(&grant.tunnel_id)).await
    };
    let (_, held) = within(20, async { tokio::join!(obey, time) }).await;
    let operation = stage.host.until_ended(&stage.api, stop).await;
    assert_eq!(operation["status"], "failed");
    assert_eq!(
        operation["error"],
        json!({"code": "node_unavailable", "detail": "The tunnel's node did not answer in time."})
    );
    // The session is still open in the store, so the node serves it again.
    assert_eq!(held.assignments, stored(&stage.host, node.id).await);
    assert_eq!(held.desired, 1, "by a change");
    stage.host.until_tunnel(&stage.api, stage.tunnel, "running").await;

    // It was told to serve the session again: an answer that comes too late says nothing of the next stop.
    let ended = || ToHost::Ended { tunnel_id: grant.tunnel_id, session_id: grant.lease_id, epoch: grant.epoch };
    let stop = stage.request("stop").await;
    let obey = stage.wire.obey(Done::Stop);
    let time = async {
        node.until(|held| held.ended == [grant.lease_id; 2]).await;
        node.send(ended()).await;
        // The host reads in order.
        node.send(node.batch(1, 1, &held.assignments[&grant.tunnel_id], 1)).await;
        node.until(|held| held.acknowledged == [1]).await;
        clock.advance(Duration::from_secs(5));
        node.until(|held| held.assignments.contains_key(&grant.tunnel_id)).await;
    };
    within(20, async { tokio::join!(obey, time) }).await;
    assert_eq!(stage.host.until_ended(&stage.api, stop).await["status"], "failed");

    let stop = stage.request("stop").await;
    let obey = stage.wire.obey(Done::Stop);
    let answers = async {
        node.until(|held| held.ended == [grant.lease_id; 3]).await;
        node.send(ended()).await;
        node.send(ended()).await;
    };
    within(20, async { tokio::join!(obey, answers) }).await;
    assert_eq!(stage.host.until_ended(&stage.api, stop).await["status"], "succeeded");
}

/// A start waits for the node, and says so when the node does not answer.
#[both_engines]
async fn silent_node_fails_start_with_node_unavailable(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let (host_end, node_end) = culvert_wire::node::in_process();
    let id = stage.host.app.service.nodes().ids()[0];
    tokio::spawn(serve_node(stage.host.app.service.clone(), host_end));
    let hello = culvert_wire::node::NodeHello {
        node_id: id,
        boot_id: Uuid::from_u128(1),
        revision: 0,
        address: culvert_wire::control::NodeAddress {
            host: "127.0.0.1".into(),
            port: 1,
            udp_port: None,
            fingerprint: Base64Bytes(vec![0; 32]),
        },
        has_countries: false,
    };
    let culvert_wire::node::NodeEnd { sender, mut receiver } = node_end;
    sender.send(ToHost::Hello(hello)).await.unwrap();
    let start = stage.request("start").await;
    let clock = stage.host.clock.clone();
    let abandoned = async {
        let command = stage.wire.command().await;
        stage.wire.send(culvert_wire::control::ToHost::Claimed { operation_id: command.operation_id }).await;
        stage.wire.send(culvert_wire::control::ToHost::Ready { operation_id: command.operation_id }).await;
        stage.wire.until(|frame| matches!(frame, ToAgent::Abandon { .. }).then_some(())).await;
    };
    let time = async {
        loop {
            if let culvert_wire::node::ToNode::Change { put, .. } = receiver.recv().await.unwrap()
                && !put.is_empty()
            {
                let deadline = clock.moment().plus(Duration::from_secs(5));
                clock.until_awaited(deadline).await;
                break clock.advance(Duration::from_secs(5));
            }
        }
    };
    within(20, async { tokio::join!(abandoned, time) }).await;
    let operation = stage.host.until_ended(&stage.api, start).await;
    assert_eq!((&operation["status"], &operation["error"]["code"]), (&json!("failed"), &json!("node_unavailable")));
    assert!(stored(&stage.host, id).await.is_empty());
}

/// A change that reaches a node while it stops.
#[both_engines]
async fn closed_node_opens_no_port(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.start().await;
    let public = stage.host.public(&stage.api, stage.tunnel).await;
    stage.host.app.embedded.close().await;
    let changed = stage.api.patch(&format!("/tunnels/{}", stage.tunnel), json!({"idle_timeout": 60})).await;
    assert_eq!(changed.status, 200);
    assert!(is_closed(public).await);
}

/// Nobody reads of a stop while the port is still open.
#[both_engines]
async fn connection_is_refused_after_succeeded_stop(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let public = stage.host.public(&stage.api, stage.tunnel).await;
    let rounds = std::env::var(STOPS).map_or(50, |stops| stops.parse::<usize>().unwrap() / 2);
    for _ in 0..rounds {
        // The host reads so many frames of a device a second.
        stage.host.clock.advance(Duration::from_millis(500));
        stage.start().await;
        assert!(!is_closed(public).await);
        let stop = stage.request("stop").await;
        let (_, operation) =
            within(20, async { tokio::join!(stage.wire.obey(Done::Stop), stage.host.until_ended(&stage.api, stop)) })
                .await;
        assert_eq!(operation["status"], "succeeded");
        assert!(is_closed(public).await);
    }
}

#[both_engines]
async fn repeated_and_reordered_traffic_is_counted_once(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let mut node = stage.host.played_node(Ended::Answered).await;
    let grant = stage.start().await;
    let session = node.until(|held| held.assignments.contains_key(&grant.tunnel_id)).await;
    let session = &session.assignments[&grant.tunnel_id];
    for (number, bytes) in [(2, 20), (1, 1), (2, 20), (3, 300), (1, 1), (3, 300)] {
        node.send(node.batch(number, 1, session, bytes)).await;
    }
    let held = node.until(|held| [1, 2, 3].iter().all(|number| held.acknowledged.contains(number))).await;
    assert_eq!(stage.usage().await, 321);
    // Again after they were stored: each is acknowledged, and none is counted.
    for (number, bytes) in [(3, 300), (1, 1), (2, 20)] {
        node.send(node.batch(number, 1, session, bytes)).await;
    }
    node.until(|later| later.acknowledged.len() >= held.acknowledged.len() + 3).await;
    assert_eq!(stage.usage().await, 321);
    // The same numbers of another process are other batches.
    let node = stage.host.played_process(node.id, Uuid::from_u128(7), Ended::Answered).await;
    node.send(node.batch(1, 1, session, 4000)).await;
    let mut node = node;
    node.until(|held| held.acknowledged == [1]).await;
    assert_eq!(stage.usage().await, 4321);
}

/// The channel breaks a hundred times before the node hears that its traffic was stored.
#[both_engines]
async fn lost_acknowledgements_leave_traffic_exact(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let mut node = stage.host.played_node(Ended::Answered).await;
    let grant = stage.start().await;
    let held = node.until(|held| held.assignments.contains_key(&grant.tunnel_id)).await;
    let session = held.assignments[&grant.tunnel_id].clone();
    let (id, boot_id) = (node.id, node.boot_id);
    for number in 1..=100 {
        let node = stage.host.played_process(id, boot_id, Ended::Answered).await;
        // The answer to the one before was lost, so it is sent again.
        for number in [number - 1, number].into_iter().filter(|number| *number > 0) {
            node.send(node.batch(number, 1, &session, number)).await;
        }
    }
    let mut node = stage.host.played_process(id, boot_id, Ended::Answered).await;
    for number in 1..=100 {
        node.send(node.batch(number, 1, &session, number)).await;
    }
    node.until(|held| held.acknowledged.len() == 100).await;
    assert_eq!(stage.usage().await, 5050);
}

/// The traffic of a stop is in the transaction that ends the session.
#[both_engines]
async fn stopped_session_shows_its_last_traffic_at_once(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let mut node = stage.host.played_node(Ended::Withheld).await;
    let grant = stage.start().await;
    let held = node.until(|held| held.assignments.contains_key(&grant.tunnel_id)).await;
    let session = held.assignments[&grant.tunnel_id].clone();
    let stop = stage.request("stop").await;
    let obey = stage.wire.obey(Done::Stop);
    let end = async {
        node.until(|held| held.ended == [grant.lease_id]).await;
        node.send(node.batch(1, 1, &session, 77)).await;
        let Assignment { tunnel_id, session_id, epoch, .. } = session;
        node.send(ToHost::Ended { tunnel_id, session_id, epoch }).await;
    };
    within(20, async { tokio::join!(obey, end) }).await;
    assert_eq!(stage.host.until_ended(&stage.api, stop).await["status"], "succeeded");
    let sessions = stage.api.get(&format!("/tunnels/{}/sessions", stage.tunnel)).await;
    assert_eq!(sessions.data()[0]["bytes_in"], 77);
    node.until(|held| held.acknowledged == [1]).await;
    assert_eq!(stage.usage().await, 77);
}

#[both_engines]
async fn node_refuses_tokens_of_other_leases_and_keys(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let grant = stage.start().await;
    let lease = stage.host.app.store.lease_of_tunnel(stage.tunnel).await.unwrap().unwrap();
    let token = |change: &dyn Fn(&mut culvert_domain::lease::Lease)| {
        let mut other = lease.clone();
        change(&mut other);
        stage.host.app.service.nodes().token(&other)
    };
    let strangers = SigningKey::from_seed(&[9; 32]);
    let own = culvert_wire::lease_token::Lease {
        node_id: lease.node_id,
        tunnel_id: lease.tunnel_id,
        session_id: lease.session_id,
        epoch: lease.epoch,
    };
    let genuine = grant.token.0.clone();
    for (token, expected) in [
        (genuine.clone(), ATTACHED),
        (token(&|lease| lease.node_id = Uuid::from_u128(5)), FENCED),
        (token(&|lease| lease.session_id = Uuid::from_u128(5)), FENCED),
        (token(&|lease| lease.epoch += 1), FENCED),
        (token(&|lease| lease.tunnel_id = Uuid::from_u128(5)), FENCED),
        (genuine[..genuine.len() - 1].to_vec(), FENCED),
        (strangers.sign(&own), UNKNOWN_KEY),
        (genuine[..7].to_vec(), UNKNOWN_KEY),
        (Vec::new(), UNKNOWN_KEY),
    ] {
        let presented = Grant { token: Base64Bytes(token), ..grant.clone() };
        assert_eq!(stage.wire.answer_to(&presented).await.0, expected);
    }
    let later = Grant { epoch: grant.epoch + 1, ..grant };
    assert_eq!(stage.wire.answer_to(&later).await.0, FENCED);
}

/// A change that a caller of the API makes.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create,
    Start(usize),
    Stop(usize),
    Limits(usize, u32),
    Firewall(usize, u8),
    Countries(usize, bool),
    AddPort(usize),
    RemovePorts(usize),
    Delete(usize),
    /// The operator moves the scope to another plan.
    Plan(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = 0..4_usize;
    prop::collection::vec(
        prop_oneof![
            Just(Step::Create),
            which.clone().prop_map(Step::Start),
            which.clone().prop_map(Step::Stop),
            (which.clone(), 30..3600_u32).prop_map(|(which, seconds)| Step::Limits(which, seconds)),
            (which.clone(), any::<u8>()).prop_map(|(which, byte)| Step::Firewall(which, byte)),
            (which.clone(), any::<bool>()).prop_map(|(which, block)| Step::Countries(which, block)),
            which.clone().prop_map(Step::AddPort),
            which.clone().prop_map(Step::RemovePorts),
            which.prop_map(Step::Delete),
            any::<bool>().prop_map(Step::Plan),
        ],
        1..40,
    )
}

/// Carries out one step; what is refused changes nothing.
async fn take(stage: &mut Stage, tunnels: &mut Vec<Uuid>, step: Step) {
    let Stage { host, ada, api, device, wire, .. } = stage;
    let of = |which: usize| tunnels.get(which % tunnels.len().max(1)).map(|tunnel| format!("/tunnels/{tunnel}"));
    match step {
        Step::Create => {
            let created = api.post("/tunnels", json!({"local_port": 80})).await;
            if created.status == 201 {
                tunnels.push(created.id());
            }
        }
        Step::Plan(free) => host.set_plan(ada.account_id, if free { "free" } else { "pro" }).await,
        Step::Start(which) => {
            let Some(path) = of(which) else { return };
            let answer = api.post(&format!("{path}/actions/start"), json!({"device_id": device})).await;
            if answer.status == 202 && answer.data()["finished_at"].is_null() {
                within(20, wire.obey(Done::Start)).await;
            }
        }
        Step::Stop(which) => {
            let Some(path) = of(which) else { return };
            if api.post(&format!("{path}/actions/stop"), json!({})).await.status == 202 {
                within(20, wire.obey(Done::Stop)).await;
            }
        }
        Step::Limits(which, seconds) => {
            let Some(path) = of(which) else { return };
            api.patch(&path, json!({"idle_timeout": seconds})).await.data();
        }
        Step::Firewall(which, byte) => {
            let Some(path) = of(which) else { return };
            let rules = json!([{"rule_type": "blacklist", "ip_address": format!("192.0.2.{byte}")}]);
            api.put(&format!("{path}/firewall"), json!({"rules": rules})).await;
        }
        Step::Countries(which, block) => {
            let Some(path) = of(which) else { return };
            let action = if block { "block" } else { "allow" };
            let rules = json!([{"country_code": "DE", "action": action}]);
            api.put(&format!("{path}/geoip"), json!({"rules": rules})).await;
        }
        Step::AddPort(which) => {
            let Some(path) = of(which) else { return };
            api.post(&format!("{path}/extra-ports"), json!({"local_port": 81, "protocol": "tcp"})).await;
        }
        Step::RemovePorts(which) => {
            let Some(path) = of(which) else { return };
            let ports = api.get(&format!("{path}/extra-ports")).await.data().clone();
            for port in ports.as_array().unwrap() {
                api.delete(&format!("{path}/extra-ports/{}", port["id"].as_str().unwrap())).await.data();
            }
        }
        Step::Delete(which) => {
            let Some(path) = of(which) else { return };
            if api.delete(&path).await.status == 200 {
                tunnels.remove(which % tunnels.len());
            }
        }
    }
}

async fn changes_equal_desired(engine: Engine, steps: Vec<Step>) {
    let mut stage = Stage::set(engine).await;
    let mut node: PlayedNode = stage.host.played_node(Ended::Answered).await;
    let mut tunnels = vec![stage.tunnel];
    for step in steps {
        take(&mut stage, &mut tunnels, step).await;
    }
    let nodes = &stage.host.app.service.nodes();
    nodes.wait_until_applied([node.id]).await;
    let revision = stage.host.app.store.assignment_changes(node.id, 0).await.unwrap().revision;
    let held = node.until(|held| held.revision == revision).await;
    assert_eq!(held.assignments, stored(&stage.host, node.id).await);
    assert_eq!(held.desired, 1, "all else came by changes");
    // The host's own comparison finds nothing to correct.
    nodes.check().await.unwrap();
    assert_eq!(stage.host.metric("culvert_node_corrections_total").await, Some(0.0));
}

fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Whatever callers do: the changes add up to what the database has.
    #[test]
    fn changes_lead_to_the_desired_state_on_sqlite(steps in steps()) {
        block_on(changes_equal_desired(Engine::Sqlite, steps));
    }

    #[test]
    fn changes_lead_to_the_desired_state_on_postgres(steps in steps()) {
        block_on(changes_equal_desired(Engine::Postgres, steps));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// Frames to a node are lost, repeated and reordered: when that ends, the node serves what it should.
    #[test]
    fn node_converges_after_faults_of_the_channel(
        steps in steps(),
        faults in prop::collection::vec(
            prop_oneof![Just(Fault::None), Just(Fault::Dropped), Just(Fault::Repeated), Just(Fault::Delayed)],
            0..12,
        ),
    ) {
        block_on(node_converges(steps, Arc::new(Mutex::new(faults))));
    }
}

async fn node_converges(steps: Vec<Step>, faults: Faults) {
    let mut stage = Stage::set(Engine::Sqlite).await;
    let node = Arc::new(second_process(&stage.host).await);
    let (host_end, node_end) = faulty_channel(faults.clone());
    tokio::spawn(serve_node(stage.host.app.service.clone(), host_end));
    let served = node.clone();
    tokio::spawn(async move { served.serve(node_end).await });
    let mut tunnels = vec![stage.tunnel];
    for step in steps {
        let clock = stage.host.clock.clone();
        let mut taken = Box::pin(take_in_spite_of_faults(&mut stage, &mut tunnels, step));
        // Whoever waits for a lost answer waits until the time for it is over.
        while Clock::system().timeout(Duration::from_millis(200), &mut taken).await.is_err() {
            clock.advance(Duration::from_secs(1));
        }
    }
    faults.lock().unwrap().clear();
    let nodes = &stage.host.app.service.nodes();
    for _ in 0..3 {
        nodes.check().await.unwrap_or_else(|error| panic!("{}", Chain(&error)));
    }
    nodes.wait_until_applied([node.id()]).await;
    let stored = stored(&stage.host, node.id()).await;
    for tunnel in tunnels {
        let public = stage.host.public(&stage.api, tunnel).await;
        assert_eq!(!is_closed(public).await, stored.contains_key(&tunnel), "{tunnel}");
    }
}

/// As [`take`], but for starts and stops, whose outcome depends on the frames.
async fn take_in_spite_of_faults(stage: &mut Stage, tunnels: &mut Vec<Uuid>, step: Step) {
    let (which, action, body) = match step {
        Step::Start(which) => (which, "start", json!({"device_id": stage.device})),
        Step::Stop(which) => (which, "stop", json!({})),
        step => return take(stage, tunnels, step).await,
    };
    if tunnels.is_empty() {
        return;
    }
    let path = format!("/tunnels/{}/actions/{action}", tunnels[which % tunnels.len()]);
    let asked = stage.api.post(&path, body).await;
    if asked.status == 202 && asked.data()["finished_at"].is_null() {
        let done = if action == "start" { Done::Start } else { Done::Stop };
        within(20, stage.wire.obey_or_abandon(done)).await;
    }
}

/// The host's node as another process of it: the first one has ended.
async fn second_process(host: &TestHost) -> Node {
    host.app.embedded.close().await;
    host.app.embedded.disconnect();
    let config = host.config();
    let identity = identities(&config.data_dir, 1, &host.clock).unwrap().remove(0);
    let settings = Settings {
        hostname: config.node.hostname.clone(),
        listen: std::net::SocketAddr::new(own_address(), 0),
        udp: None,
        bind: config.node.bind,
        http: None,
        https: None,
        web: config.node.http.limits(),
        limits: Limits {
            visitors: 100,
            visitors_per_tunnel: 100,
            visitors_per_address: 100,
            flows: 100,
            flows_per_tunnel: 100,
            flows_per_address: 100,
            new_flows_per_second: 100,
            buffer_mib: 1,
            descriptor_reserve: 0.0,
            unproven: 100,
            unproven_per_address: 100,
        },
        trusted_proxies: Vec::new(),
    };
    let cx = NodeContext {
        clock: host.clock.clone(),
        on_refused: Arc::new(|_| {}),
        countries: Arc::new(Countries::open(None).unwrap()),
        tasks: TaskTracker::new(),
        stop: CancellationToken::new(),
    };
    Node::open(identity, &settings, cx).await.unwrap()
}

/// The real programs, with one tunnel that runs.
struct Running {
    place: Place,
    host: Program,
    _agent: Program,
    api: Api,
    path: String,
    public: std::net::SocketAddr,
}

impl Running {
    async fn set(engine: Engine) -> Self {
        let place = Place::new(engine).await.set("CULVERT_RATE_LIMIT__PER_MINUTE", "1000000");
        let mut host = place.serve().await;
        place.json("culvert account create --email ada@example.com --name Ada").await;
        let key = place.json("culvert key create --account ada@example.com --scopes full_access").await;
        let code = place.json("culvert device code --account ada@example.com").await;
        let code = code["code"].as_str().unwrap();
        place.json(&format!("culvert-agent enroll --server {} --code {code}", place.url())).await;
        let mut agent = place.start_logged("culvert-agent run");
        agent.until("connected").await;
        host.until("connected").await;
        let api = Api::new(&place.url(), key["key"].as_str().unwrap());
        let tunnel = api.post("/tunnels", json!({"local_port": echo_service().await.port(), "name": "echo"})).await;
        let public = format!("{}:{}", place.address, tunnel.data()["remote_port"]).parse().unwrap();
        place.json("culvert-agent start echo").await;
        let path = format!("/tunnels/{}", tunnel.id());
        let running = Self { place, host, _agent: agent, api, path, public };
        running.serves().await;
        running
    }

    async fn serves(&self) {
        assert_eq!(exchange(self.public, b"hello").await.unwrap(), b"hello");
    }

    async fn session(&self) -> Value {
        self.api.get(&format!("{}/sessions", self.path)).await.data()[0].clone()
    }

    /// Kills the host, changes something, and starts the host again. Returns how long it took from the agent's
    /// return to the first visitor who was served.
    async fn across_kill(self, change: impl AsyncFnOnce(&Place)) -> (Self, Duration) {
        let Self { place, host, _agent: agent, api, path, public } = self;
        host.kill().await;
        change(&place).await;
        let mut host = place.serve().await;
        host.until("connected").await;
        let clock = Clock::system();
        let connected = clock.moment();
        within(20, async { while exchange(public, b"hello").await.ok().as_deref() != Some(b"hello") {} }).await;
        let took = clock.moment().since(connected);
        (Self { place, host, _agent: agent, api, path, public }, took)
    }
}

/// An agent whose lease is proved by a token of the version before gets a new lease.
#[both_engines]
async fn session_of_earlier_version_is_resumed_within_five_seconds(engine: Engine) {
    let running = Running::set(engine).await;
    let before = running.session().await;
    let (running, took) = running
        .across_kill(async |place| execute_at(&place.database_url(), "UPDATE sessions SET token_version = 0").await)
        .await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    let sessions = running.api.get(&format!("{}/sessions", running.path)).await;
    let former = sessions.data().as_array().unwrap().iter().find(|session| session["id"] == before["id"]).unwrap();
    assert_eq!(former["end_reason"], "node_shutdown");
    running.serves().await;
}

/// The agent takes the token of the new key for the lease that it holds.
#[both_engines]
async fn key_rotation_keeps_sessions_of_current_agents(engine: Engine) {
    let running = Running::set(engine).await;
    let before = running.session().await;
    let (running, _) = running
        .across_kill(async |place| {
            let path = place.folder.path().join("culvert-data/secret.key");
            let keys = std::fs::read_to_string(&path).unwrap();
            let new = serde_json::to_value(Base64Bytes(vec![5; 32])).unwrap();
            std::fs::write(&path, format!("{keys}v9:{}\n", new.as_str().unwrap())).unwrap();
        })
        .await;
    let after = running.session().await;
    assert_eq!((&after["id"], &after["ended_at"]), (&before["id"], &Value::Null));
    running.serves().await;
}
