//! An agent's end of the control channel, held by hand: it says what a test has it say, when the
//! test has it say it.

use std::net::SocketAddr;

use culvert_agent::device::Device;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::control::{
    CONNECT_PATH, Capability, Command, ConsentState, Done, Failure, Grant, Hello, PROTOCOL, SignedConsent,
    SignedTargets, ToAgent, ToHost, Welcome, connect_statement, consent_statement, targets_statement,
};
use culvert_wire::data::{self, ACCEPTED, ATTACHED, Attach, FENCED, UNKNOWN_KEY, Visit, read_frame, write_frame};
use culvert_wire::tls;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};
use uuid::Uuid;

use super::host::{Person, TestHost};

pub struct Wire {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    pub welcome: Welcome,
}

impl TestHost {
    /// A device that consents to remote control and of which the test holds the wire.
    pub async fn wired(&self, owner: &Person, scope_id: Uuid) -> (Device, Wire) {
        self.wired_with(owner, scope_id, &Capability::ALL).await
    }

    pub async fn wired_with(&self, owner: &Person, scope_id: Uuid, capabilities: &[&str]) -> (Device, Wire) {
        let device = self.enrol(owner, scope_id, capabilities).await;
        let signed = signed_consent(&device, true, 0);
        let change = |hello: &mut Hello| {
            hello.signed_consent = Some(signed);
            hello.capabilities = capabilities.iter().map(ToString::to_string).collect();
        };
        let wire = self.connect(&device, change).await.unwrap();
        (device, wire)
    }

    /// Connects as a device; what the host answers instead of a welcome is the error.
    pub async fn connect(&self, device: &Device, change: impl FnOnce(&mut Hello)) -> Result<Wire, ToAgent> {
        self.hello(device, change).await.map_err(|answer| answer.expect("the host closed the connection"))
    }

    /// As [`TestHost::connect`], where the host may close the connection without a word.
    pub async fn hello(&self, device: &Device, change: impl FnOnce(&mut Hello)) -> Result<Wire, Option<ToAgent>> {
        let mut request = format!("ws://{}{CONNECT_PATH}", self.address).into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", PROTOCOL.parse().unwrap());
        let (mut socket, _) = connect_async(request).await.unwrap();
        let nonce = match next(&mut socket).await {
            Some(ToAgent::Challenge { nonce }) => nonce,
            other => return Err(other),
        };
        let mut hello = hello_of(device, &nonce.0);
        change(&mut hello);
        send(&mut socket, &ToHost::Hello(Box::new(hello))).await;
        match next(&mut socket).await {
            Some(ToAgent::Welcome(welcome)) => Ok(Wire { socket, welcome }),
            other => Err(other),
        }
    }
}

/// How a device answers a challenge.
pub fn hello_of(device: &Device, nonce: &[u8]) -> Hello {
    Hello {
        device_id: device.id,
        signature: device.key.sign(&connect_statement(device.id, nonce)),
        boot_id: Uuid::from_u128(1),
        version: "1".into(),
        platform: "test".into(),
        capabilities: Capability::ALL.map(String::from).into(),
        consent: ConsentState { enabled: false, revision: 0 },
        signed_consent: None,
        lease_ids: Vec::new(),
        operation_ids: Vec::new(),
        stopped: Vec::new(),
        renews_tokens: true,
    }
}

/// A decision about remote control, signed by the device.
pub fn signed_consent(device: &Device, enabled: bool, revision: i64) -> SignedConsent {
    let nonce = Base64Bytes(vec![7; 16]);
    let signature = device.key.sign(&consent_statement(device.id, enabled, revision, &nonce.0));
    SignedConsent { enabled, revision, nonce, signature, targets: None }
}

/// A consent that says where remote control may lead.
pub fn signed_consent_to(device: &Device, revision: i64, targets: &[&str]) -> SignedConsent {
    let consent = signed_consent(device, true, revision);
    let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
    let signature = device.key.sign(&targets_statement(device.id, revision, &consent.nonce.0, &targets));
    SignedConsent { targets: Some(SignedTargets { targets, signature }), ..consent }
}

impl Wire {
    pub async fn send(&mut self, frame: ToHost) {
        send(&mut self.socket, &frame).await;
    }

    /// As [`Wire::send`]; whether the host took it, which may have closed the connection.
    pub async fn try_send(&mut self, frame: ToHost) -> bool {
        let text = serde_json::to_string(&frame).unwrap();
        self.socket.send(Message::text(text)).await.is_ok()
    }

    /// The next frame; `None` where the host has closed the connection.
    pub async fn next(&mut self) -> Option<ToAgent> {
        next(&mut self.socket).await
    }

    /// The next command, whatever else is said before it.
    pub async fn command(&mut self) -> Command {
        loop {
            if let ToAgent::Command(command) = self.next().await.unwrap() {
                return command;
            }
        }
    }

