//! Several hosts on one PostgreSQL, with agents: the real programs, each at an address of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use reqwest::Client;
use serde_json::{Value, json};
use sqlx::PgPool;
use tempfile::TempDir;
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::service::{Killed, programs, until};

pub struct Fleet {
    pub hosts: Vec<FleetHost>,
    pub agents: Vec<FleetAgent>,
    pub key: String,
    email: String,
    /// What tunnels lead to.
    local_port: u16,
    pub database: PgPool,
    http: Client,
    programs: PathBuf,
    database_url: String,
    keys: PathBuf,
}

pub struct FleetHost {
    pub address: String,
    pub node_id: String,
    folder: TempDir,
    process: Option<Killed>,
    reach: Reach,
}

/// How agents find other hosts than the one that they enrolled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// They are told of all.
    All,
    /// They stay where they are.
    Own,
}

/// A service that takes connections; its port.
async fn accept_all() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    port
}

pub struct FleetAgent {
    pub device_id: String,
    _folder: TempDir,
    _process: Killed,
}

impl FleetHost {
    pub fn url(&self, path: &str) -> String {
        format!("http://{}:8080/v2/{path}", self.address)
    }

    fn command(&self, fleet: &Fleet) -> Command {
        let address = &self.address;
        let mut command = Command::new(fleet.programs.join("culvert"));
        command.current_dir(self.folder.path()).env("HOME", self.folder.path());
        command.env("CULVERT_SECRET_KEY_FILE", &fleet.keys);
        for (name, value) in [
            ("CULVERT_DATABASE_URL", fleet.database_url.clone()),
            ("CULVERT_DATABASE__MIGRATE", "auto".into()),
            ("CULVERT_LISTEN", format!("{address}:8080")),
            ("CULVERT_ADMIN_LISTEN", format!("{address}:9180")),
            ("CULVERT_METRICS_OPEN", "true".into()),
            ("CULVERT_DASHBOARD__ENABLED", "false".into()),
            ("CULVERT_DRAIN__SECONDS", "0".into()),
            ("CULVERT_NODE__LISTEN", format!("{address}:7835")),
            ("CULVERT_NODE__BIND", address.clone()),
            ("CULVERT_NODE__HOSTNAME", address.clone()),
            ("CULVERT_NODE__HTTP_LISTEN", "off".into()),
            ("CULVERT_NODE__HTTPS_LISTEN", "off".into()),
            ("CULVERT_RATE_LIMIT__PER_MINUTE", "10000000".into()),
            ("CULVERT_RATE_LIMIT__PER_DAY", "100000000".into()),
        ] {
            command.env(name, value);
        }
        let fleet = if self.reach == Reach::All {
            command.env("CULVERT_AGENT_URL", format!("http://{address}:8080"));
            "all"
        } else {
            "own"
        };
        // A node of the same domain that was killed may serve still.
        command.env("CULVERT_NODE__DOMAIN", format!("h{}.{fleet}.localhost", address.replace('.', "-")));
        command
    }
}

impl Fleet {
    /// Starts so many hosts on a database, which is empty or has the keys of this file.
    pub async fn start(database_url: &str, keys: &Path, count: u8, reach: Reach) -> Self {
        let (programs, http) = (programs(), Client::builder().no_proxy().build().unwrap());
        let database = PgPool::connect(database_url).await.unwrap();
        let mut fleet = Self {
            hosts: Vec::new(),
            agents: Vec::new(),
            key: String::new(),
            email: String::new(),
            local_port: accept_all().await,
            database,
            http,
            programs,
            database_url: database_url.into(),
            keys: keys.into(),
        };
        for number in 1..=count {
            let (address, folder) = (format!("127.0.79.{number}"), tempfile::tempdir().unwrap());
            fleet.hosts.push(FleetHost { address, folder, node_id: String::new(), process: None, reach });
            fleet.serve(usize::from(number) - 1).await;
        }
        let first = &fleet.hosts[0];
        let email = format!("bench-{}@example.com", Uuid::new_v4());
        fleet.run(first, &format!("account create --email {email} --name Bench"));
        let key = fleet.run(first, &format!("key create --account {email} --scopes full_access"));
        fleet.email = email;
        key["key"].as_str().unwrap().clone_into(&mut fleet.key);
        fleet
    }

    /// Starts a host, or starts it again.
    pub async fn serve(&mut self, number: usize) {
        let host = &self.hosts[number];
        let process = Killed::spawn(host.command(self).arg("serve"));
        let ready = format!("http://{}:9180/readyz", host.address);
        until(async || self.http.get(&ready).send().await.is_ok_and(|answer| answer.status().is_success())).await;
        let listed = self.run(&self.hosts[number], "node list");
        let own = listed["data"].as_array().unwrap().iter().find(|node| node["hostname"] == host.address.as_str());
        let node_id = own.unwrap()["id"].as_str().unwrap().to_owned();
        let host = &mut self.hosts[number];
        (host.process, host.node_id) = (Some(process), node_id);
    }

