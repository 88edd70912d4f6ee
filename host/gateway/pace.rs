//! Rate limits of one device, over all of its connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use culvert_wire::clock::Moment;
use uuid::Uuid;

use crate::bucket::Bucket;

/// Arrivals (new connections): the burst, and the rate after it.
const ARRIVALS: u32 = 10;
const ARRIVALS_PER_SECOND: u32 = 1;
/// Arrivals that may wait for their turn. A correct agent has one, and a second one after a restart.
const MOST_WAITING: usize = 4;
/// Frames: the burst, and the rate after it. Frames above the rate are read later.
const FRAMES: u32 = 100;
const FRAMES_PER_SECOND: u32 = 20;
/// Additional frames for each lease in a welcome.
const FRAMES_PER_LEASE: u32 = 4;
/// Local starts and creations of tunnels, each of which writes a session or a tunnel, and events. Those above the rate
/// are refused.
const STARTS: u32 = 60;
const STARTS_PER_SECOND: u32 = 2;
/// Devices that are remembered before idle ones are removed.
const MOST_REMEMBERED: usize = 1024;

pub(crate) struct Pace {
    pub arrivals: Bucket,
    pub frames: Bucket,
    pub starts: Bucket,
    waiting: usize,
}

impl Pace {
    fn new(now: Moment) -> Self {
        Self {
            arrivals: Bucket::new(ARRIVALS, ARRIVALS_PER_SECOND, now),
            frames: Bucket::new(FRAMES, FRAMES_PER_SECOND, now),
            starts: Bucket::new(STARTS, STARTS_PER_SECOND, now),
            waiting: 0,
        }
    }

    /// Whether this equals the state of a device that has never connected.
    fn is_idle(&mut self, now: Moment) -> bool {
        self.waiting == 0 && self.arrivals.is_full(now) && self.frames.is_full(now) && self.starts.is_full(now)
    }

    /// Allows additional frames after a welcome, because the agent reports on each of its leases.
    pub(crate) fn welcome(&mut self, leases: usize, now: Moment) {
        self.frames.give(FRAMES_PER_LEASE.saturating_mul(leases.try_into().unwrap_or(u32::MAX)), now);
    }
}

#[derive(Default)]
pub(crate) struct Paces(Mutex<Table>);

#[derive(Default)]
struct Table {
    by_device: HashMap<Uuid, Pace>,
    /// The number of devices above which idle ones are removed.
    room: usize,
}

/// An arrival that waits for its turn. Dropping it ends the wait.
pub(crate) struct Waiting {
    paces: Arc<Paces>,
    device_id: Uuid,
}

impl Paces {
    /// Gives access to the rate limits of one device.
    pub(crate) fn of<T>(&self, device_id: Uuid, now: Moment, look: impl FnOnce(&mut Pace) -> T) -> T {
        let mut table = lock(&self.0);
        if table.by_device.len() >= table.room.max(MOST_REMEMBERED) && !table.by_device.contains_key(&device_id) {
            table.by_device.retain(|_, pace| !pace.is_idle(now));
            table.room = table.by_device.len() * 2;
        }
        look(table.by_device.entry(device_id).or_insert_with(|| Pace::new(now)))
    }

    /// Registers a waiting arrival of a device; `None` if too many wait already.
    pub(crate) fn wait(self: &Arc<Self>, device_id: Uuid, now: Moment) -> Option<Waiting> {
        let admitted = self.of(device_id, now, |pace| {
            let admitted = pace.waiting < MOST_WAITING;
            pace.waiting += usize::from(admitted);
            admitted
        });
        admitted.then(|| Waiting { paces: self.clone(), device_id })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(pace) = lock(&self.paces.0).by_device.get_mut(&self.device_id) {
            pace.waiting -= 1;
        }
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
