//! Limits on agents that connect: how many there are, how many have not proved their device yet, and how often one
//! device connects.

use std::net::IpAddr;
use std::sync::Arc;

use culvert_service::keyed_mutex::{KeyedMutex, KeyedMutexGuard};
use culvert_service::metrics::ConnectionRefusals;
use culvert_wire::clock::Clock;
use culvert_wire::unproven::{Entry, Unproven};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use super::pace::Paces;

/// Limits on connections that have not proved their device yet: of all clients, and of one client. Each has
/// ten seconds for the handshake. Above a limit, the oldest one is closed.
const UNPROVEN: usize = 1024;
const UNPROVEN_PER_ADDRESS: usize = 64;

/// Handshakes that are checked or written down at the same time, so that many agents at once, as after a start of the host,
/// leave the database to requests as well.
const AT_ONCE: usize = 8;
/// Handshakes that wait for that. An agent that is one too many is told to come back.
const WAITING: usize = 512;

pub struct Arrivals {
    /// Places for connected agents.
    places: Arc<Semaphore>,
    unproven: Arc<Unproven>,
    at_once: Semaphore,
    waiting: Semaphore,
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
            at_once: Semaphore::new(AT_ONCE),
            waiting: Semaphore::new(WAITING),
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

    /// Does the work of a handshake that has not proved its device, with few others; `None` if too many wait already.
    pub(crate) async fn prove<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let waiting = self.waiting.try_acquire().ok()?;
        let _one = self.at_once.acquire().await.ok()?;
        drop(waiting);
        Some(work.await)
    }

    /// As [`Arrivals::prove`], for a device that has proved itself.
    pub(crate) async fn welcome<T>(&self, work: impl Future<Output = T>) -> T {
        // The semaphore is never closed.
        let _one = self.at_once.acquire().await;
        work.await
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
