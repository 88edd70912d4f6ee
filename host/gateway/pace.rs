//! How often one device may do what, over all of its connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use culvert_wire::clock::Moment;
use uuid::Uuid;

use super::lock;
use crate::bucket::Bucket;

/// Arrivals: so many at once, and then so many a second.
const ARRIVALS: u32 = 10;
const ARRIVALS_PER_SECOND: u32 = 1;
/// Arrivals that wait for their turn. An honest agent has one, and one more when it starts again.
const MOST_WAITING: usize = 4;
/// Frames: so many at once, and then so many a second. An agent that says more is read later.
const FRAMES: u32 = 100;
const FRAMES_PER_SECOND: u32 = 20;
/// Frames that an agent may say of each of its leases when it is welcomed.
const FRAMES_PER_LEASE: u32 = 4;
/// Starts of tunnels at the device, each of which writes a session and events. More are refused.
const STARTS: u32 = 60;
const STARTS_PER_SECOND: u32 = 2;
/// Devices that are remembered before those that have done nothing for a while are let go.
const MOST_REMEMBERED: usize = 1024;

pub struct Pace {
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

    /// Whether it is as that of a device that was never here.
    fn is_idle(&mut self, now: Moment) -> bool {
        self.waiting == 0 && self.arrivals.is_full(now) && self.frames.is_full(now) && self.starts.is_full(now)
    }

    /// The agent has been told of so many leases, and has something to say of each.
    pub fn welcome(&mut self, leases: usize, now: Moment) {
        self.frames.give(FRAMES_PER_LEASE.saturating_mul(leases.try_into().unwrap_or(u32::MAX)), now);
    }
}

#[derive(Default)]
pub struct Paces(Mutex<Table>);

#[derive(Default)]
struct Table {
    by_device: HashMap<Uuid, Pace>,
    /// How many there may be before those that are idle are looked for.
    room: usize,
}

/// An arrival that waits for its turn, until it is dropped.
pub struct Waiting {
    paces: Arc<Paces>,
    device_id: Uuid,
}

impl Paces {
    /// Looks at one device's pace.
    pub fn of<T>(&self, device_id: Uuid, now: Moment, look: impl FnOnce(&mut Pace) -> T) -> T {
        let mut table = lock(&self.0);
        if table.by_device.len() >= table.room.max(MOST_REMEMBERED) && !table.by_device.contains_key(&device_id) {
            table.by_device.retain(|_, pace| !pace.is_idle(now));
            table.room = table.by_device.len() * 2;
        }
        look(table.by_device.entry(device_id).or_insert_with(|| Pace::new(now)))
    }

    /// One more arrival of a device waits; none, where too many do.
    pub fn wait(self: &Arc<Self>, device_id: Uuid, now: Moment) -> Option<Waiting> {
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
