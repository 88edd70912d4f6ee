//! The real programs, as a newcomer starts them, built as operators install them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use culvert_wire::quic;
use reqwest::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::UdpSocket;
use uuid::Uuid;

use crate::server::{cpu, resident};

pub const ADDRESS: &str = "127.0.77.1";

/// A host and an agent, which is connected and lets itself be controlled from afar.
pub struct Service {
    programs: PathBuf,
    folder: TempDir,
    settings: Vec<(String, String)>,
    key: String,
    device_id: String,
    http: Client,
    host: Killed,
    agent: Killed,
}

/// A process that does not outlive its owner.
pub struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Killed {
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Asks it to stop (SIGTERM), and waits until it has.
    pub fn terminate(mut self) {
        let sent = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let _ = self.0.wait();
    }

    /// Resident memory in MiB.
    pub fn resident(&self) -> f64 {
        resident(&self.0)
    }

    /// CPU seconds that it has used.
    pub fn cpu(&self) -> f64 {
        cpu(&self.0)
    }
}

impl Service {
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// With other settings of the host, given as environment variables.
    pub async fn with(settings: &[(&str, &str)]) -> Self {
        let programs = programs();
        let folder = tempfile::tempdir().unwrap();
        let settings: Vec<_> = settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let http = Client::builder().no_proxy().build().unwrap();
        let host = serve(&programs, &folder, &settings);
        until_ready(&http).await;
        let run = |program: &str, line: &str| {
            let output = command(&programs, &folder, program).args(line.split_whitespace()).output().unwrap();
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        };
        run("culvert", "account create --email bench@example.com --name Bench --json");
        let key = run("culvert", "key create --account bench@example.com --scopes full_access --json");
        let code = run("culvert", "device code --account bench@example.com --json");
        let code = code["code"].as_str().unwrap();
        let device = run("culvert-agent", &format!("enroll --server http://{ADDRESS}:8080 --code {code} --json"));
        run("culvert-agent", "remote-control enable --json");
        let agent = Killed::spawn(command(&programs, &folder, "culvert-agent").arg("run"));
        let service = Self {
            key: key["key"].as_str().unwrap().into(),
            device_id: device["device_id"].as_str().unwrap().into(),
            programs,
            folder,
            settings,
            http,
            host,
            agent,
        };
        let path = format!("devices/{}", service.device_id);
        until(async || service.get(&path).await["remote_control_enabled"] == true).await;
        service
    }

    /// Starts a tunnel to a port at [`ADDRESS`]; its public port.
    pub async fn tunnel(&self, port: u16) -> u16 {
        self.tunnel_of("tcp", port).await
    }

    /// As [`Service::tunnel`], for datagrams.
    pub async fn udp_tunnel(&self, port: u16) -> u16 {
        self.tunnel_of("udp", port).await
    }

    async fn tunnel_of(&self, protocol: &str, port: u16) -> u16 {
        let tunnel = json!({"protocol": protocol, "local_host": ADDRESS, "local_port": port});
        let tunnel = self.post("tunnels", tunnel).await;
        self.start_tunnel(&tunnel).await;
        u16::try_from(tunnel["remote_port"].as_u64().unwrap()).unwrap()
    }

    /// Starts an http tunnel to a port at [`ADDRESS`], reached at port 8081 by its name.
    pub async fn web_tunnel(&self, port: u16) -> String {
        self.web_tunnel_of(json!({"local_port": port})).await
    }

    /// As [`Service::web_tunnel`], with these fields.
    pub async fn web_tunnel_of(&self, mut fields: Value) -> String {
        for (name, value) in
            [("protocol", json!("http")), ("http_ssl_enabled", json!(false)), ("local_host", json!(ADDRESS))]
        {
            fields[name] = value;
        }
        let tunnel = self.post("tunnels", fields).await;
        self.start_tunnel(&tunnel).await;
        tunnel["public_address"]["hostname"].as_str().unwrap().into()
    }

    async fn start_tunnel(&self, tunnel: &Value) {
        let id = tunnel["id"].as_str().unwrap();
        self.post(&format!("tunnels/{id}/actions/start"), json!({"device_id": self.device_id})).await;
        until(async || self.get(&format!("tunnels/{id}")).await["status"] == "running").await;
    }

