//! From what was committed to those who act on it, and what is done because time has passed.
//!
//! Nothing here knows more than the store does: a wake-up that gets lost is made up for by the next
//! tick.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use uuid::Uuid;

use crate::app::{App, Pace};
use crate::domain::session::EndReason;
use crate::domain::usage::next_month;
use crate::error::Result;
use crate::gate;
use crate::node::Counted;
use crate::store::Wake;

const TICK: Duration = Duration::from_secs(1);
/// Ticks between two notes of what went through.
const TRAFFIC_EVERY: u64 = 5;
/// Ticks between two looks at what can be deleted.
const PRUNE_EVERY: u64 = 3600;

/// Runs until the host stops.
pub async fn run(app: Arc<App>, mut wakes: mpsc::UnboundedReceiver<Wake>, pace: Pace) {
    let mut ticks = 0;
    let mut next = app.clock.moment().plus(TICK);
    loop {
        tokio::select! {
            biased;
            () = app.stop.cancelled() => return,
            Some(wake) = wakes.recv() => pass_on(&app, wake, &mut wakes).await,
            () = app.clock.until(next), if pace == Pace::ByItself => {
                next = app.clock.moment().plus(TICK);
                ticks += 1;
                tick(&app, ticks).await;
            }
        }
    }
}

/// Passes on everything that waits at once: the node looks only once for all of it.
async fn pass_on(app: &App, first: Wake, wakes: &mut mpsc::UnboundedReceiver<Wake>) {
    let mut tunnels = false;
    let mut wake = Some(first);
    while let Some(next) = wake {
        match next {
            Wake::Device(device_id) => app.gateway.wake(device_id),
            Wake::Tunnel(_) => tunnels = true,
            Wake::Courier => app.courier.wake(),
        }
        wake = wakes.try_recv().ok();
    }
    if tunnels {
        note("the nodes could not be brought up to date", app.nodes.reconcile().await);
    }
}

/// Everything that is due; some of it only at every so many ticks.
pub async fn tick(app: &App, ticks: u64) {
    let now = app.clock.now();
    note("presence could not be noted", app.store.note_seen(app.gateway.take_seen()).await);
    note("request counts could not be kept", app.limits.save(&app.store, now).await);
    note("what is due could not be done", app.store.sweep().await);
    // Another host may have written what is due now.
    app.courier.wake();
    note("queued operations could not be looked for", wake_queued(app).await);
    note("the nodes could not be brought up to date", app.nodes.reconcile().await);
    app.nodes.refresh_countries().await;
    if ticks.is_multiple_of(TRAFFIC_EVERY) {
        note("traffic could not be noted", note_traffic(app).await);
    }
    if ticks.is_multiple_of(PRUNE_EVERY) {
        note("old rows could not be deleted", app.store.prune().await);
    }
}

fn note(what: &str, result: Result<()>) {
    if let Err(error) = result {
        tracing::warn!(%error, "{what}");
    }
}

async fn wake_queued(app: &App) -> Result<()> {
    app.store.devices_with_queued().await?.into_iter().for_each(|device_id| app.gateway.wake(device_id));
    Ok(())
}

/// Writes down what went through the node, scope by scope, and ends what has used up its month.
pub async fn note_traffic(app: &App) -> Result<()> {
    let mut by_scope: HashMap<Uuid, Vec<Counted>> = HashMap::new();
    for counted in app.nodes.take_traffic() {
        by_scope.entry(counted.lease().scope_id).or_default().push(counted);
    }
    let mut result = Ok(());
    for (scope_id, counted) in by_scope {
        match note_scope(app, scope_id, &counted).await {
            Ok(()) => counted.iter().for_each(|counted| app.meters.count_traffic(counted.traffic)),
            Err(error) => {
                counted.into_iter().for_each(|counted| app.nodes.give_back(counted));
                result = Err(error);
            }
        }
    }
    result
}

async fn note_scope(app: &App, scope_id: Uuid, counted: &[Counted]) -> Result<()> {
    let plan = app.store.scope(scope_id).await?.map(|scope| scope.plan).unwrap_or_default();
    let limit = gate::entitlement(&app.policies.pin(None), &plan)?.bandwidth_limit_bytes;
    let rows: Vec<_> = counted
        .iter()
        .map(|counted| (counted.lease().tunnel_id, counted.lease().session_id, counted.traffic))
        .collect();
    app.store
        .write(Some(scope_id), move |write| {
            Box::pin(async move {
                for (tunnel_id, session_id, traffic) in rows {
                    write.add_traffic(scope_id, tunnel_id, session_id, traffic).await?;
                }
                let used = write.scope_bandwidth(scope_id).await?.month.total();
                if limit.is_some_and(|limit| used >= limit) {
                    let until = next_month(write.now);
                    write.suspend_scope(scope_id, until).await?;
                    write.end_sessions_of_scope(scope_id, EndReason::LimitReached).await?;
                }
                Ok(())
            })
        })
        .await
}

/// Notes what there is to note of a host that ends: its node serves nobody any longer.
pub async fn leave(app: &App) -> Result<()> {
    note("traffic could not be noted", note_traffic(app).await);
    note("request counts could not be kept", app.limits.save(&app.store, app.clock.now()).await);
    let mut by_scope: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
    for node_id in app.nodes.ids() {
        for lease in app.store.leases_on_node(node_id).await? {
            by_scope.entry(lease.scope_id).or_default().push(lease.session_id);
        }
    }
    for (scope_id, session_ids) in by_scope {
        app.store.end_sessions(scope_id, session_ids, EndReason::NodeShutdown).await?;
    }
    Ok(())
}
