//! Frames of the control channel, over a WebSocket.

use std::time::Duration;

use culvert_wire::clock::Clock;
use culvert_wire::control::{ToAgent, ToHost};
use salvo::websocket::{Message, WebSocket};

use super::End;

/// How long sending a frame may take. An agent that reads nothing in this time counts as gone.
const SEND_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct AgentSocket {
    socket: WebSocket,
    clock: Clock,
}

impl AgentSocket {
    pub(super) fn new(socket: WebSocket, clock: Clock) -> Self {
        Self { socket, clock }
    }

    pub(super) async fn send(&mut self, frame: &ToAgent) -> Result<(), End> {
        let text = serde_json::to_string(frame).map_err(|e| End::Protocol(e.to_string()))?;
        let sent = self.clock.timeout(SEND_WITHIN, self.socket.send(Message::text(text))).await;
        sent.map_err(|_| End::Stuck)?.map_err(|_| End::Gone)
    }

    pub(super) async fn receive(&mut self) -> Result<ToHost, End> {
        loop {
            let message = self.socket.recv().await.ok_or(End::Gone)?.map_err(|_| End::Gone)?;
            if message.is_close() {
                return Err(End::Gone);
            }
            if message.is_text() {
                let text = message.as_str().map_err(|e| End::Protocol(e.to_string()))?;
                return serde_json::from_str(text).map_err(|e| End::Protocol(e.to_string()));
            }
        }
    }
}
