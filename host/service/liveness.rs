//! Which devices are alive and which leases hold, as far as this host has their connections. Heartbeats change nothing but
//! this; the store learns of it once a minute, see `docs/develop/decisions/0029-cost.md`.

mod deadlines;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::connection::Connection;
use culvert_domain::device::OFFLINE_AFTER;
use culvert_domain::error::Result;
use culvert_domain::session::SESSION_LEASE;
use culvert_store::Store;
use culvert_store::presence::Alive;
use culvert_wire::clock::Clock;
use uuid::Uuid;

use deadlines::Deadlines;

/// Interval between two reports to the store.
const RECORD_EVERY: TimeDelta = TimeDelta::minutes(1);

/// A device that was not heard of for longer is not recorded as alive: it has missed heartbeats.
const RECENTLY: TimeDelta = TimeDelta::seconds(25);

pub struct Liveness {
    clock: Clock,
    /// The same after every start.
    host_id: Uuid,
    held: Mutex<Held>,
}

struct Held {
    devices: HashMap<Uuid, HeldDevice>,
    /// When each device counts as offline if it is not heard of.
    silence: Deadlines,
    /// When each lease ends if it is not renewed.
    ends: Deadlines,
    /// The device of each lease.
    holders: HashMap<Uuid, Uuid>,
    recorded_at: DateTime<Utc>,
}

struct HeldDevice {
    connection: Connection,
    scope_id: Uuid,
    seen_at: DateTime<Utc>,
    leases: HashSet<Uuid>,
}

/// What is known of a device when its connection ends.
#[derive(Clone, Debug)]
pub struct LastState {
    pub seen_at: DateTime<Utc>,
    /// Its leases, by when they end: those that were renewed together end together.
    pub leases: BTreeMap<DateTime<Utc>, Vec<Uuid>>,
}

/// What is due now.
#[derive(Clone, Debug, Default)]
pub struct Due {
    /// Devices that were silent for too long.
    pub silent: Vec<Silent>,
    /// Leases that were not renewed in time.
    pub expired: Vec<Expired>,
}

/// A lease that was not renewed in time.
#[derive(Clone, Copy, Debug)]
pub struct Expired {
    pub session_id: Uuid,
    pub connection: Connection,
    pub scope_id: Uuid,
}

/// A device that was silent for too long.
#[derive(Clone, Copy, Debug)]
pub struct Silent {
    pub connection: Connection,
    pub scope_id: Uuid,
    pub seen_at: DateTime<Utc>,
}

impl Liveness {
    pub fn new(clock: Clock, host_id: Uuid) -> Self {
        let held = Held {
            devices: HashMap::new(),
            silence: Deadlines::default(),
            ends: Deadlines::default(),
            holders: HashMap::new(),
            recorded_at: clock.now(),
        };
        Self { clock, host_id, held: Mutex::new(held) }
    }

    /// Holds a new connection. The leases of the former one go on.
    pub(crate) fn hold(&self, connection: Connection, scope_id: Uuid) {
        let (mut held, now) = (self.held(), self.clock.now());
        let leases = held.devices.remove(&connection.device_id).map(|former| former.leases).unwrap_or_default();
        held.devices.insert(connection.device_id, HeldDevice { connection, scope_id, seen_at: now, leases });
        held.silence.set(connection.device_id, now + OFFLINE_AFTER);
    }

    /// Notes that a connection was heard of. False if it is not the device's newest one here.
    pub(crate) fn heard(&self, connection: Connection) -> bool {
        let (mut held, now) = (self.held(), self.clock.now());
        let Some(device) = held.of_mut(connection) else { return false };
        device.seen_at = now;
        held.silence.set(connection.device_id, now + OFFLINE_AFTER);
        true
    }

    /// Which of these leases the connection is known to hold, and the others.
    pub(crate) fn held_leases(&self, connection: Connection, lease_ids: Vec<Uuid>) -> (Vec<Uuid>, Vec<Uuid>) {
        let (held, now) = (self.held(), self.clock.now());
        let device = of(&held.devices, connection);
        let holds = |id: &Uuid| {
            device.is_some_and(|device| device.leases.contains(id)) && held.ends.get(*id).is_some_and(|end| end > now)
        };
        lease_ids.into_iter().partition(holds)
    }

    /// Renews those of these leases that the connection still holds, and returns them.
    pub(crate) fn renew(&self, connection: Connection, mut lease_ids: Vec<Uuid>) -> Vec<Uuid> {
        let (mut held, now) = (self.held(), self.clock.now());
        let Held { devices, ends, .. } = &mut *held;
        let device = of(devices, connection);
        lease_ids.retain(|id| device.is_some_and(|device| device.leases.contains(id)));
        lease_ids.iter().for_each(|id| ends.set(*id, now + SESSION_LEASE));
        lease_ids
    }

    /// Holds leases that the store has renewed.
    pub(crate) fn hold_leases(&self, connection: Connection, lease_ids: &[Uuid]) {
        let (mut held, now) = (self.held(), self.clock.now());
        let Some(device) = held.of_mut(connection) else { return };
        device.leases.extend(lease_ids);
        for lease_id in lease_ids {
            held.ends.set(*lease_id, now + SESSION_LEASE);
            held.holders.insert(*lease_id, connection.device_id);
        }
    }