    /// Kills the host, starts it again, and waits until it is ready.
    pub async fn kill_and_restart_host(&mut self) {
        // The new one finds its ports free.
        let _ = (self.host.0.kill(), self.host.0.wait());
        self.host = serve(&self.programs, &self.folder, &self.settings);
        until_ready(&self.http).await;
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn host(&self) -> &Killed {
        &self.host
    }

    pub fn agent(&self) -> &Killed {
        &self.agent
    }

    /// What else is to be run beside it, in its folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A code for one enrolment.
    pub fn device_code(&self) -> String {
        let mut code = command(&self.programs, &self.folder, "culvert");
        let output = code.args(["device", "code", "--account", "bench@example.com", "--json"]).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["code"].as_str().unwrap().to_owned()
    }

    pub async fn get(&self, path: &str) -> Value {
        let request = self.http.get(format!("http://{ADDRESS}:8080/v2/{path}")).bearer_auth(&self.key);
        request.send().await.unwrap().json::<Value>().await.unwrap()["data"].clone()
    }

    pub async fn post(&self, path: &str, body: Value) -> Value {
        let request = self.http.post(format!("http://{ADDRESS}:8080/v2/{path}")).bearer_auth(&self.key);
        let request = request.header("idempotency-key", Uuid::new_v4().to_string()).json(&body);
        request.send().await.unwrap().json::<Value>().await.unwrap()["data"].clone()
    }
}

/// Builds the programs as operators install them, unless `BENCH_PROGRAMS` names a folder that has them.
pub fn programs() -> PathBuf {
    if let Ok(folder) = std::env::var("BENCH_PROGRAMS") {
        return folder.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--profile", "dist", "-p", "culvert", "-p", "culvert-agent"]).current_dir(&root);
    assert!(build.status().unwrap().success());
    root.join("target/dist").canonicalize().unwrap()
}

fn serve(programs: &Path, folder: &TempDir, settings: &[(String, String)]) -> Killed {
    let mut host = command(programs, folder, "culvert");
    Killed::spawn(host.envs(settings.iter().map(|(name, value)| (name, value))).arg("serve"))
}

async fn until_ready(http: &Client) {
    let ready = format!("http://{ADDRESS}:9180/readyz");
    until(async || http.get(&ready).send().await.is_ok_and(|answer| answer.status().is_success())).await;
}

fn command(programs: &Path, folder: &TempDir, program: &str) -> Command {
    let mut command = Command::new(programs.join(program));
    command.current_dir(folder.path()).env("HOME", folder.path());
    for (name, value) in [
        ("CULVERT_LISTEN", format!("{ADDRESS}:8080")),
        ("CULVERT_DASHBOARD__ENABLED", "false".into()),
        ("CULVERT_ADMIN_LISTEN", format!("{ADDRESS}:9180")),
        ("CULVERT_NODE__LISTEN", format!("{ADDRESS}:7835")),
        ("CULVERT_NODE__BIND", ADDRESS.into()),
        ("CULVERT_NODE__HTTP_LISTEN", format!("{ADDRESS}:8081")),
        ("CULVERT_NODE__HTTPS_LISTEN", format!("{ADDRESS}:8443")),
        ("CULVERT_NODE__HOSTNAME", ADDRESS.into()),
        ("CULVERT_NODE__VISITORS_PER_TUNNEL", "20000".into()),
        ("CULVERT_NODE__VISITORS_PER_ADDRESS", "20000".into()),
    ] {
        command.env(name, value);
    }
    command
}

/// A service at [`ADDRESS`] that sends each datagram back. With the buffers that sockets have otherwise, it loses some of the
/// datagrams that come at once.
pub async fn echo_datagrams(port: u16) {
    let socket = quic::bind(SocketAddr::new(ADDRESS.parse().unwrap(), port)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let socket = UdpSocket::from_std(socket).unwrap();
    let mut space = vec![0; 65_536];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut space).await else { continue };
        let _ = socket.send_to(&space[..length], from).await;
    }
}

pub async fn until(mut look: impl AsyncFnMut() -> bool) {
    while !look().await {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
