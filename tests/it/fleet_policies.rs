//! Policies of several hosts: one generation decides at all of them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use culvert::policies::{self, HostPlan};
use culvert_agent::ipc;
use culvert_domain::fleet::AUTHORITY;
use culvert_domain::session::EndReason;
use culvert_service::jobs::heartbeat;
use culvert_service::sessions;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::support::database::{WAITING_FOR_LOCKS, run, texts_of, until_there};
use crate::support::device::{Remote, TestDevice};
use crate::support::fleet::TestFleet;
use crate::support::host::{TestHost, within};
use crate::support::hostile::denying;
use crate::support::policies::{builtin, entry};

const OTHERS: [&str; 2] = ["plan-access", "validation"];

/// Three hosts that have heard of each other, and the key of an account.
async fn three_hosts() -> (TestFleet, String) {
    let fleet = TestFleet::start(3).await;
    fleet.pass(Duration::from_secs(3)).await;
    let key = fleet.hosts[0].person("ada").await.key;
    (fleet, key)
}

/// Writes a module that denies with this code, as long as `test_denied`, beside the configuration of a host.
fn denying_module(host: &TestHost, code: &str) -> PathBuf {
    let path = host.config().data_dir.join(format!("{code}.wasm"));
    std::fs::write(&path, denying(code)).unwrap();
    path
}

fn denies(host: &TestHost, code: &str) -> String {
    builtin(&OTHERS) + &entry("team-role", &denying_module(host, code), "")
}

fn shipped() -> String {
    builtin(&["plan-access", "team-role", "validation"])
}

/// What each host answers to whoever creates a tunnel, with the generation that has decided.
async fn creates(hosts: &[TestHost], key: &str) -> Vec<(String, String)> {
    let mut answers = Vec::new();
    for host in hosts {
        let answer = host.api(key).post("/tunnels", json!({"local_port": 80})).await;
        answers.push((answer.outcome(), answer.header("x-policy-generation").unwrap().to_owned()));
    }
    answers
}

fn everywhere(outcome: &str, generation: &str) -> Vec<(String, String)> {
    vec![(outcome.to_owned(), generation.to_owned()); 3]
}

/// What the records of a host say of its id, and of the generations by their number.
fn recorded(host: &TestHost) -> (BTreeSet<String>, BTreeSet<(u64, String)>) {
    host.app.policies.close();
    let text = std::fs::read_to_string(host.config().decisions.file.as_ref().unwrap()).unwrap();
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let ids = records.iter().map(|record| text(&record["host_id"])).collect();
    let generation = |record: &Value| (record["generation"].as_u64().unwrap(), text(&record["generation_sha256"]));
    (ids, records.iter().map(generation).collect())
}

/// Starts a tunnel at its device while another host has this generation decide. `db::DECISIONS` is the lock.
async fn start_while(url: &str, device: &TestDevice, tunnel: &str, generation: u64) -> ipc::Reply {
    let mut other = PgConnection::connect(url).await.unwrap();
    let activate = format!(
        "BEGIN; SELECT pg_advisory_xact_lock(109355981996033); UPDATE cluster SET policy_generation = {generation}"
    );
    sqlx::raw_sql(AssertSqlSafe(activate)).execute(&mut other).await.unwrap();
    let activates = async {
        until_there(url, WAITING_FOR_LOCKS).await;
        sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    };
    within(20, async { tokio::join!(device.start_tunnel(tunnel), activates) }).await.0
}

