//! Devices: the real agent, in this process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use culvert_agent::agent::{Agent, Exit, Setup};
use culvert_agent::carrier::TransportChoice;
use culvert_agent::consent::Consent;
use culvert_agent::device::{Device, DeviceKey};
use culvert_agent::ipc::{self, Answer, Request, Status};
use culvert_agent::state_dir::StateDir;
use culvert_agent::target::LinkLocal;
use culvert_agent::targets::Targets;
use culvert_domain::session::SESSION_LEASE;
use culvert_wire::allowed_target::AllowedTarget;
use culvert_wire::clock::Clock;
use culvert_wire::control::Capability;
use culvert_wire::enrolment::{ENROL_PATH, Enrol, Enrolled};
use culvert_wire::target::Target;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::api::Api;
use super::cable::Cable;
use super::host::{Person, TestHost, start_of_time, within};

/// A device whose agent runs.
pub struct TestDevice {
    pub id: Uuid,
    pub clock: Clock,
    pub state: StateDir,
    folder: Arc<TempDir>,
    stop: CancellationToken,
    running: JoinHandle<std::io::Result<Exit>>,
}

/// Whether a device lets itself be controlled from afar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    Enabled,
    Disabled,
}

impl TestHost {
    /// A new device of somebody, connected.
    pub async fn device(&self, owner: &Person, scope_id: Uuid, remote: Remote) -> TestDevice {
        self.device_at(&self.url(), self.clock.clone(), (owner, scope_id), remote).await
    }

    /// A new device of somebody, whose visitors come over what it has chosen.
    pub async fn device_by(&self, owner: &Person, remote: Remote, choice: TransportChoice) -> TestDevice {
        let device = self.enrol(owner, owner.account_id, &Capability::ALL).await;
        let device = TestDevice::start_by(device, remote, self.clock.clone(), choice);
        device.until_connected().await;
        device
    }

    /// A new device with a time of its own, at the end of a cable.
    pub async fn device_over(&self, cable: &Cable, owner: &Person, remote: Remote) -> TestDevice {
        let clock = Clock::manual(start_of_time());
        self.device_at(&cable.url, clock, (owner, owner.account_id), remote).await
    }

    async fn device_at(&self, server: &str, clock: Clock, whose: (&Person, Uuid), remote: Remote) -> TestDevice {
        let device = Device { server: server.into(), ..self.enrol(whose.0, whose.1, &Capability::ALL).await };
        let device = TestDevice::start(device, remote, clock);
        device.until_connected().await;
        device
    }

    /// Has a device start a tunnel, and waits until it runs.
    pub async fn run_tunnel(&self, api: &Api, device: &TestDevice, id: Uuid) {
        device.start_tunnel(&id.to_string()).await.unwrap();
        self.until_tunnel(api, id, "running").await;
    }

    /// A device that has enrolled and does not run.
    pub async fn enrol(&self, owner: &Person, scope_id: Uuid, capabilities: &[&str]) -> Device {
        let key = DeviceKey::generate(&self.clock);
        let code = self.device_code(owner.account_id, scope_id).await;
        let response = self.redeem(&code, &key, capabilities).await;
        let Enrolled { device_id, name } = response.json().await.unwrap();
        Device { id: device_id, name, server: self.url(), key }
    }

    /// Uses an enrolment code.
    pub async fn redeem(&self, code: &str, key: &DeviceKey, capabilities: &[&str]) -> reqwest::Response {
        let enrol = Enrol {
            code: code.into(),
            name: Some("machine".into()),
            platform: "test".into(),
            version: "1".into(),
            capabilities: capabilities.iter().map(ToString::to_string).collect(),
            public_key: key.public(),
        };
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        client.post(format!("{}{ENROL_PATH}", self.url())).json(&enrol).send().await.unwrap()
    }
}

impl TestDevice {
    /// Lets time pass in steps of 10 seconds, while the agent renews its lease and hears that it is renewed.
    pub async fn advance_with_leases(&self, host: &TestHost, tunnel: Uuid, seconds: u64) {
        for _ in 0..seconds / 10 {
            host.clock.advance(Duration::from_secs(10));
            host.until_renewed(tunnel).await;
            let whole = Some(SESSION_LEASE.as_secs());
            host.until_found(async || (self.status().await.lease_seconds == whole).then_some(())).await;
        }
    }

    /// The agent of a device that has enrolled.
    pub fn start(device: Device, remote: Remote, clock: Clock) -> Self {
        Self::start_by(device, remote, clock, TransportChoice::Auto)
    }

