//! The agents that are connected to this host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use culvert_domain::connection::Connection;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

#[derive(Default)]
pub struct ConnectedAgents {
    connected: Mutex<HashMap<Uuid, ConnectionHandle>>,
}

/// A connection, as the rest of the host sees it.
#[derive(Clone)]
pub struct ConnectionHandle {
    connection: Connection,
    /// Notified when the agent may have to be told something.
    pub woken: Arc<Notify>,
    /// Cancelled when a newer connection of the device takes its place.
    pub replaced: CancellationToken,
    /// Cancelled when the agent is to connect to another host.
    pub sent_away: CancellationToken,
}

impl ConnectedAgents {
    /// Registers a connection. An older connection of the same device is replaced and ends.
    pub fn add(&self, connection: Connection) -> ConnectionHandle {
        let (woken, replaced, sent_away) = Default::default();
        let handle = ConnectionHandle { connection, woken, replaced, sent_away };
        let former = lock(&self.connected).insert(connection.device_id, handle.clone());
        if let Some(former) = former {
            former.replaced.cancel();
        }
        handle
    }

    /// Removes a connection, unless a newer one has taken its place.
    pub fn remove(&self, connection: Connection) {
        let mut connected = lock(&self.connected);
        if connected.get(&connection.device_id).is_some_and(|handle| handle.connection == connection) {
            connected.remove(&connection.device_id);
        }
    }

    pub fn count(&self) -> usize {
        lock(&self.connected).len()
    }

    /// Has a device's connection compare the database with what it has sent to the agent.
    pub fn wake(&self, device_id: Uuid) {
        if let Some(handle) = lock(&self.connected).get(&device_id) {
            handle.woken.notify_one();
        }
    }

    /// As [`ConnectedAgents::wake`], for all.
    pub fn wake_all(&self) {
        lock(&self.connected).values().for_each(|handle| handle.woken.notify_one());
    }

    /// Has so many agents connect to other hosts, and returns how many there were.
    pub fn send_away(&self, count: usize) -> usize {
        let connected = lock(&self.connected);
        let here = connected.values().filter(|handle| !handle.sent_away.is_cancelled());
        here.take(count).map(|handle| handle.sent_away.cancel()).count()
    }

    /// Ends all connections.
    pub fn replace_all(&self) {
        lock(&self.connected).values().for_each(|handle| handle.replaced.cancel());
    }

    /// Ends a device's connection: a newer one at another host counts.
    pub fn replace(&self, device_id: Uuid) {
        if let Some(handle) = lock(&self.connected).get(&device_id) {
            handle.replaced.cancel();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
