//! The courier: takes up what is due, has it delivered, notes what came of it, and waits for more.
//!
//! No transaction is open while a delivery is under way. One that is never settled, because the
//! host went down, comes due again by itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert_wire::clock::Moment;
use tokio::sync::{Notify, Semaphore};

use crate::app::App;
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

    /// Has the courier look at what is due.
    pub fn wake(&self) {
        self.woken.notify_one();
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs until the host stops.
pub async fn run(app: Arc<App>) {
    loop {
        let next = send_due(&app).await.unwrap_or_else(|error| {
            tracing::warn!(error = %Chain(&error), "deliveries could not be looked for");
            Some(app.clock.moment().plus(LOOK_AGAIN))
        });
        let wait = async {
            match next {
                Some(at) => app.clock.until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = app.stop.cancelled() => return,
            () = app.courier.woken.notified() => {}
            () = wait => {}
        }
    }
}

/// Sends what is due, as much as there are free hands for; when there will be more to do. Whoever
/// comes back wakes the courier.
async fn send_due(app: &Arc<App>) -> Result<Option<Moment>> {
    let free = app.courier.slots.available_permits();
    if free == 0 {
        return Ok(None);
    }
    let under_way = app.courier.under_way().clone();
    match app.store.next_delivery(&under_way).await? {
        None => return Ok(None),
        Some(next) if next > app.clock.now() => return Ok(Some(moment(app, next))),
        Some(_) => {}
    }
    let due = app.store.claim_deliveries(free, under_way).await?;
    let none = due.is_empty();
    for delivery in due {
        let scope_id = delivery.scope_id;
        app.courier.under_way().add(scope_id, 1);
        let slot = app.courier.slots.clone().acquire_owned().await;
        let app = app.clone();
        app.tasks.clone().spawn(async move {
            let stop = app.stop.clone();
            // What the host's end interrupts is made again when it is back.
            stop.run_until_cancelled(deliver(&app, delivery)).await;
            drop(slot);
            app.courier.under_way().end_one(scope_id);
            app.courier.wake();
        });
    }
    // What is due and cannot be had is in another host's hands.
    let soonest = app.clock.moment().plus(if none { LOOK_AGAIN } else { Duration::ZERO });
    let under_way = app.courier.under_way().clone();
    let next = app.store.next_delivery(&under_way).await?.filter(|_| app.courier.slots.available_permits() > 0);
    Ok(next.map(|next| moment(app, next).max(soonest)))
}

fn moment(app: &App, at: DateTime<Utc>) -> Moment {
    app.clock.moment().plus((at - app.clock.now()).to_std().unwrap_or_default())
}

async fn deliver(app: &App, delivery: Delivery) {
    let outcome = app.courier.client.deliver(&delivery).await;
    tracing::debug!(
        event_id = %delivery.event_id, webhook_id = %delivery.webhook_id, attempt = delivery.attempt,
        status = outcome.status_code, error = outcome.error.map(tracing::field::display), "delivered"
    );
    app.metrics.count_delivery(&outcome);
    if let Err(error) = app.store.settle_delivery(delivery, outcome).await {
        tracing::warn!(error = %Chain(&error), "how a delivery came out could not be noted; it will be made again");
    }
}
