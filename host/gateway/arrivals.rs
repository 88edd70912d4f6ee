//! Limits on agents that connect: how many there are, how many have not proved their device yet, and how often one
//! device connects.

use std::net::IpAddr;
use std::sync::Arc;

use culvert_service::keyed_mutex::{KeyedMutex, KeyedMutexGuard};
use culvert_service::metrics::ConnectionRefusals;
use culvert_wire::clock::Clock;
use culvert_wire::unproven::{Entry, Unproven};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use uuid::Uuid;

use super::pace::Paces;

/// Limits on connections that have not proved their device yet: of all clients, and of one client. Each has
/// ten seconds for the handshake. Above a limit, the oldest one is closed.
const UNPROVEN: usize = 1024;
const UNPROVEN_PER_ADDRESS: usize = 64;

/// Handshakes that are checked at the same time, and as many that are written down, so that many agents at once, as after a
/// start of the host, leave the database to requests as well.
const AT_ONCE: usize = 8;
/// Handshakes that wait to be checked. An agent that is one too many is told to come back.
const WAITING: usize = 512;

pub struct Arrivals {
    /// Places for connected agents.
    places: Arc<Semaphore>,
    unproven: Arc<Unproven>,
    waiting: Semaphore,
    proving: Semaphore,
    writing: Semaphore,
    /// Serializes the arrivals of one device.
    arriving: KeyedMutex<Uuid>,
    pub(crate) paces: Arc<Paces>,
}

impl Arrivals {
    /// `agents` is how many agents may be connected at the same time.
    pub fn new(agents: usize, refused: ConnectionRefusals) -> Self {
        Self {
            places: Arc::new(Semaphore::new(agents)),
            unproven: Unproven::new(UNPROVEN, UNPROVEN_PER_ADDRESS, move || refused.count("unproven")),
            waiting: Semaphore::new(WAITING),
            proving: Semaphore::new(AT_ONCE),
            writing: Semaphore::new(AT_ONCE),
            arriving: KeyedMutex::new(),
            paces: Arc::default(),
        }
    }

    /// Registers a connection that has not proved its device.
    pub(crate) fn unproven(&self, client: IpAddr) -> Entry {
        self.unproven.enter(client)
    }

    /// A place for one more agent; `None` if all are taken.
    pub(crate) fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.places.clone().try_acquire_owned().ok()
    }

    /// Does the work of a handshake that has not proved its device, with few others; `None` if too many wait already. A
    /// connection that waits here makes no room for a newer one.
    pub(crate) async fn prove<T>(&self, entry: &mut Entry, work: impl Future<Output = T>) -> Option<T> {
        let waiting = self.waiting.try_acquire().ok()?;
        entry.hold();
        let _one = self.proving.acquire().await.ok()?;
        drop(waiting);
        Some(work.await)
    }

    /// A place among the few that write a device down. Whoever holds one waits for no other device.
    pub(crate) async fn writing(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.writing.acquire().await.ok()
    }

    /// Waits for a device's turn to connect: one arrival at a time, at a limited rate. `None` if too many
    /// arrivals of the device wait already.
    pub(crate) async fn turn(&self, device_id: Uuid, clock: &Clock) -> Option<KeyedMutexGuard> {
        let _waiting = self.paces.wait(device_id, clock.moment())?;
        let turn = self.arriving.lock(device_id).await;
        let now = clock.moment();
        let wait = self.paces.of(device_id, now, |pace| {
            let wait = pace.arrivals.wait(now);
            pace.arrivals.take(1, now);
            wait
        });
        if let Some(wait) = wait {
            clock.sleep(wait).await;
        }
        Some(turn)
    }
}
