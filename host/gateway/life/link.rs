//! Frames over a WebSocket.

use culvert_agent::wire::{ToAgent, ToHost};
use salvo::websocket::{Message, WebSocket};

use super::End;

pub(super) struct Link {
    pub socket: WebSocket,
}

impl Link {
    pub async fn send(&mut self, frame: &ToAgent) -> Result<(), End> {
        let text = serde_json::to_string(frame).map_err(|e| End::Protocol(e.to_string()))?;
        self.socket.send(Message::text(text)).await.map_err(|_| End::Gone)
    }

    pub async fn receive(&mut self) -> Result<ToHost, End> {
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
