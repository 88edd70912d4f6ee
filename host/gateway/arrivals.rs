//! Limits on agents that connect: how many there are, how many have not proved their device yet, and how often one
//! device connects.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use culvert_service::keyed_mutex::{KeyedMutex, KeyedMutexGuard};
use culvert_service::metrics::ConnectionRefusals;
use culvert_wire::clock::{Clock, Moment};
use culvert_wire::unproven::{Entry, Unproven};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use super::pace::Paces;
use crate::bucket::Bucket;

/// Limits on connections that have not proved their device yet: of all clients, and of one client. Each has
/// ten seconds for the handshake. Above a limit, the oldest one is closed.
const UNPROVEN: usize = 1024;
const UNPROVEN_PER_ADDRESS: usize = 64;

/// Handshakes that are checked at the same time, and as many that are written down, so that many agents at once, as after a
/// start of the host, leave the database to requests as well.
const AT_ONCE: usize = 8;
/// Handshakes that wait to be checked. An agent that is one too many is told to come back.
const WAITING: usize = 512;

/// Agents that are told to come back in one second: each handshake that comes too early is work for nothing.
const RETURNS_PER_SECOND: u32 = 500;
const FIRST_RETURN: Duration = Duration::from_secs(1);
/// A stranger who takes all the room cannot keep an agent away for longer.
const LAST_RETURN: Duration = Duration::from_secs(20);

pub struct Arrivals {
    /// Places for connected agents.
    places: Arc<Semaphore>,
    unproven: Arc<Unproven>,
    waiting: Semaphore,
    proving: Semaphore,
    writing: Arc<Semaphore>,
    returns: Mutex<Bucket>,
    /// Serializes the arrivals of one device.
    arriving: KeyedMutex<Uuid>,
    pub(crate) paces: Arc<Paces>,
}

impl Arrivals {
    /// `agents` is how many agents may be connected at the same time.
    pub fn new(agents: usize, refused: ConnectionRefusals, now: Moment) -> Self {
        Self {
            places: Arc::new(Semaphore::new(agents)),
            unproven: Unproven::new(UNPROVEN, UNPROVEN_PER_ADDRESS, move || refused.count("unproven")),
            waiting: Semaphore::new(WAITING),
            proving: Semaphore::new(AT_ONCE),
            writing: Arc::new(Semaphore::new(AT_ONCE)),
            returns: Mutex::new(Bucket::new(RETURNS_PER_SECOND, RETURNS_PER_SECOND, now)),
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

    /// When an agent for which there was no room should come back: so many a second, one after the other.
    pub(crate) fn next_return(&self, now: Moment) -> Duration {
        let mut returns = self.returns.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = FIRST_RETURN + returns.wait(now).unwrap_or_default();
        if wait < LAST_RETURN {
            returns.take(1, now);
        }
        wait.min(LAST_RETURN)
    }

    /// A place among the few that write a device down. Whoever holds one waits for no other device.
    pub(crate) fn writing(&self) -> impl Future<Output = Option<OwnedSemaphorePermit>> + Send + use<> {
        // The semaphore is never closed.
        let writing = self.writing.clone();
        async move { writing.acquire_owned().await.ok() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_that_find_no_room_come_back_one_after_the_other() {
        let clock = Clock::system();
        let now = clock.moment();
        let arrivals = Arrivals::new(1, ConnectionRefusals::default(), now);
        let returns: Vec<Duration> = (0..12_000).map(|_| arrivals.next_return(now)).collect();
        let within = |from: u64, to: u64| {
            let (from, to) = (Duration::from_secs(from), Duration::from_secs(to));
            returns.iter().filter(|wait| (from..to).contains(*wait)).count()
        };
        assert_eq!(within(0, 1), 0);
        assert_eq!(within(1, 2), 2 * RETURNS_PER_SECOND as usize - 1, "those who have come by then, and a second's");
        assert_eq!(within(10, 11), RETURNS_PER_SECOND as usize);
        assert_eq!(returns.iter().max(), Some(&LAST_RETURN));
    }
}
