//! The delivery worker: claims what is due, has it delivered, records the outcome, and waits for more.
//!
//! No transaction is open while a delivery is under way. One that is never settled, because the
//! host went down, comes due again by itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert_wire::clock::Moment;
use tokio::sync::{Notify, Semaphore};

use super::Jobs;
use crate::store::outbox::UnderWay;
use culvert_domain::error::{Chain, Result};
use culvert_domain::webhook::Delivery;
use culvert_webhook::client::Client;

/// Deliveries that are under way at the same time.
const UNDER_WAY: usize = 64;
/// When it is looked again for what could not be had.
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

    /// Has the worker look at what is due.
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

/// Sends what is due, as much as there are free hands for; when there will be more to do. Whoever
/// comes back wakes the worker.
async fn send_due(jobs: &Arc<Jobs>) -> Result<Option<Moment>> {
    let free = jobs.deliveries.slots.available_permits();
    if free == 0 {
        return Ok(None);
    }
    let under_way = jobs.deliveries.under_way().clone();
    match jobs.service.store.next_delivery(&under_way).await? {
        None => return Ok(None),
        Some(next) if next > jobs.clock.now() => return Ok(Some(moment(jobs, next))),
        Some(_) => {}
    }
    let due = jobs.service.store.claim_deliveries(free, under_way).await?;
    let none = due.is_empty();
    for delivery in due {
        let scope_id = delivery.scope_id;
        jobs.deliveries.under_way().add(scope_id, 1);
        let slot = jobs.deliveries.slots.clone().acquire_owned().await;
        let jobs = jobs.clone();
        jobs.tasks.clone().spawn(async move {
            let stop = jobs.stop.clone();
            // What the host's end interrupts is made again when it is back.
            stop.run_until_cancelled(deliver(&jobs, delivery)).await;
            drop(slot);
            jobs.deliveries.under_way().end_one(scope_id);
            jobs.deliveries.wake();
        });
    }
    // What is due and cannot be had is in another host's hands.
    let soonest = jobs.clock.moment().plus(if none { LOOK_AGAIN } else { Duration::ZERO });
    let under_way = jobs.deliveries.under_way().clone();
    let next =
        jobs.service.store.next_delivery(&under_way).await?.filter(|_| jobs.deliveries.slots.available_permits() > 0);
    Ok(next.map(|next| moment(jobs, next).max(soonest)))
}

fn moment(jobs: &Jobs, at: DateTime<Utc>) -> Moment {
    jobs.clock.moment().plus((at - jobs.clock.now()).to_std().unwrap_or_default())
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