/// What is started at a device, or resumed there, is decided by the policies that decide when it is written. Where its host does
/// not have them, it waits, and stays connected.
#[tokio::test]
async fn start_at_a_device_is_not_decided_by_former_policies() {
    let fleet = TestFleet::start(2).await;
    fleet.pass(Duration::from_secs(3)).await;
    let (ada, host) = (fleet.hosts[0].person("ada").await, &fleet.hosts[1]);
    let device = host.device_over(&host.cable().await, &ada, Remote::Enabled).await;
    let tunnel = fleet.hosts[0].tunnel_here(&fleet.hosts[0].api(&ada.key), 80).await.to_string();
    let url = host.config().database_url();
    let sessions = async || {
        let leases = host.app.store.leases_of_device(device.id).await.unwrap();
        leases.into_iter().map(|lease| lease.session_id).collect::<Vec<_>>()
    };
    host.configure(&shipped());
    assert_eq!(host.reload().await, Ok(2));
    let failure = start_while(&url, &device, &tunnel, 99).await.unwrap_err();
    assert_eq!(failure.code.as_str(), "policy_unavailable", "{failure:?}");
    assert_eq!(sessions().await, Vec::<Uuid>::new());
    run(&url, "UPDATE cluster SET policy_generation = 2").await;
    start_while(&url, &device, &tunnel, 1).await.unwrap();
    assert_eq!(host.app.service.policy_generation(), 1);

    run(&url, "UPDATE cluster SET policy_generation = 99").await;
    sessions::end_all(&host.app.store, ada.account_id, sessions().await, EndReason::NodeShutdown).await.unwrap();
    let heartbeat = async || {
        fleet.pass(Duration::from_secs(10)).await;
        device.clock.advance(Duration::from_secs(10));
        let heard = async || {
            let seen = host.app.service.liveness().last_seen_at(device.id);
            (seen == Some(host.clock.now())).then_some(())
        };
        host.until_found(heard).await;
    };
    for _ in 0..3 {
        heartbeat().await;
    }
    assert_eq!(sessions().await, Vec::<Uuid>::new());
    run(&url, "UPDATE cluster SET policy_generation = 1").await;
    for _ in 0..8 {
        heartbeat().await;
    }
    host.until_tunnel(&fleet.hosts[0].api(&ada.key), tunnel.parse().unwrap(), "running").await;
}

