//! Several hosts on one PostgreSQL database.

use std::time::Duration;

use culvert_domain::fleet::{END_AFTER, HostState, LEASE};
use culvert_service::jobs::heartbeat;
use culvert_store::hosts::different_settings;
use culvert_test_macros::both_engines;
use culvert_wire::control::{CONNECT_PATH, Done, Grant};
use reqwest::Method;
use serde_json::json;
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::database::{run, texts_of};
use crate::support::fleet::{TestFleet, readiness};
use crate::support::host::{Engine, Person, TestHost};
use crate::support::wire::Wire;

/// A device at one of the hosts, which runs a tunnel on that host's node.
pub(crate) struct Runs {
    pub(crate) tunnel: Uuid,
    device: Uuid,
    pub(crate) wire: Wire,
    grant: Grant,
}

impl Runs {
    pub(crate) async fn at(host: &TestHost, ada: &Person) -> Self {
        let api = host.api(&ada.key);
        let tunnel = host.tunnel_here(&api, 80).await;
        let (device, mut wire) = host.wired(ada, ada.account_id).await;
        api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
        let grant = wire.obey(Done::Start).await.unwrap();
        let mut runs = Self { tunnel, device: device.id, wire, grant };
        runs.renew().await;
        runs
    }

    /// What the agent sends every ten seconds.
    async fn renew(&mut self) {
        assert_eq!(self.wire.renew(&[self.grant.lease_id]).await, [self.grant.lease_id]);
    }

    /// The tunnel's state, and whether its device is online.
    async fn states(&self, api: &Api) -> (String, bool) {
        let tunnel = api.get(&format!("/tunnels/{}", self.tunnel)).await;
        let device = api.get(&format!("/devices/{}", self.device)).await;
        (tunnel.data()["status"].as_str().unwrap().into(), device.data()["online"].as_bool().unwrap())
    }
}

