//! Agents that know of several hosts.

use std::time::Duration;

use culvert_agent::ipc::{self, Answer, Request, Status};
use culvert_wire::control::{Done, ToAgent};
use serde_json::json;

use crate::support::cable::Cable;
use crate::support::database::run;
use crate::support::device::{Remote, TestDevice};
use crate::support::fleet::TestFleet;

/// How often the agents' hosts heard of each other.
const BEAT: Duration = Duration::from_secs(3);

impl TestDevice {
    /// The hosts that it keeps on disk.
    fn hosts(&self) -> Vec<String> {
        let mut hosts: Vec<String> = self.state.read("hosts.json").unwrap().unwrap_or_default();
        hosts.sort();
        hosts
    }

    /// Waits until it keeps these hosts.
    async fn until_told_of(&self, cables: &[&Cable]) {
        let mut urls: Vec<_> = cables.iter().map(|cable| cable.url.clone()).collect();
        urls.sort();
        self.until(async || {
            self.status().await;
            self.hosts() == urls
        })
        .await;
    }
}

/// Waits until an agent is connected, which comes to the host at the end of a cut cable first or last.
async fn until_past(device: &TestDevice, cut: &Cable, dials: u32) {
    device.until(async || cut.dials() > dials || is_connected(device).await).await;
    // The next attempt begins a quarter of a second later.
    device.clock.advance(Duration::from_millis(250));
    device.until_connected().await;
}

async fn is_connected(device: &TestDevice) -> bool {
    // Before the agent listens, the answer comes at once.
    tokio::task::yield_now().await;
    let status = ipc::ask(&device.state, &Request::Status).await.unwrap();
    matches!(status, Some(Ok(Answer::Status(Status { connected: true, .. }))))
}

/// Which host an agent is connected to.
async fn found(device: &TestDevice, cables: &[Cable]) -> usize {
    let server = device.status().await.server;
    cables.iter().position(|cable| cable.url == server).unwrap()
}

#[tokio::test]
async fn agent_whose_host_is_silent_finds_another() {
    let (fleet, cables) = TestFleet::reachable(3).await;
    fleet.pass(BEAT).await;
    let ada = fleet.hosts[0].person("ada").await;
    let device = fleet.hosts[0].device_over(&cables[0], &ada, Remote::Enabled).await;
    device.until_told_of(&[&cables[0], &cables[1], &cables[2]]).await;
    cables[0].cut();
    // A frame from before may be on its way to it still.
    let is_silent = async || {
        device.clock.advance(Duration::from_secs(1));
        !is_connected(&device).await
    };
    device.until(is_silent).await;
    until_past(&device, &cables[0], 1).await;
    let other = found(&device, &cables).await;
    assert_ne!(other, 0);
    let seen = fleet.hosts[other].api(&ada.key).get(&format!("/devices/{}", device.id)).await;
    assert_eq!(seen.data()["online"], true);
}

#[tokio::test]
async fn agent_is_told_of_hosts_that_come_and_keeps_them_over_a_restart() {
    let (mut fleet, mut cables) = TestFleet::reachable(1).await;
    let ada = fleet.hosts[0].person("ada").await;
    let device = fleet.hosts[0].device_over(&cables[0], &ada, Remote::Enabled).await;
    device.until_told_of(&[&cables[0]]).await;
    cables.push(fleet.add_reachable().await);
    fleet.pass(BEAT).await;
    device.until_told_of(&[&cables[0], &cables[1]]).await;
    let (folder, state) = device.shut_down().await;
    cables[0].cut();
    let device = TestDevice::again(folder, state);
    until_past(&device, &cables[0], 1).await;
    assert_eq!(found(&device, &cables).await, 1);
}

#[tokio::test]
async fn agent_passes_over_a_host_that_the_database_has_not_heard_of() {
    let (fleet, cables) = TestFleet::reachable(2).await;
    fleet.pass(BEAT).await;
    let ada = fleet.hosts[0].person("ada").await;
    let mut device = fleet.hosts[0].device_over(&cables[0], &ada, Remote::Enabled).await;
    device.until_told_of(&[&cables[0], &cables[1]]).await;
    fleet.pass_without(Duration::from_secs(15), &[0]).await;
    // The order of the attempts is by chance.
    for _ in 0..8 {
        let (folder, state) = device.kill().await;
        device = TestDevice::again(folder, state);
        device.until_connected().await;
        assert_eq!(found(&device, &cables).await, 1);
    }
}

/// A host that could not say that an agent has left it goes on to watch the time, and ends nothing that the agent renews at
/// another host.
#[tokio::test]
async fn lease_that_is_renewed_at_another_host_is_not_ended() {
    let fleet = TestFleet::start(2).await;
    fleet.pass(BEAT).await;
    let [first, second] = &fleet.hosts[..] else { panic!("two hosts") };
    let ada = first.person("ada").await;
    let api = first.api(&ada.key);
    let tunnel = first.tunnel_here(&api, 80).await;
    let (device, mut wire) = first.wired(&ada, ada.account_id).await;
    api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.id();
    let lease = wire.obey(Done::Start).await.unwrap().lease_id;
    assert_eq!(wire.renew(&[lease]).await, [lease]);
    let url = first.config().database_url();
    run(&url, "ALTER TABLE device_presence ADD CONSTRAINT left_by CHECK (host_id IS NOT NULL)").await;
    wire.hang_up().await;
    first.until_found(async || (first.metric("culvert_agents_connected").await == Some(0.0)).then_some(())).await;
    let mut again = second.connect(&device, |hello| hello.lease_ids = vec![lease]).await.unwrap();
    for _ in 0..5 {
        assert_eq!(again.renew(&[lease]).await, [lease]);
        fleet.pass(Duration::from_secs(9)).await;
    }
    assert_eq!(api.get(&format!("/tunnels/{tunnel}")).await.data()["status"], "running");
}

/// An agent may have gone to another host by the time that one lets it in. The host that it stays with says so at once, and
/// does not wait for its next report: the agent connects again, and nobody takes it for offline.
#[tokio::test]
async fn host_hears_at_once_that_another_one_has_let_its_agent_in() {
    let fleet = TestFleet::start(2).await;
    fleet.pass(BEAT).await;
    let [first, second] = &fleet.hosts[..] else { panic!("two hosts") };
    let ada = first.person("ada").await;
    let (device, mut stays) = first.wired(&ada, ada.account_id).await;
    let late = second.connect(&device, |_| {}).await.unwrap();
    assert!(matches!(stays.next().await, Some(ToAgent::Goodbye { .. })));
    drop(late);
    let _again = first.connect(&device, |_| {}).await.unwrap();
    fleet.pass(BEAT).await;
    let seen = first.api(&ada.key).get(&format!("/devices/{}", device.id)).await;
    assert_eq!(seen.data()["online"], true);
}

#[tokio::test]
async fn host_that_ended_is_named_for_a_day() {
    let (mut fleet, cables) = TestFleet::reachable(2).await;
    fleet.pass(BEAT).await;
    let ada = fleet.hosts[0].person("ada").await;
    let device = fleet.hosts[0].device_over(&cables[0], &ada, Remote::Enabled).await;
    fleet.hosts.pop().unwrap().stop().await;
    fleet.pass(BEAT).await;
    device.until_told_of(&[&cables[0], &cables[1]]).await;
    fleet.leap(Duration::from_hours(24)).await;
    device.until_told_of(&[&cables[0]]).await;
}