/// Hosts have different files. Records of one generation name the same policies everywhere, and the host that decided.
#[tokio::test]
async fn records_name_the_host_and_the_policies() {
    let mut fleet = TestFleet::start(0).await;
    for _ in 0..2 {
        fleet.add_with(|config| config.decisions.file = Some(config.data_dir.join("decisions.jsonl"))).await;
    }
    fleet.pass(Duration::from_secs(3)).await;
    let key = fleet.hosts[0].person("ada").await.key;
    creates(&fleet.hosts, &key).await;
    for (host, code) in fleet.hosts.iter().zip(["denied__one", "denied__two"]) {
        host.configure(&denies(host, code));
    }
    assert_eq!(fleet.hosts[1].reload().await, Ok(2));
    creates(&fleet.hosts, &key).await;
    let [(first_id, first), (second_id, second)] = [recorded(&fleet.hosts[0]), recorded(&fleet.hosts[1])];
    let id = |host: &TestHost| BTreeSet::from([host.node_id().to_string()]);
    assert_eq!((first_id, second_id), (id(&fleet.hosts[0]), id(&fleet.hosts[1])));
    assert_eq!(first.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(first, second);
}

/// Each host has another file. Once a reload has returned at one of them, all decide by its file.
#[tokio::test]
async fn reload_and_rollback_at_one_host_hold_at_all() {
    let (fleet, key) = three_hosts().await;
    let hosts = &fleet.hosts;
    assert_eq!(creates(hosts, &key).await, everywhere("201", "1"));
    for (host, code) in hosts.iter().zip(["denied__one", "denied__two", "denied_last"]) {
        host.configure(&denies(host, code));
    }
    assert_eq!(hosts[1].reload().await, Ok(2));
    assert_eq!(creates(hosts, &key).await, everywhere("403 denied__two", "2"));
    assert_eq!(hosts[2].reload().await, Ok(3));
    assert_eq!(creates(hosts, &key).await, everywhere("403 denied_last", "3"));
    // A host rolls back what another one has loaded.
    assert_eq!(hosts[0].rollback().await, Ok(4));
    assert_eq!(creates(hosts, &key).await, everywhere("403 denied__two", "4"));
    assert_eq!(hosts[1].rollback().await, Ok(5));
    assert_eq!(creates(hosts, &key).await, everywhere("201", "5"));
    let mut digests = Vec::new();
    for host in hosts {
        let status = host.policy_status().await;
        assert_eq!((&status["earlier"], &status["rolled_back"]), (&json!([]), &json!(true)));
        digests.push(status["digest"].clone());
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

/// A host that starts later decides by the rows, whatever its file names.
#[tokio::test]
async fn host_that_starts_decides_as_the_others_do() {
    let mut fleet = TestFleet::start(2).await;
    fleet.pass(Duration::from_secs(3)).await;
    let key = fleet.hosts[0].person("ada").await.key;
    fleet.hosts[0].configure(&denies(&fleet.hosts[0], "denied__one"));
    assert_eq!(fleet.hosts[0].reload().await, Ok(2));
    fleet.add_with(|config| config.default_plan = "pro".into()).await;
    assert_eq!(creates(&fleet.hosts, &key).await, everywhere("403 denied__one", "2"));
    assert_eq!(fleet.hosts[2].app.service.default_plan(), "self-hosted", "the plan belongs to the generation");
}

/// What one host cannot load decides nowhere, and the problem names the host.
#[tokio::test]
async fn policies_that_one_host_cannot_load_decide_nowhere() {
    let mut fleet = TestFleet::start(2).await;
    let key_file = fleet.hosts[0].config().data_dir.join("trusted.pem");
    std::fs::write(&key_file, "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n").unwrap();
    fleet.add_with(|config| config.policies.trusted_keys = vec![key_file.display().to_string()]).await;
    fleet.pass(Duration::from_secs(3)).await;
    let hosts = &fleet.hosts;
    let key = hosts[0].person("ada").await.key;
    hosts[0].configure(&denies(&hosts[0], "denied__one"));
    let app = &hosts[0].app;
    let plan = policies::plan(&app.service, &app.policies, app.config.file.as_deref()).await.unwrap();
    let refused = |host: &HostPlan| host.problem.as_deref().map(|problem| problem.contains("signature: is missing"));
    let mut refused: Vec<_> = plan.others.iter().map(refused).collect();
    refused.sort_unstable();
    assert_eq!(refused, [None, Some(true)]);
    let problem = hosts[0].reload().await.unwrap_err();
    assert!(problem.starts_with("host ") && problem.contains(": policy[2].signature: is missing"), "{problem}");
    assert_eq!(hosts[0].policy_status().await["last_failure"]["problem"], problem.as_str());
    assert_eq!(creates(hosts, &key).await, everywhere("201", "1"));
    // Nothing of it is left in the way.
    hosts[0].configure(&shipped());
    assert_eq!(hosts[0].reload().await, Ok(4));
    assert_eq!(creates(hosts, &key).await, everywhere("201", "4"));
}

/// A reload that its own host cannot load fails with that host's problem, and the proposed generation is removed.
#[tokio::test]
async fn policies_that_no_host_can_load_decide_nowhere() {
    let (fleet, key) = three_hosts().await;
    let hosts = &fleet.hosts;
    hosts[0].configure(&(shipped() + "settings = { reserved_subdomains = 1 }\n"));
    let problem = hosts[0].reload().await.unwrap_err();
    assert!(problem.starts_with("policy[2].settings.reserved_subdomains"), "{problem}");
    assert_eq!(hosts[0].policy_status().await["last_failure"]["problem"], problem.as_str());
    let generations = "SELECT CAST(number AS TEXT) AS text FROM policy_generations";
    assert_eq!(texts_of(&hosts[0].config().database_url(), generations).await, ["1"]);
    assert_eq!(creates(hosts, &key).await, everywhere("201", "1"));
    hosts[0].configure(&shipped());
    assert_eq!(hosts[0].reload().await, Ok(3));
    assert_eq!(creates(hosts, &key).await, everywhere("201", "3"));
}

/// A host that was away while others have loaded policies decides nothing by its old ones, from its first request on.
#[tokio::test]
async fn host_that_was_away_permits_nothing_by_older_policies() {
    let (fleet, key) = three_hosts().await;
    let hosts = &fleet.hosts;
    fleet.pass_without(Duration::from_secs(21), &[2]).await;
    hosts[0].configure(&denies(&hosts[0], "denied__one"));
    assert_eq!(hosts[0].reload().await, Ok(2), "nobody waits for a host that is not heard of");
    let away = hosts[2].api(&key).post("/tunnels", json!({"local_port": 80})).await;
    assert_eq!(away.outcome(), "503 service_unavailable");
    assert_eq!(hosts[2].app.policies.number(), 1);
    heartbeat::beat(&hosts[2].app.jobs).await.unwrap();
    assert_eq!(creates(hosts, &key).await, everywhere("403 denied__one", "2"));
}

/// A host whose word that it decides by a generation was lost says it again.
#[tokio::test]
async fn lost_confirmation_is_repeated() {
    let (fleet, _) = three_hosts().await;
    let hosts = &fleet.hosts;
    hosts[0].configure(&denies(&hosts[0], "denied__one"));
    let url = hosts[0].config().database_url();
    run(&url, "ALTER TABLE hosts ADD CONSTRAINT confirmed CHECK (policy_generation < 2)").await;
    hosts[0].reload().await.unwrap_err();
    let confirmed = "SELECT CAST(policy_generation AS TEXT) AS text FROM hosts";
    assert!(!texts_of(&url, confirmed).await.contains(&"2".to_owned()));
    run(&url, "ALTER TABLE hosts DROP CONSTRAINT confirmed").await;
    let all_have = async || {
        fleet.pass(Duration::from_secs(3)).await;
        let numbers = texts_of(&url, confirmed).await;
        if numbers.iter().all(|number| number == "2") { Ok(()) } else { Err(numbers) }
    };
    hosts[0].until_seen(all_have).await;
}

/// As where a failover has lost it with the last heartbeat.
#[tokio::test]
async fn confirmation_that_the_database_has_lost_is_repeated() {
    let (fleet, _) = three_hosts().await;
    let (host, other) = (&fleet.hosts[0], &fleet.hosts[1]);
    let id = host.app.service.fleet().host_id();
    let lost = format!("UPDATE hosts SET policy_generation = 0, lease_until = lease_until - 1000000 WHERE id = '{id}'");
    run(&host.config().database_url(), &lost).await;
    let of_others = async || {
        let stages = other.app.service.policies_of_hosts().await.unwrap();
        stages.into_iter().map(|(_, decides)| decides).min()
    };
    assert_eq!(of_others().await, Some(0));
    fleet.pass(Duration::from_secs(3)).await;
    other.until_found(async || (of_others().await == Some(1)).then_some(())).await;
}

/// Two reloads at once: both are told what came of theirs, and one generation decides in the end.
#[tokio::test]
async fn one_of_two_reloads_at_once_is_overtaken_or_comes_later() {
    let (fleet, key) = three_hosts().await;
    let hosts = &fleet.hosts;
    hosts[0].configure(&denies(&hosts[0], "denied__one"));
    hosts[1].configure(&denies(&hosts[1], "denied__two"));
    let (one, two) = tokio::join!(hosts[0].reload(), hosts[1].reload());
    let overtaken = "other policies came into use meanwhile; look at `culvert policy status`, and try once more";
    for outcome in [&one, &two] {
        assert!(outcome.as_ref().map_or_else(|problem| problem == overtaken, |_| true), "{outcome:?}");
    }
    let newest = one.clone().into_iter().chain(two.clone()).max().expect("one of them is first");
    let code = if one == Ok(newest) { "denied__one" } else { "denied__two" };
    assert_eq!(creates(hosts, &key).await, everywhere(&format!("403 {code}"), &newest.to_string()));
}

/// Reloads at random hosts while clients write at all of them: whoever asks after a reload has returned is answered by its
/// generation or a later one, and always as that generation decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_decided_by_a_generation_older_than_the_active_one() {
    let mut fleet = TestFleet::with_authority(&[], AUTHORITY).await;
    for _ in 0..3 {
        fleet
            .add_with(|config| {
                (config.rate_limit.per_minute, config.rate_limit.per_day) = (u32::MAX, u32::MAX);
            })
            .await;
    }
    fleet.pass(Duration::from_secs(3)).await;
    let hosts = &fleet.hosts;
    let ada = hosts[0].person("ada").await;
    for host in hosts {
        denying_module(host, "denied_even");
    }
    let (done, returned) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(1)));
    let clients: Vec<_> = hosts
        .iter()
        .map(|host| {
            let (api, done, returned) = (host.api(&ada.key), done.clone(), returned.clone());
            tokio::spawn(async move {
                let mut answers = 0;
                while !done.load(Ordering::SeqCst) {
                    let least = returned.load(Ordering::SeqCst);
                    let answer = api.post("/tunnels", json!({"local_port": 80})).await;
                    let generation: u64 = answer.header("x-policy-generation").unwrap().parse().unwrap();
                    let expected = if generation.is_multiple_of(2) { "403 denied_even" } else { "201" };
                    assert_eq!(answer.outcome(), expected, "generation {generation}");
                    assert!(generation >= least, "{generation} after {least}");
                    if answer.status == 201 {
                        let path = format!("/tunnels/{}", answer.id());
                        let deleted = api.delete(&path).await.outcome();
                        assert!(["200", "403 denied_even"].contains(&&deleted[..]), "{deleted}");
                    }
                    answers += 1;
                }
                answers
            })
        })
        .collect();
    for generation in 2..=41_u64 {
        let host = &hosts[generation as usize * 7 % 3];
        let policies = if generation.is_multiple_of(2) { denies(host, "denied_even") } else { shipped() };
        host.configure(&policies);
        assert_eq!(host.reload().await, Ok(generation));
        returned.store(generation, Ordering::SeqCst);
    }
    done.store(true, Ordering::SeqCst);
    for client in clients {
        assert!(client.await.unwrap() > 0);
    }
}
