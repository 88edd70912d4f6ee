//! The host's end of the wire, held by hand: a test says what an agent is told, and when.

use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::control::{
    Action, CONNECT_PATH, Command, ConsentState, Grant, Hello, NodeAddress, PROTOCOL, ToAgent, ToHost, Welcome,
};
use culvert_wire::device_token::DeviceToken;
use culvert_wire::target::Target;
use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};
use uuid::Uuid;

pub struct HostEnd {
    pub url: String,
    listener: TcpListener,
}

/// One agent's connection.
pub struct AgentEnd {
    socket: WebSocketStream<TcpStream>,
    pub hello: Hello,
}

impl HostEnd {
    pub async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { url: format!("http://{}", listener.local_addr().unwrap()), listener }
    }

    /// The next agent to connect, welcomed to a node that nobody answers for.
    pub async fn welcome(&self, consent: ConsentState) -> AgentEnd {
        let mut agent = self.meet().await;
        let welcome = Welcome {
            connection_epoch: 1,
            heartbeat_ms: 10_000,
            lease_ms: 30_000,
            consent,
            grants: Vec::new(),
            confirms_running: true,
            creates_tunnels: true,
            hosts: Vec::new(),
        };
        agent.send(ToAgent::Welcome(welcome)).await;
        agent
    }

    /// The next agent to connect, once it has said hello.
    pub async fn meet(&self) -> AgentEnd {
        let (stream, _) = self.listener.accept().await.unwrap();
        #[expect(clippy::result_large_err, reason = "the library's callback is of this type")]
        let choose = |request: &Request, mut response: Response| {
            assert_eq!(request.uri().path(), CONNECT_PATH);
            response.headers_mut().insert("sec-websocket-protocol", PROTOCOL.parse().unwrap());
            Ok(response)
        };
        let mut socket = accept_hdr_async(stream, choose).await.unwrap();
        send(&mut socket, &ToAgent::Challenge { nonce: Base64Bytes(vec![1; 32]) }).await;
        let ToHost::Hello(hello) = next(&mut socket).await else { panic!("no hello") };
        AgentEnd { socket, hello: *hello }
    }
}

impl AgentEnd {
    pub async fn send(&mut self, frame: ToAgent) {
        send(&mut self.socket, &frame).await;
    }

    pub async fn command(&mut self, operation_id: Uuid, action: Action, tunnel_id: Option<Uuid>) {
        self.send(ToAgent::Command(Command { operation_id, action, tunnel_id, expires_in_ms: 60_000 })).await;
    }

    /// The next frame but for heartbeats.
    pub async fn next(&mut self) -> ToHost {
        loop {
            match next(&mut self.socket).await {
                ToHost::Renew { .. } => {}
                frame => return frame,
            }
        }
    }
}

/// A lease for a tunnel that leads to a local port.
pub fn grant(tunnel_id: Uuid, port: u16) -> Grant {
    Grant {
        lease_id: Uuid::from_u128(77),
        tunnel_id,
        name: "tunnel".into(),
        epoch: 1,
        token: Base64Bytes(vec![0; 32]),
        device_token: Some(DeviceToken { node_id: Uuid::from_u128(78), token: Base64Bytes(vec![0; 128]) }),
        public_address: "node:20000".into(),
        node: NodeAddress { host: "127.0.0.1".into(), port: 1, udp_port: None, fingerprint: Base64Bytes(vec![0; 32]) },
        target: Target::new("127.0.0.1", port),
    }
}

async fn send(socket: &mut WebSocketStream<TcpStream>, frame: &ToAgent) {
    socket.send(Message::text(serde_json::to_string(frame).unwrap())).await.unwrap();
}

async fn next(socket: &mut WebSocketStream<TcpStream>) -> ToHost {
    loop {
        if let Message::Text(text) = socket.next().await.unwrap().unwrap() {
            return serde_json::from_str(&text).unwrap();
        }
    }
}