    /// A lease has ended.
    pub(crate) fn forget_lease(&self, lease_id: Uuid) {
        self.held().forget_lease(lease_id);
    }

    /// Forgets the leases of a device that are not open any longer.
    pub(crate) fn keep_leases(&self, device_id: Uuid, open: &HashSet<Uuid>) {
        let mut held = self.held();
        let leases = held.devices.get(&device_id).map(|device| &device.leases);
        let over: Vec<Uuid> = leases.into_iter().flatten().filter(|id| !open.contains(id)).copied().collect();
        over.into_iter().for_each(|lease_id| held.forget_lease(lease_id));
    }

    pub(crate) fn last_state(&self, connection: Connection) -> Option<LastState> {
        let held = self.held();
        let Held { devices, ends, .. } = &*held;
        let device = of(devices, connection)?;
        let mut leases: BTreeMap<_, Vec<Uuid>> = BTreeMap::new();
        for lease_id in &device.leases {
            if let Some(end) = ends.get(*lease_id) {
                leases.entry(end).or_default().push(*lease_id);
            }
        }
        Some(LastState { seen_at: device.seen_at, leases })
    }

    /// Lets a connection go whose end the store knows.
    pub(crate) fn release(&self, connection: Connection) {
        let mut held = self.held();
        if of(&held.devices, connection).is_none() {
            return;
        }
        let device = held.devices.remove(&connection.device_id);
        device.into_iter().flat_map(|device| device.leases).for_each(|lease_id| held.forget_lease(lease_id));
        held.silence.remove(connection.device_id);
    }

    pub fn last_seen_at(&self, device_id: Uuid) -> Option<DateTime<Utc>> {
        self.held().devices.get(&device_id).map(|device| device.seen_at)
    }

    /// When a lease ends that this host has renewed.
    pub fn lease_end(&self, lease_id: Uuid) -> Option<DateTime<Utc>> {
        self.held().ends.get(lease_id)
    }

    /// What is due now. It stays due until it is released or forgotten.
    pub(crate) fn due(&self) -> Due {
        let (held, now) = (self.held(), self.clock.now());
        let expired = |session_id| {
            let HeldDevice { connection, scope_id, .. } = held.devices.get(held.holders.get(&session_id)?)?;
            Some(Expired { session_id, connection: *connection, scope_id: *scope_id })
        };
        let silent = held.silence.due(now).filter_map(|id| held.devices.get(&id));
        let expired = held.ends.due(now).filter_map(expired);
        let silent = silent.map(|HeldDevice { connection, scope_id, seen_at, .. }| Silent {
            connection: *connection,
            scope_id: *scope_id,
            seen_at: *seen_at,
        });
        Due { silent: silent.collect(), expired: expired.collect() }
    }

    /// Tells the store once a minute who is alive. Returns the devices whose connections here do not count any longer.
    ///
    /// # Errors
    ///
    /// If the database fails. The next call tells it then.
    pub(crate) async fn record(&self, store: &Store) -> Result<Vec<Uuid>> {
        let (now, alive) = (self.clock.now(), self.alive());
        let Some(alive) = alive else { return Ok(Vec::new()) };
        let recorded = store.record_alive(self.host_id, alive.clone()).await?;
        let (devices, leases): (HashSet<Uuid>, HashSet<Uuid>) =
            (recorded.device_ids.into_iter().collect(), recorded.session_ids.into_iter().collect());
        let mut held = self.held();
        alive.session_ids.iter().filter(|id| !leases.contains(id)).for_each(|id| held.forget_lease(*id));
        held.recorded_at = now;
        Ok(alive.device_ids.into_iter().filter(|id| !devices.contains(id)).collect())
    }

    /// Everything that is alive, if the store is to be told.
    fn alive(&self) -> Option<Alive> {
        let (held, now) = (self.held(), self.clock.now());
        if now - held.recorded_at < RECORD_EVERY || held.devices.is_empty() {
            return None;
        }
        let heard = held.devices.values().filter(|device| now - device.seen_at < RECENTLY);
        Some(Alive {
            device_ids: heard.map(|device| device.connection.device_id).collect(),
            session_ids: held.ends.ids().collect(),
        })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device of a connection, if that is its newest one here.
fn of(devices: &HashMap<Uuid, HeldDevice>, connection: Connection) -> Option<&HeldDevice> {
    devices.get(&connection.device_id).filter(|device| device.connection == connection)
}

impl Held {
    /// As [`of`], to change it.
    fn of_mut(&mut self, connection: Connection) -> Option<&mut HeldDevice> {
        self.devices.get_mut(&connection.device_id).filter(|device| device.connection == connection)
    }

    fn forget_lease(&mut self, lease_id: Uuid) {
        self.ends.remove(lease_id);
        let holder = self.holders.remove(&lease_id);
        if let Some(device) = holder.and_then(|device_id| self.devices.get_mut(&device_id)) {
            device.leases.remove(&lease_id);
        }
    }
}