    /// Kills a host (SIGKILL).
    pub fn kill(&mut self, number: usize) {
        self.hosts[number].process = None;
    }

    /// Stops a host in order.
    pub fn stop(&mut self, number: usize) {
        let process = self.hosts[number].process.take().unwrap();
        process.terminate();
    }

    /// An operator's command, on the machine of a host.
    pub fn run(&self, host: &FleetHost, line: &str) -> Value {
        let mut command = host.command(self);
        let output = command.args(line.split_whitespace()).arg("--json").output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Enrols an agent with a host, which it can be controlled by, and starts it.
    pub async fn add_agent(&mut self, number: usize) {
        let host = &self.hosts[number];
        let code = self.run(host, &format!("device code --account {}", self.email));
        let folder = tempfile::tempdir().unwrap();
        let agent = |line: &str| {
            let mut command = Command::new(self.programs.join("culvert-agent"));
            command.current_dir(folder.path()).env("HOME", folder.path()).args(line.split_whitespace());
            command
        };
        let (url, code) = (format!("http://{}:8080", host.address), code["code"].as_str().unwrap());
        let output = agent(&format!("enroll --server {url} --code {code} --json")).output().unwrap();
        let device: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(agent("remote-control enable --json").output().unwrap().status.success());
        let device_id = device["device_id"].as_str().unwrap().to_owned();
        let process = Killed::spawn(&mut agent("run"));
        let path = format!("devices/{device_id}");
        until(async || self.get(host, &path).await["remote_control_enabled"] == true).await;
        self.agents.push(FleetAgent { device_id, _folder: folder, _process: process });
    }

    pub async fn get(&self, host: &FleetHost, path: &str) -> Value {
        let request = self.http.get(host.url(path)).bearer_auth(&self.key);
        request.send().await.unwrap().json::<Value>().await.unwrap()["data"].clone()
    }

    pub async fn post(&self, host: &FleetHost, path: &str, body: Value) -> Value {
        let request = self.http.post(host.url(path)).bearer_auth(&self.key);
        let request = request.header("idempotency-key", Uuid::new_v4().to_string()).json(&body);
        request.send().await.unwrap().json::<Value>().await.unwrap()["data"].clone()
    }

    /// A tunnel on the node of a host.
    pub async fn tunnel_on(&self, host: &FleetHost) -> String {
        let tunnel =
            self.post(host, "tunnels", json!({"local_host": "127.0.0.1", "local_port": self.local_port})).await;
        let id = tunnel["id"].as_str().unwrap().to_owned();
        if tunnel["node"]["id"] != host.node_id.as_str() {
            self.post(host, &format!("tunnels/{id}/move"), json!({"node_id": host.node_id})).await;
        }
        id
    }

    /// Has an agent start or stop a tunnel: how long it took until the agent had heard of it, and until it has succeeded.
    pub async fn act(
        &self,
        asked: &FleetHost,
        agent: &FleetAgent,
        tunnel: &str,
        action: &str,
    ) -> Option<[Duration; 2]> {
        let body = if action == "start" { json!({"device_id": agent.device_id}) } else { json!({}) };
        let began = Instant::now();
        let operation = self.post(asked, &format!("tunnels/{tunnel}/actions/{action}"), body).await;
        let path = format!("operations/{}", operation["id"].as_str()?);
        let mut claimed = None;
        loop {
            let operation = self.get(asked, &path).await;
            let status = operation["status"].as_str()?;
            if status != "queued" {
                claimed.get_or_insert(began.elapsed());
            }
            match status {
                "succeeded" => return Some([claimed?, began.elapsed()]),
                "failed" | "canceled" => return None,
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }

    /// A metric of a host, of all its labels together.
    pub async fn metric(&self, host: &FleetHost, name: &str) -> f64 {
        let answer = self.http.get(format!("http://{}:9180/metrics", host.address)).send().await.unwrap();
        let text = answer.text().await.unwrap();
        let values = text.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
        values.map(|value| value.parse::<f64>().unwrap()).sum()
    }

    /// Has a host read its configuration again, and all take its policies over.
    pub async fn reload(&self, host: &FleetHost, configuration: &str) -> Duration {
        std::fs::write(host.folder.path().join("culvert.toml"), configuration).unwrap();
        let token = std::fs::read_to_string(host.folder.path().join("culvert-data/admin.token")).unwrap();
        let request = self.http.post(format!("http://{}:9180/policies/reload", host.address)).bearer_auth(token.trim());
        let began = Instant::now();
        let answer = request.send().await.unwrap();
        let took = began.elapsed();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        took
    }

    /// Whether it was deleted.
    pub async fn delete(&self, host: &FleetHost, path: &str) -> bool {
        let request = self.http.delete(host.url(path)).bearer_auth(&self.key);
        let request = request.header("idempotency-key", Uuid::new_v4().to_string());
        request.send().await.unwrap().status().is_success()
    }
}