    fn start_by(device: Device, remote: Remote, clock: Clock, choice: TransportChoice) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let state = StateDir::open(folder.path()).unwrap();
        device.save(&state).unwrap();
        if remote == Remote::Enabled {
            let targets = Targets::open(&state, false).unwrap();
            targets.replace(targets.list()).unwrap();
            Consent::load(&state).unwrap().decide(true, &targets.list(), &device, &clock).unwrap();
        }
        Self::run(folder, state, clock, choice)
    }

    /// A new process of the agent of a state folder.
    pub fn start_again(folder: Arc<TempDir>, state: StateDir, clock: Clock) -> Self {
        Self::run(folder, state, clock, TransportChoice::Auto)
    }

    fn run(folder: Arc<TempDir>, state: StateDir, clock: Clock, transport: TransportChoice) -> Self {
        let device = Device::load(&state).unwrap().unwrap();
        let (id, stop) = (device.id, CancellationToken::new());
        let setup = Setup {
            state: state.clone(),
            device,
            clock: clock.clone(),
            link_local: LinkLocal::Refused,
            transport,
            replaceable: true,
        };
        let running = tokio::spawn(Agent::run(setup, stop.clone()));
        Self { id, clock, state, folder, stop, running }
    }

    /// A device of whoever answers at a URL, enrolled nowhere.
    pub fn of(server: &str, remote: Remote) -> Self {
        let clock = Clock::manual(start_of_time());
        let device = Device { id: clock.id(), name: None, server: server.into(), key: DeviceKey::generate(&clock) };
        Self::start(device, remote, clock)
    }

    /// A new process of such a device's agent.
    pub fn again(folder: Arc<TempDir>, state: StateDir) -> Self {
        Self::start_again(folder, state, Clock::manual(start_of_time()))
    }

    /// What comes of a second process on the same state folder.
    pub async fn second_process(&self) -> std::io::Result<Exit> {
        let (state, clock) = (self.state.clone(), self.clock.clone());
        let device = Device::load(&state).unwrap().unwrap();
        Agent::run(
            Setup {
                state,
                device,
                clock,
                link_local: LinkLocal::Refused,
                transport: TransportChoice::Auto,
                replaceable: true,
            },
            CancellationToken::new(),
        )
        .await
    }

    /// Asks the agent, as its command line does.
    pub async fn ask(&self, request: Request) -> ipc::Reply {
        ipc::ask(&self.state, &request).await.unwrap().unwrap()
    }

    pub async fn start_tunnel(&self, tunnel: &str) -> ipc::Reply {
        self.ask(Request::Start { tunnel: tunnel.into(), accept: None }).await
    }

    /// Starts a tunnel, where it leads where somebody has seen.
    pub async fn accept_tunnel(&self, tunnel: &str, accept: &str) -> ipc::Reply {
        self.ask(Request::Start { tunnel: tunnel.into(), accept: Some(accept.into()) }).await
    }

    /// Changes the list of allowed targets, and waits until the host has heard of it where it is to.
    pub async fn change_targets(&self, allow: &[&str], revoke: &[&str]) -> Vec<String> {
        let parse = |list: &[&str]| list.iter().map(|text| text.parse::<AllowedTarget>().unwrap()).collect();
        match self.ask(Request::Targets { allow: parse(allow), revoke: parse(revoke) }).await {
            Ok(Answer::Targets { targets, confirmed }) => {
                assert_ne!(confirmed, Some(false));
                targets.iter().map(ToString::to_string).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    pub async fn stop_tunnel(&self, tunnel: &str) -> ipc::Reply {
        self.ask(Request::Stop { tunnel: tunnel.into() }).await
    }

    pub async fn status(&self) -> Status {
        match self.ask(Request::Status).await {
            Ok(Answer::Status(status)) => status,
            other => panic!("{other:?}"),
        }
    }

    /// The tunnels that run on it, as it sees it.
    pub async fn tunnels(&self) -> Vec<Uuid> {
        self.status().await.tunnels.iter().map(|tunnel| tunnel.tunnel_id).collect()
    }

    /// Waits until its agent runs and the host has welcomed it.
    pub async fn until_connected(&self) {
        self.until_it_is(true).await;
    }

    /// Waits until its agent has noticed the loss of the connection, and has decided when to come back.
    pub async fn until_disconnected(&self) {
        self.until_it_is(false).await;
    }

    async fn until_it_is(&self, wanted: bool) {
        let seen = async {
            loop {
                match ipc::ask(&self.state, &Request::Status).await.unwrap() {
                    Some(Ok(Answer::Status(Status { connected, .. }))) if connected == wanted => return,
                    _ => tokio::task::yield_now().await,
                }
            }
        };
        within(60, seen).await;
    }

    /// Waits until it has taken in everything that the host has said so far: an answer comes behind it
    /// on the same connection.
    pub async fn until_told(&self) {
        assert!(self.start_tunnel("there is no such tunnel").await.is_err());
    }

    /// What a tunnel on it leads to.
    pub async fn target(&self, tunnel: Uuid) -> String {
        let status = self.status().await;
        status.tunnels.into_iter().find(|running| running.tunnel_id == tunnel).unwrap().local_target
    }

    /// Whether its record of what it agreed to says that it leads a tunnel's extra port somewhere.
    pub fn leads(&self, tunnel: Uuid, port: Uuid) -> bool {
        let agreed: Option<BTreeMap<Uuid, Target>> = self.state.read("targets.json").unwrap();
        let target = agreed.and_then(|mut agreed| agreed.remove(&tunnel));
        target.is_some_and(|target| target.extra.iter().any(|extra| extra.port_id == port))
    }

    /// Looks until something is true. Every look is a question to the agent's one task, so each sees
    /// what that task has done since.
    pub async fn until(&self, mut look: impl AsyncFnMut() -> bool) {
        within(60, async { while !look().await {} }).await;
    }

    /// Ends the agent, which says goodbye; what it keeps on disk stays.
    pub async fn shut_down(self) -> (Arc<TempDir>, StateDir) {
        self.stop.cancel();
        assert_eq!(self.running.await.unwrap().unwrap(), Exit::Stopped);
        (self.folder, self.state)
    }

    /// Ends the agent as a power cut would.
    pub async fn kill(self) -> (Arc<TempDir>, StateDir) {
        self.running.abort();
        let _ = self.running.await;
        (self.folder, self.state)
    }

    /// Waits until the agent ends by itself.
    pub async fn ended(self) -> (Exit, Arc<TempDir>, StateDir) {
        (self.running.await.unwrap().unwrap(), self.folder, self.state)
    }
}
