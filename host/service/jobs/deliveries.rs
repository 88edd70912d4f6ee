//! The delivery worker: claims due deliveries, sends them, records their outcomes, and waits for more.
//!
//! No transaction is open during a delivery. If the host goes down before it records the outcome, the
//! delivery becomes due again by itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_wire::clock::Moment;
use tokio::sync::{Notify, Semaphore};
use tokio_util::future::FutureExt;
use uuid::Uuid;

use super::Jobs;
use crate::secrets::Purpose;
use culvert_domain::error::{Chain, Result};
use culvert_domain::webhook::Delivery;
use culvert_store::outbox::UnderWay;
use culvert_webhook::client::Client;

/// Deliveries in progress at the same time, at most.
const UNDER_WAY: usize = 64;
/// The wait after an error, or after due deliveries could not be claimed.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

pub struct DeliveryWorker {
    client: Client,
    woken: Notify,
    slots: Arc<Semaphore>,
    under_way: Mutex<UnderWay>,
}

impl DeliveryWorker {
    pub fn new(client: Client) -> Self {
        Self { client, woken: Notify::new(), slots: Arc::new(Semaphore::new(UNDER_WAY)), under_way: Mutex::default() }
    }

    /// Has the worker look for due deliveries.
    pub fn wake(&self) {
        self.woken.notify_one();
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs until the host stops.
pub async fn run(jobs: Arc<Jobs>) {
    loop {
        let next = send_due(&jobs).await.unwrap_or_else(|error| {
            tracing::warn!(error = %Chain(&error), "deliveries could not be looked for");
            Some(jobs.clock.moment().plus(LOOK_AGAIN))
        });
        let wait = async {
            match next {
                Some(at) => jobs.clock.until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = jobs.stop.cancelled() => return,
            () = jobs.deliveries.woken.notified() => {}
            () = wait => {}
        }
    }
}

/// Sends as many due deliveries as there are free slots, and returns when to look again. `None` means to wait
/// for a wake-up; every finished delivery causes one.
async fn send_due(jobs: &Arc<Jobs>) -> Result<Option<Moment>> {
    let free = jobs.deliveries.slots.available_permits();
    if free == 0 || !jobs.service.fleet.is_alive() {
        return Ok(None);
    }
    let under_way = jobs.deliveries.under_way().clone();
    match jobs.service.store.next_delivery(&under_way).await? {
        None => return Ok(None),
        Some(next) if next > jobs.clock.now() => return Ok(Some(jobs.clock.moment_of(next))),
        Some(_) => {}
    }
    let secrets = jobs.service.secrets.clone();
    // The secret was sealed for the endpoint's row.
    let open = move |webhook_id: Uuid, sealed: &[u8]| {
        String::from_utf8(secrets.open_sealed(Purpose::Webhooks, webhook_id.as_bytes(), sealed)?).ok()
    };
    let due = jobs.service.store.claim_deliveries(free, under_way, open).await?;
    let none = due.is_empty();
    for delivery in due {
        let scope_id = delivery.scope_id;
        jobs.deliveries.under_way().add(scope_id, 1);
        let slot = jobs.deliveries.slots.clone().acquire_owned().await;
        let jobs = jobs.clone();
        jobs.tasks.clone().spawn(async move {
            let stop = jobs.stop.clone();
            // A delivery that shutdown interrupts is sent again after the next start.
            deliver(&jobs, delivery).with_cancellation_token(&stop).await;
            drop(slot);
            jobs.deliveries.under_way().end_one(scope_id);
            jobs.deliveries.wake();
        });
    }
    // Due deliveries that could not be claimed are claimed by another host.
    let soonest = jobs.clock.moment().plus(if none { LOOK_AGAIN } else { Duration::ZERO });
    let under_way = jobs.deliveries.under_way().clone();
    let next =
        jobs.service.store.next_delivery(&under_way).await?.filter(|_| jobs.deliveries.slots.available_permits() > 0);
    Ok(next.map(|next| jobs.clock.moment_of(next).max(soonest)))
}

async fn deliver(jobs: &Jobs, delivery: Delivery) {
    let outcome = jobs.deliveries.client.deliver(&delivery).await;
    tracing::debug!(
        event_id = %delivery.event_id, webhook_id = %delivery.webhook_id, attempt = delivery.attempt,
        status = outcome.status_code, error = outcome.error.map(tracing::field::display), "delivered"
    );
    jobs.metrics.count_delivery(&outcome);
    if let Err(error) = jobs.service.store.settle_delivery(delivery, outcome).await {
        tracing::warn!(error = %Chain(&error), "how a delivery came out could not be noted; it will be made again");
    }
}
