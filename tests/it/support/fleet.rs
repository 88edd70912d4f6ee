//! Several hosts on one PostgreSQL database: each is made of its configuration alone, with a folder, a copy of the key file
//! and a clock of its own. The database has a clock as well.

use std::time::Duration;

use chrono::TimeDelta;
use culvert::config::Config;
use culvert_domain::fleet::AUTHORITY;
use culvert_service::jobs::heartbeat;
use culvert_wire::clock::Clock;
use serde_json::json;
use uuid::Uuid;

use super::api::Api;
use super::cable::Cable;
use super::host::{Engine, TestHost, start_of_time};

/// How far time passes at once.
const STEP: Duration = Duration::from_secs(3);

pub struct TestFleet {
    pub hosts: Vec<TestHost>,
    database: Clock,
    /// How long nodes serve without the database.
    authority: Duration,
}

/// What a load balancer is answered, and the operator.
pub async fn readiness(host: &TestHost) -> u16 {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let ask = async |address| client.get(format!("http://{address}/readyz")).send().await.unwrap().status().as_u16();
    let (balancer, operator) = (ask(host.address).await, ask(host.admin_address).await);
    assert_eq!(balancer, operator);
    balancer
}

impl TestHost {
    /// Its first node.
    pub fn node_id(&self) -> Uuid {
        self.app.embedded.ids().next().unwrap()
    }

    /// A tunnel on its node, to a port of a device.
    pub async fn tunnel_here(&self, api: &Api, local_port: u16) -> Uuid {
        let tunnel = api.post("/tunnels", json!({"local_port": local_port})).await.data().clone();
        let (id, node) = (tunnel["id"].as_str().unwrap().parse().unwrap(), json!(self.node_id()));
        if tunnel["node"]["id"] != node {
            api.post(&format!("/tunnels/{id}/move"), json!({"node_id": node})).await.data();
        }
        id
    }
}

impl TestFleet {
    pub async fn start(count: usize) -> Self {
        Self::with_clocks(&vec![0; count]).await
    }

    /// Hosts that agents are told of, and the way to each of them.
    pub async fn reachable(count: usize) -> (Self, Vec<Cable>) {
        Self::reachable_with_authority(count, AUTHORITY).await
    }

    /// As [`TestFleet::reachable`], with nodes that serve for so long without the database.
    pub async fn reachable_with_authority(count: usize, authority: Duration) -> (Self, Vec<Cable>) {
        let mut fleet = Self::with_authority(&[], authority).await;
        let mut cables = Vec::new();
        for _ in 0..count {
            cables.push(fleet.add_reachable().await);
        }
        (fleet, cables)
    }

    /// One more host that agents are told of.
    pub async fn add_reachable(&mut self) -> Cable {
        let cable = Cable::to_nowhere().await;
        self.add(0, Some(cable.url.clone())).await;
        cable.lead_to(self.hosts.last().unwrap());
        cable
    }

    /// Hosts whose clocks are so many seconds ahead of the database's.
    pub async fn with_clocks(ahead: &[i64]) -> Self {
        Self::with_authority(ahead, AUTHORITY).await
    }

    /// As [`TestFleet::with_clocks`], with nodes that serve for so long without the database.
    pub async fn with_authority(ahead: &[i64], authority: Duration) -> Self {
        let database = Clock::manual(start_of_time());
        let mut fleet = Self { hosts: Vec::new(), database, authority };
        for seconds in ahead {
            fleet.add(*seconds, None).await;
        }
        fleet
    }

    /// As [`TestFleet::add_reachable`], with other settings.
    pub async fn add_reachable_with(&mut self, change: impl FnOnce(&mut Config)) -> Cable {
        let cable = Cable::to_nowhere().await;
        self.add_changed(0, Some(cable.url.clone()), change).await;
        cable.lead_to(self.hosts.last().unwrap());
        cable
    }

    /// One more host, with other settings.
    pub async fn add_with(&mut self, change: impl FnOnce(&mut Config)) {
        self.add_changed(0, None, change).await;
    }

    /// One more host, whose clock is so many seconds ahead.
    async fn add(&mut self, ahead: i64, agent_url: Option<String>) {
        self.add_changed(ahead, agent_url, |_| {}).await;
    }

    async fn add_changed(&mut self, ahead: i64, agent_url: Option<String>, change: impl FnOnce(&mut Config)) {
        let clock = Clock::manual_beside(start_of_time() + TimeDelta::seconds(ahead), self.database.clone());
        let first = self.hosts.first().map(|first| first.config().clone());
        let domain = format!("h{}.tunnel.localhost", self.hosts.len());
        let host = TestHost::with_clock(Engine::Postgres, clock, |config| {
            config.several_hosts = true;
            let file = config.data_dir.join("culvert.toml");
            std::fs::write(&file, "").unwrap();
            config.file = Some(file);
            config.agent_url = agent_url;
            config.node.domain = Some(domain);
            config.node_authority_seconds = self.authority.as_secs();
            if let Some(first) = first {
                config.database_url.clone_from(&first.database_url);
                let own = config.data_dir.join("secret.key");
                std::fs::copy(first.secret_key_file(), own).unwrap();
            }
            change(config);
        })
        .await;
        self.hosts.push(host);
    }

    /// Lets time pass at all hosts, and each do what is due.
    pub async fn pass(&self, time: Duration) {
        self.pass_without(time, &[]).await;
    }

    /// As [`TestFleet::pass`]; these hosts, by number, do not reach the database. Their nodes go on.
    pub async fn pass_without(&self, time: Duration, still: &[usize]) {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(STEP);
            left -= step;
            self.step(step, still).await;
        }
    }

    /// As [`TestFleet::pass`], in one step: hosts and agents are silent all the time.
    pub async fn leap(&self, time: Duration) {
        self.step(time, &[]).await;
    }

    async fn step(&self, time: Duration, still: &[usize]) {
        self.database.advance(time);
        for (number, host) in self.hosts.iter().enumerate() {
            host.clock.advance(time);
            if still.contains(&number) {
                host.app.embedded.tick().await;
            } else {
                heartbeat::beat(&host.app.jobs).await.unwrap();
                host.pass(Duration::ZERO).await;
            }
        }
    }

    /// Lets time pass in which no host reaches the database.
    pub async fn pass_without_database(&self, time: Duration) {
        let all: Vec<usize> = (0..self.hosts.len()).collect();
        self.pass_without(time, &all).await;
    }
}