#[both_engines]
async fn health_checks_need_no_key(engine: Engine) {
    let host = TestHost::start(engine).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let ask = async |method: Method, path: &str| {
        let answer = client.request(method, format!("{}{path}", host.url())).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    assert_eq!(ask(Method::GET, "/healthz").await, (200, "ok\n".into()));
    assert_eq!(ask(Method::GET, "/readyz").await, (200, "ready\n".into()));
    assert_eq!(ask(Method::HEAD, "/readyz").await, (200, String::new()));
    assert_eq!(ask(Method::POST, "/readyz").await.0, 401);
    assert_eq!(ask(Method::GET, "/readyz/").await.0, 401);
}

fn running() -> (String, bool) {
    ("running".into(), true)
}

fn lost() -> (String, bool) {
    ("stopped".into(), false)
}

const AGENT_EVERY: Duration = Duration::from_secs(9);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Clocks that are wrong by a minute to either side end nothing, and each device is renewed at its own host.
#[tokio::test]
async fn hosts_whose_clocks_are_wrong_end_nothing() {
    let fleet = TestFleet::with_clocks(&[0, 60, -60]).await;
    let ada = fleet.hosts[0].person("ada").await;
    let mut all = Vec::new();
    for host in &fleet.hosts {
        all.push(Runs::at(host, &ada).await);
    }
    for _ in 0..20 {
        fleet.pass(AGENT_EVERY).await;
        for runs in &mut all {
            runs.renew().await;
        }
    }
    for runs in &all {
        for host in &fleet.hosts {
            assert_eq!(runs.states(&host.api(&ada.key)).await, running());
        }
    }
    let times = fleet.hosts.iter().map(|host| host.clock.now()).collect::<Vec<_>>();
    assert!(times.iter().all(|time| (*time - times[0]).num_milliseconds().abs() < 100), "{times:?}");
}

/// Whoever stayed is told nothing, and whoever has really gone is found after the grace.
#[tokio::test]
async fn outage_of_the_database_ends_nothing_that_stayed() {
    let fleet = TestFleet::start(2).await;
    let ada = fleet.hosts[0].person("ada").await;
    let api = fleet.hosts[1].api(&ada.key);
    let mut stays = Runs::at(&fleet.hosts[0], &ada).await;
    let goes = Runs::at(&fleet.hosts[1], &ada).await;
    fleet.pass(AGENT_EVERY).await;
    stays.renew().await;
    for _ in 0..10 {
        fleet.pass_without_database(AGENT_EVERY).await;
        stays.renew().await;
    }
    // The database is back. Before the grace is over, not even the silent one is ended.
    let silent = ("degraded".to_owned(), true);
    for _ in 0..8 {
        fleet.pass(AGENT_EVERY).await;
        stays.renew().await;
        assert_eq!((stays.states(&api).await, goes.states(&api).await), (running(), silent.clone()));
    }
    fleet.pass(seconds(6)).await;
    stays.renew().await;
    assert_eq!((stays.states(&api).await, goes.states(&api).await), (running(), lost()));
}

/// The devices of a host that is dead are offline when its lease and theirs are over, and another host leads.
#[tokio::test]
async fn devices_of_a_dead_host_are_ended_by_another_one() {
    let fleet = TestFleet::start(2).await;
    let ada = fleet.hosts[0].person("ada").await;
    let api = fleet.hosts[1].api(&ada.key);
    let mut runs = Runs::at(&fleet.hosts[0], &ada).await;
    fleet.pass(seconds(3)).await;
    let leads = || [0, 1].map(|number: usize| fleet.hosts[number].app.service.fleet().leads());
    assert_eq!(leads(), [true, false], "the first one leads");
    // It hears its agent, and the database does not hear of it: 48 seconds after its last heartbeat it is dead.
    assert_eq!((LEASE + END_AFTER).num_seconds(), 48);
    for _ in 0..5 {
        fleet.pass_without(AGENT_EVERY, &[0]).await;
        runs.renew().await;
    }
    assert_eq!(runs.states(&api).await, ("degraded".into(), true), "its node's host is not heard of");
    assert_eq!(leads(), [false, true]);
    fleet.pass_without(seconds(6), &[0]).await;
    assert_eq!(runs.states(&api).await, lost());
}

/// A host that stood for a while does nothing before it has heard what has become of it.
#[tokio::test]
async fn host_that_was_taken_for_dead_answers_nothing_before_it_has_started_anew() {
    let fleet = TestFleet::start(2).await;
    let ada = fleet.hosts[0].person("ada").await;
    let mut runs = Runs::at(&fleet.hosts[0], &ada).await;
    let api = fleet.hosts[0].api(&ada.key);
    fleet.pass(seconds(3)).await;
    fleet.pass_without(seconds(13), &[0]).await;
    assert_eq!(api.get("/tunnels").await.status, 200, "within its window");
    fleet.pass_without(seconds(1), &[0]).await;
    let refused = api.get("/tunnels").await;
    assert_eq!(refused.outcome(), "503 service_unavailable");
    assert_eq!(refused.headers["retry-after"], "3");
    assert_eq!(readiness(&fleet.hosts[0]).await, 503);
    assert_eq!(readiness(&fleet.hosts[1]).await, 200);
    // Nor has an agent a welcome.
    let upgrade = api.request(Method::GET, "").build().unwrap().url().join(CONNECT_PATH).unwrap();
    assert_eq!(reqwest::Client::builder().no_proxy().build().unwrap().get(upgrade).send().await.unwrap().status(), 503);
    // The other one ends it. It learns so from its heartbeat, and its agents connect again.
    fleet.pass_without(seconds(60), &[0]).await;
    let first = &fleet.hosts[0].app.jobs;
    heartbeat::beat(first).await.unwrap();
    while runs.wire.next().await.is_some() {}
    assert_eq!(api.get("/tunnels").await.outcome(), "503 service_unavailable");
    heartbeat::beat(first).await.unwrap();
    assert_eq!(api.get("/tunnels").await.status, 200);
}

/// Each name leads to one node.
#[tokio::test]
async fn host_with_the_domain_of_another_is_refused() {
    let fleet = TestFleet::start(1).await;
    let first = &fleet.hosts[0];
    let (database, keys) = (first.config().database_url.clone(), first.config().secret_key_file());
    let start = async |domain: &str| {
        TestHost::try_start(Engine::Postgres, first.clock.clone(), |config| {
            config.several_hosts = true;
            config.node.domain = Some(domain.into());
            config.database_url.clone_from(&database);
            std::fs::copy(&keys, config.data_dir.join("secret.key")).unwrap();
        })
        .await
    };
    let second = start("tunnels.example.com").await.unwrap();
    let node = second.node_id();
    let wanted = format!("node.domain: must not be that of node {node} of another host: each name leads to one node");
    assert_eq!(start("tunnels.example.com").await.err(), Some(wanted));
    assert!(start("more.example.com").await.is_ok());
    second.stop().await;
    assert!(start("tunnels.example.com").await.is_ok(), "the other one has stopped");
}

/// A data folder that was copied is one host: the copy waits until the other one is silent, which then does nothing more.
#[tokio::test]
async fn copy_of_a_data_folder_is_refused_while_its_host_is_alive() {
    let authority = Duration::from_mins(1);
    let fleet = TestFleet::with_authority(&[0], authority).await;
    let first = &fleet.hosts[0];
    let ada = first.person("ada").await;
    let (database, folder) = (first.config().database_url.clone(), first.config().data_dir.clone());
    let copy = async || {
        TestHost::try_start(Engine::Postgres, first.clock.clone(), |config| {
            config.several_hosts = true;
            config.database_url.clone_from(&database);
            std::fs::copy(folder.join("secret.key"), config.data_dir.join("secret.key")).unwrap();
            std::fs::create_dir(config.data_dir.join("node")).unwrap();
            for file in std::fs::read_dir(folder.join("node")).unwrap() {
                let file = file.unwrap();
                std::fs::copy(file.path(), config.data_dir.join("node").join(file.file_name())).unwrap();
            }
        })
        .await
    };
    fleet.pass(seconds(3)).await;
    let refused = copy().await.err().unwrap();
    assert!(refused.starts_with("data_dir: the host of this folder, or of one that it was copied from"), "{refused}");
    assert!(refused.ends_with("try again after 12:01:18 UTC, or see `culvert node abandon`"), "{refused}");
    fleet.pass_without(authority, &[0]).await;
    assert_eq!(copy().await.err(), Some(refused), "its nodes may serve");
    fleet.pass_without(seconds(15), &[0]).await;
    let second = copy().await.unwrap();
    for _ in 0..2 {
        heartbeat::beat(&first.app.jobs).await.unwrap();
        assert_eq!(first.api(&ada.key).get("/tunnels").await.outcome(), "503 service_unavailable");
    }
    heartbeat::beat(&second.app.jobs).await.unwrap();
    assert_eq!(second.api(&ada.key).get("/tunnels").await.status, 200);
}

#[tokio::test]
async fn hosts_are_listed_with_what_the_database_knows_of_them() {
    let mut fleet = TestFleet::start(3).await;
    fleet.pass(Duration::from_secs(3)).await;
    let ids: Vec<_> = fleet.hosts.iter().map(|host| host.app.service.fleet().host_id()).collect();
    fleet.hosts.pop().unwrap().stop().await;
    fleet.pass_without(LEASE.to_std().unwrap(), &[1]).await;
    let listed = fleet.hosts[0].app.store.hosts().await.unwrap();
    let of = |id| listed.iter().find(|host| host.id == id).map(|host| (host.state, host.leads, host.nodes));
    let known: Vec<_> = ids.iter().copied().map(of).collect();
    assert_eq!(
        known,
        [Some((HostState::Alive, true, 1)), Some((HostState::Silent, false, 1)), Some((HostState::Ended, false, 1))]
    );
    fleet.leap(Duration::from_hours(24)).await;
    assert_eq!(fleet.hosts[0].app.store.hosts().await.unwrap().len(), 2, "one that ended is shown for a day");
    let nodes = fleet.hosts[0].app.service.listed_nodes().await.unwrap();
    assert!(nodes.len() == 2 && nodes.iter().all(|node| node.id != ids[2]), "so are its nodes");
}

/// A host that has ended holds nobody, however it came that its row says so.
#[tokio::test]
async fn devices_of_a_host_that_has_ended_are_released() {
    let fleet = TestFleet::start(2).await;
    fleet.pass(seconds(3)).await;
    let [first, second] = &fleet.hosts[..] else { panic!("two hosts") };
    let ada = first.person("ada").await;
    let (_device, _wire) = second.wired(&ada, ada.account_id).await;
    let (url, held) = (
        first.config().database_url(),
        "SELECT CAST(host_id AS TEXT) AS text FROM device_presence WHERE host_id IS NOT NULL",
    );
    assert_eq!(texts_of(&url, held).await, [second.app.service.fleet().host_id().to_string()]);
    let end = format!("UPDATE hosts SET ended_at = lease_until WHERE id = '{}'", second.app.service.fleet().host_id());
    run(&url, &end).await;
    fleet.pass_without(seconds(3), &[1]).await;
    assert_eq!(texts_of(&url, held).await, Vec::<String>::new());
}

/// A failover that has lost the last writes: nothing is taken for over, and nodes and agents hear everything anew.
#[tokio::test]
async fn database_that_went_back_is_noticed() {
    let fleet = TestFleet::start(2).await;
    fleet.pass(seconds(30)).await;
    let told = async |host: &TestHost| {
        (host.metric("culvert_store_went_back_total").await, host.metric("culvert_grace").await)
    };
    for host in &fleet.hosts {
        assert_eq!(told(host).await, (Some(0.0), Some(0.0)));
    }
    let url = fleet.hosts[0].config().database_url();
    run(&url, "UPDATE hosts SET lease_until = lease_until - 6000000").await;
    fleet.pass(seconds(3)).await;
    for host in &fleet.hosts {
        assert_eq!(told(host).await, (Some(1.0), Some(1.0)));
        assert!(!host.app.service.fleet().may_end_own());
    }
    fleet.pass(seconds(78)).await;
    for host in &fleet.hosts {
        assert_eq!(told(host).await, (Some(1.0), Some(0.0)));
    }
}

#[tokio::test]
async fn metrics_tell_of_leaders_and_heartbeats() {
    let mut fleet = TestFleet::start(3).await;
    fleet.pass(seconds(9)).await;
    let (mut terms, mut leads) = (Vec::new(), Vec::new());
    for host in &fleet.hosts {
        assert!(host.metric("culvert_host_heartbeat_duration_seconds_count").await >= Some(3.0));
        terms.push(host.metric("culvert_leader_term").await.unwrap());
        leads.push(host.metric("culvert_leader").await == Some(1.0));
    }
    assert!(terms[0] > 0.0 && terms.iter().all(|term| *term == terms[0]), "{terms:?}");
    assert_eq!(leads.iter().filter(|leads| **leads).count(), 1);
    let leader = leads.iter().position(|leads| *leads).unwrap();
    fleet.hosts.remove(leader).stop().await;
    fleet.pass(seconds(6)).await;
    for host in &fleet.hosts {
        assert_eq!(host.metric("culvert_leader_term").await, Some(terms[0] + 1.0));
    }
}

#[tokio::test]
async fn settings_that_differ_are_named() {
    let mut fleet = TestFleet::start(2).await;
    let differ = async |host: &TestHost| host.metric("culvert_settings_differ").await;
    let names = async |fleet: &TestFleet| different_settings(&fleet.hosts[0].app.store.hosts().await.unwrap());
    fleet.pass(seconds(3)).await;
    assert_eq!((differ(&fleet.hosts[0]).await, names(&fleet).await), (Some(0.0), vec![]));
    fleet.add_with(|config| config.rate_limit.per_minute = 60).await;
    fleet.pass(seconds(3)).await;
    for host in &fleet.hosts {
        assert_eq!(differ(host).await, Some(1.0));
    }
    assert_eq!(names(&fleet).await, ["rate_limit.per_minute"]);
    fleet.hosts.pop().unwrap().stop().await;
    fleet.pass(seconds(3)).await;
    assert_eq!((differ(&fleet.hosts[0]).await, names(&fleet).await), (Some(0.0), vec![]));
}

#[tokio::test]
async fn host_on_sqlite_leads_without_a_heartbeat() {
    let host = TestHost::start(Engine::Sqlite).await;
    let listed = host.app.store.hosts().await.unwrap();
    assert_eq!(listed.iter().map(|host| (host.state, host.leads)).collect::<Vec<_>>(), [(HostState::Alive, true)]);
}
