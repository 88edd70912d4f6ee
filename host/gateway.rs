//! The agents' side of the host: who enrols, who is connected, and what becomes of commands.
//!
//! Every connected device has one task ([`life`]), which holds what the database says against what
//! it has told the agent, whenever it is woken. Being woken is a matter of speed: it also looks at
//! every sign of life of the agent.

mod arrival;
mod commands;
mod enrol;
pub mod grant;
mod life;
mod local;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, Utc};
use culvert_agent::wire::{CONNECT_PATH, ENROL_PATH, FRAME_LIMIT, PROTOCOL};
use salvo::http::StatusError;
use salvo::websocket::WebSocketUpgrade;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, Router, async_trait};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::app::App;
use crate::store::presence::Connection;

pub fn router(app: &Arc<App>) -> Router {
    Router::new()
        .push(Router::with_path(ENROL_PATH.trim_start_matches('/')).post(enrol::Enrolment(app.clone())))
        .push(Router::with_path(CONNECT_PATH.trim_start_matches('/')).get(Connect(app.clone())))
}

/// The devices that are connected to this host.
#[derive(Default)]
pub struct Gateway {
    connected: Mutex<HashMap<Uuid, Entry>>,
    /// When connections were last heard of, to be noted together.
    seen: Mutex<HashMap<Uuid, (Connection, DateTime<Utc>)>>,
}

/// One connection, as others see it.
#[derive(Clone)]
struct Entry {
    connection: Connection,
    woken: Arc<Notify>,
    replaced: CancellationToken,
}

impl Gateway {
    /// Enters a connection; an older one of the same device ends.
    fn enter(&self, connection: Connection) -> Entry {
        let entry = Entry { connection, woken: Arc::new(Notify::new()), replaced: CancellationToken::new() };
        let former = lock(&self.connected).insert(connection.device_id, entry.clone());
        if let Some(former) = former {
            former.replaced.cancel();
        }
        entry
    }

    fn leave(&self, connection: Connection) {
        let mut connected = lock(&self.connected);
        if connected.get(&connection.device_id).is_some_and(|entry| entry.connection == connection) {
            connected.remove(&connection.device_id);
        }
    }

    /// How many agents are here.
    pub fn connected(&self) -> usize {
        lock(&self.connected).len()
    }

    /// Has a device's connection look at what is new.
    pub fn wake(&self, device_id: Uuid) {
        if let Some(entry) = lock(&self.connected).get(&device_id) {
            entry.woken.notify_one();
        }
    }

    fn note_seen(&self, connection: Connection, at: DateTime<Utc>) {
        lock(&self.seen).insert(connection.device_id, (connection, at));
    }

    /// What was noted since the last time.
    pub fn take_seen(&self) -> Vec<(Connection, DateTime<Utc>)> {
        lock(&self.seen).drain().map(|(_, seen)| seen).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Connect(Arc<App>);

#[async_trait]
impl Handler for Connect {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let app = self.0.clone();
        let upgrade =
            WebSocketUpgrade::new().protocols(&[PROTOCOL]).max_message_size(FRAME_LIMIT).max_frame_size(FRAME_LIMIT);
        let tasks = app.tasks.clone();
        let upgraded: Result<(), StatusError> = upgrade
            .upgrade(req, res, move |socket| async move {
                let life = life::live(app, socket);
                // Shutdown waits for the farewell.
                let _ = tasks.spawn(life).await;
            })
            .await;
        if let Err(error) = upgraded {
            res.status_code(error.code);
        }
    }
}