    /// The next frame that is as wanted, whatever else is said before it.
    pub async fn until<T>(&mut self, wanted: impl Fn(ToAgent) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(self.next().await.unwrap()) {
                return found;
            }
        }
    }

    /// A heartbeat; the leases that hold for another term.
    pub async fn renew(&mut self, lease_ids: &[Uuid]) -> Vec<Uuid> {
        self.send(ToHost::Renew { sequence: 1, lease_ids: lease_ids.into() }).await;
        self.until(|frame| match frame {
            ToAgent::Renewed { lease_ids, .. } => Some(lease_ids),
            _ => None,
        })
        .await
    }

    /// Claims a command and asks to begin; what the host grants for it.
    pub async fn begin(&mut self, operation_id: Uuid) -> Option<Grant> {
        self.send(ToHost::Claimed { operation_id }).await;
        self.send(ToHost::Ready { operation_id }).await;
        self.until(|frame| match frame {
            ToAgent::Proceed { grant, .. } => Some(grant),
            ToAgent::Abandon { .. } => panic!("abandoned"),
            _ => None,
        })
        .await
    }

    /// Reports an outcome, and waits until it is stored.
    pub async fn finish(&mut self, operation_id: Uuid, outcome: Result<Done, Failure>) {
        self.send(ToHost::Finished { operation_id, outcome }).await;
        self.until(|frame| matches!(frame, ToAgent::Settled { .. }).then_some(())).await;
    }

    /// The next command, begun and done.
    pub async fn obey(&mut self, done: Done) -> Option<Grant> {
        let Command { operation_id, .. } = self.command().await;
        let grant = self.begin(operation_id).await;
        self.finish(operation_id, Ok(done)).await;
        grant
    }

    /// As [`Wire::obey`], for a command that the host may call off before it begins.
    pub async fn obey_or_abandon(&mut self, done: Done) {
        let Command { operation_id, .. } = self.command().await;
        self.send(ToHost::Claimed { operation_id }).await;
        self.send(ToHost::Ready { operation_id }).await;
        let begun = self
            .until(|frame| match frame {
                ToAgent::Proceed { .. } => Some(true),
                ToAgent::Abandon { .. } => Some(false),
                _ => None,
            })
            .await;
        if begun {
            self.finish(operation_id, Ok(done)).await;
        }
    }

    /// Connects to the node of a lease, and says nothing yet.
    pub async fn shake_hands(&self, grant: &Grant) -> TlsStream<TcpStream> {
        let node = &grant.node;
        let tcp = TcpStream::connect((node.host.as_str(), node.port)).await.unwrap();
        let tls = TlsConnector::from(tls::client(node.fingerprint.0.clone(), data::ALPN).unwrap());
        tls.connect(node.host.clone().try_into().unwrap(), tcp).await.unwrap()
    }

    /// Brings the node a connection under a lease; `None` where the lease does not hold.
    pub async fn attach(&self, grant: &Grant) -> Option<TlsStream<TcpStream>> {
        match self.answer_to(grant).await {
            (ATTACHED, connection) => Some(connection),
            (FENCED | UNKNOWN_KEY, _) => None,
            (other, _) => panic!("{other}"),
        }
    }

    /// The node's answer to an attach under a lease.
    pub async fn answer_to(&self, grant: &Grant) -> (u8, TlsStream<TcpStream>) {
        let mut connection = self.shake_hands(grant).await;
        let attach = Attach { tunnel_id: grant.tunnel_id, epoch: grant.epoch, token: grant.token.clone() };
        write_frame(&mut connection, &attach).await.unwrap();
        (connection.read_u8().await.unwrap(), connection)
    }

    /// Serves one visitor under a lease.
    pub async fn serve(&self, grant: &Grant, service: SocketAddr) {
        let mut connection = self.attach(grant).await.unwrap();
        read_frame::<Visit>(&mut connection).await.unwrap();
        let mut target = TcpStream::connect(service).await.unwrap();
        connection.write_all(&[ACCEPTED]).await.unwrap();
        tokio::io::copy_bidirectional(&mut connection, &mut target).await.unwrap();
    }

    /// Ends without a word.
    pub async fn hang_up(mut self) {
        self.socket.close(None).await.unwrap();
        while self.next().await.is_some() {}
    }
}

async fn send(socket: &mut WebSocketStream<MaybeTlsStream<TcpStream>>, frame: &ToHost) {
    socket.send(Message::text(serde_json::to_string(frame).unwrap())).await.unwrap();
}

async fn next(socket: &mut WebSocketStream<MaybeTlsStream<TcpStream>>) -> Option<ToAgent> {
    loop {
        match socket.next().await? {
            Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap()),
            Ok(Message::Close(_)) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}
