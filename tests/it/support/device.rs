//! Devices: the real agent, in this process.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_agent::agent::{Agent, Exit, Setup};
use culvert_agent::clock::Clock;
use culvert_agent::consent::Consent;
use culvert_agent::device::{Device, DeviceKey};
use culvert_agent::local::{self, Answer, Request};
use culvert_agent::state::StateDir;
use culvert_agent::target::LinkLocal;
use culvert_agent::wire::{Capability, ENROL_PATH, Enrol, Enrolled};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::host::{Person, TestHost};

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
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let state = StateDir::open(folder.path()).unwrap();
        let device = self.enrol(owner, scope_id, &Capability::ALL).await;
        device.save(&state).unwrap();
        if remote == Remote::Enabled {
            Consent::load(&state).unwrap().decide(true, &device, &self.clock).unwrap();
        }
        self.run_device(folder, state).await
    }

    /// A device that has enrolled and does not run.
    pub async fn enrol(&self, owner: &Person, scope_id: Uuid, capabilities: &[&str]) -> Device {
        let key = DeviceKey::generate(&self.clock);
        let enrol = Enrol {
            code: self.device_code(owner.account_id, scope_id).await,
            name: Some("machine".into()),
            platform: "test".into(),
            version: "1".into(),
            capabilities: capabilities.iter().map(ToString::to_string).collect(),
            public_key: key.public(),
        };
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let response = client.post(format!("{}{ENROL_PATH}", self.url())).json(&enrol).send().await.unwrap();
        let Enrolled { device_id, name } = response.json().await.unwrap();
        Device { id: device_id, name, server: self.url(), key }
    }

    /// Runs the agent of a state folder, and waits until it is connected.
    pub async fn run_device(&self, folder: Arc<TempDir>, state: StateDir) -> TestDevice {
        let device = Device::load(&state).unwrap().unwrap();
        let (id, stop, clock) = (device.id, CancellationToken::new(), self.clock.clone());
        let setup = Setup { state: state.clone(), device, clock: clock.clone(), link_local: LinkLocal::Refused };
        let running = tokio::spawn(Agent::run(setup, stop.clone()));
        self.until_online(id).await;
        TestDevice { id, clock, state, folder, stop, running }
    }
}

impl TestHost {
    pub async fn until_online(&self, device_id: Uuid) {
        let online = async || {
            let device = self.app.store.enrolled_device(device_id).await.unwrap();
            device.filter(|enrolled| enrolled.device.online).map(drop)
        };
        self.until(online).await;
    }
}

impl TestDevice {
    /// Asks the agent, as its command line does.
    pub async fn ask(&self, request: Request) -> local::Reply {
        local::ask(&self.state, &request).await.unwrap().unwrap()
    }

    pub async fn start(&self, tunnel: &str) -> local::Reply {
        self.ask(Request::Start { tunnel: tunnel.into() }).await
    }

    pub async fn stop_tunnel(&self, tunnel: &str) -> local::Reply {
        self.ask(Request::Stop { tunnel: tunnel.into() }).await
    }

    /// The tunnels that run on it, as it sees it.
    pub async fn tunnels(&self) -> Vec<Uuid> {
        match self.ask(Request::Status).await {
            Ok(Answer::Status(status)) => status.tunnels.iter().map(|tunnel| tunnel.tunnel_id).collect(),
            other => panic!("{other:?}"),
        }
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

/// A service on the device that sends back what it gets.
pub async fn echo_service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
                let _ = writer.shutdown().await;
            });
        }
    });
    address
}

/// Sends bytes, ends its own direction, and reads until the other ends.
pub async fn exchange(address: SocketAddr, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let (mut reader, mut writer) = stream.split();
    let mut answer = Vec::new();
    let send = async {
        writer.write_all(bytes).await?;
        writer.shutdown().await
    };
    let receive = reader.read_to_end(&mut answer);
    let (sent, received) = tokio::join!(send, receive);
    sent.and(received)?;
    Ok(answer)
}
