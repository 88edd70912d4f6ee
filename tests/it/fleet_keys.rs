//! The keys of several hosts: they are replaced while all of them serve.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use culvert_service::fleet::EndCause;
use culvert_service::jobs::heartbeat;
use culvert_service::secrets::Secrets;
use serde_json::json;

use crate::support::database::run;
use crate::support::device::Remote;
use crate::support::fleet::TestFleet;
use crate::support::host::{Engine, TestHost};
use crate::support::program::{Place, command_at, fails_at};
use crate::support::visitor::echo_service;

/// Adds key v2 to the file of a host. As long as others run, it is not used when the host is started with it.
async fn start_with_second_key(fleet: &mut TestFleet, position: usize) {
    let host = fleet.hosts.remove(position);
    let mut file = OpenOptions::new().append(true).open(host.config().secret_key_file()).unwrap();
    writeln!(file, "v2:{}", STANDARD.encode([7; 32])).unwrap();
    fleet.hosts.insert(position, host.restart().await);
    fleet.pass(Duration::from_secs(3)).await;
}

/// The number of the key that a host uses.
fn key_of(host: &TestHost) -> u8 {
    host.app.secrets.current_number()
}

const ACTIVATE: &[&str] = &["secrets", "activate"];

/// Nothing that one host makes is refused by another one, whichever of them has heard of the new key.
#[tokio::test]
async fn key_is_replaced_while_all_hosts_serve() {
    let mut fleet = TestFleet::start(2).await;
    fleet.pass(Duration::from_secs(3)).await;
    start_with_second_key(&mut fleet, 0).await;
    let refused = fails_at(&fleet.hosts[0], ACTIVATE).await;
    assert!(refused.contains("hosts that were not started with key v2 of this secret_key_file: "), "{refused}");
    assert!(
        command_at(&fleet.hosts[1], &["host", "list", "--json"])
            .await
            .contains(r#""different_settings":["secret_key_file"]"#)
    );
    start_with_second_key(&mut fleet, 1).await;
    let reseal = fails_at(&fleet.hosts[0], &["secrets", "reseal"]).await;
    assert!(reseal.contains("`culvert secrets activate`"), "{reseal}");
    assert_eq!(fleet.hosts.iter().map(key_of).collect::<Vec<_>>(), [1, 1]);

    let ada = fleet.hosts[0].person("ada").await;
    let mut devices = Vec::new();
    for host in &fleet.hosts {
        devices.push(host.device_over(&host.cable().await, &ada, Remote::Enabled).await);
    }
    assert_eq!(command_at(&fleet.hosts[0], ACTIVATE).await, "all hosts use key v2 within three seconds\n");
    heartbeat::beat(&fleet.hosts[0].app.jobs).await.unwrap();
    assert_eq!(fleet.hosts.iter().map(key_of).collect::<Vec<_>>(), [2, 1]);
    // A token of each host at the node of the other one.
    for (at, device) in devices.iter().enumerate() {
        let (here, there) = (&fleet.hosts[at], &fleet.hosts[1 - at]);
        let api = here.api(&ada.key);
        let tunnel = there.tunnel_here(&api, echo_service().await.port()).await;
        here.run_tunnel(&api, device, tunnel).await;
        there.visitor(&api, tunnel).await;
    }
    // What the one has made with the new key, the other one takes.
    let [first, second] = [0, 1].map(|at| fleet.hosts[at].api(&ada.key));
    let page = first.get("/tunnels?limit=1").await;
    let next = format!("/tunnels?limit=1&cursor={}", page.body["meta"]["next_cursor"].as_str().unwrap());
    assert_eq!(second.get(&next).await.outcome(), "200");

    fleet.pass(Duration::from_secs(3)).await;
    assert_eq!(fleet.hosts.iter().map(key_of).collect::<Vec<_>>(), [2, 2]);
    let again = command_at(&fleet.hosts[1], ACTIVATE).await;
    assert_eq!(again, "key v2, the newest one of secret_key_file here, is in use already; nothing was changed\n");
    assert!(command_at(&fleet.hosts[1], &["secrets", "reseal"]).await.starts_with("sealed anew: "));
    let first = fleet.hosts.remove(0).restart().await;
    assert_eq!(key_of(&first), 2);
    let (url, keys) = (first.config().database_url.clone(), first.config().secret_key_file());
    let of_before = std::fs::read_to_string(keys).unwrap().lines().next().unwrap().to_owned();
    let other = format!("{of_before}\nv2:{}\n", STANDARD.encode([8; 32]));
    for (file, problem) in [
        (Some(&*of_before), "it has no key v2, which the database's hosts use; copy the file of one that has it"),
        (
            Some(&*other),
            "none of its keys opens what the database holds; bring back the file that belongs to it, or copy that of another host",
        ),
        (
            Some("\n"),
            "there is no key in it, and the database holds what was sealed with one; bring it back, or copy that of another host",
        ),
        (
            None,
            "it is not there, and the database holds what was sealed with it; bring it back, or copy that of another host",
        ),
    ] {
        let without = TestHost::try_start(Engine::Postgres, first.clock.clone(), |config| {
            config.several_hosts = true;
            config.database_url.clone_from(&url);
            let path = config.secret_key_file();
            file.map_or_else(|| std::fs::remove_file(&path), |file| std::fs::write(&path, file)).unwrap();
        });
        let refused = without.await.err().unwrap();
        assert!(refused.starts_with("secret_key_file: ") && refused.ends_with(problem), "{refused}");
    }
}

/// As where a file with the new key was not copied to all hosts before the whole fleet was started again.
#[tokio::test]
async fn host_without_the_key_of_the_others_ends() {
    let fleet = TestFleet::start(2).await;
    let host = &fleet.hosts[0];
    let path = host.config().data_dir.join("other.key");
    std::fs::write(&path, format!("v2:{}\n", STANDARD.encode([7; 32]))).unwrap();
    let check = Secrets::open(&path, &host.clock).unwrap().check();
    let set = host.app.store.write(None, move |write| Box::pin(async move { write.set_key_check(&check).await }));
    set.await.unwrap();
    heartbeat::beat(&host.app.jobs).await.unwrap();
    assert_eq!(host.app.service.fleet().until_it_ends().await, EndCause::KeyMissing(2));
}

/// A database that was put back to before the start of a host, as an asynchronous failover does, knows nothing of its process.
#[tokio::test]
async fn host_that_the_database_does_not_know_ends() {
    let place = Place::new(Engine::Postgres).await;
    let host = place.serve().await;
    run(&place.database_url(), "DELETE FROM hosts").await;
    assert_eq!(host.ended().await, Some(2));
    let again = place.serve().await;
    assert_eq!(place.json("culvert host list").await["data"][0]["state"], json!("alive"));
    assert_eq!(again.interrupt().await, Some(0));
}

/// A host on SQLite is alone.
#[tokio::test]
async fn key_of_a_host_on_sqlite_is_used_when_it_starts() {
    let host = TestHost::start(Engine::Sqlite).await;
    let refused = fails_at(&host, ACTIVATE).await;
    assert!(
        refused.contains("on SQLite, the host uses the newest key of secret_key_file when it is started"),
        "{refused}"
    );
}
