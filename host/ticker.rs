//! From what was committed to those who act on it, and what is done because time has passed.
//!
//! Nothing here knows more than the store does: a wake-up that gets lost is made up for by the next
//! tick.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::app::{App, Ticker};
use crate::gate;
use crate::store::Hint;
use crate::store::runs::RunId;
use culvert_domain::error::{Chain, Result};
use culvert_domain::session::EndReason;
use culvert_domain::usage::next_month;

const TICK: Duration = Duration::from_secs(1);
/// Ticks between two notes of what went through.
const TRAFFIC_EVERY: u64 = 5;
/// Between two looks at what can be deleted, and before the first one: a host that is restarted often
/// deletes as well.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
const FIRST_PRUNE: Duration = Duration::from_secs(60);

/// Runs until the host stops. Time, wake-ups and deletions do not wait for each other: however many
/// wake-ups come, what is due is done, and while a row is locked, wake-ups are passed on.
pub async fn run(app: Arc<App>, wakes: mpsc::UnboundedReceiver<Hint>, pace: Ticker) {
    let time = async {
        if pace == Ticker::Auto {
            tokio::join!(keep_time(&app), prune(&app));
        }
    };
    tokio::join!(time, dispatch_all(&app, wakes));
}

async fn keep_time(app: &App) {
    let mut next = app.clock.moment().plus(TICK);
    for ticks in 1.. {
        tokio::select! {
            biased;
            () = app.stop.cancelled() => return,
            () = app.clock.until(next) => {
                next = app.clock.moment().plus(TICK);
                tick(app, ticks).await;
            }
        }
    }
}

async fn prune(app: &App) {
    let mut next = app.clock.moment().plus(FIRST_PRUNE);
    while app.stop.run_until_cancelled(app.clock.until(next)).await.is_some() {
        if let Some(result) = app.stop.run_until_cancelled(app.store.prune()).await {
            report("old rows could not be deleted", result);
        }
        next = app.clock.moment().plus(PRUNE_EVERY);
    }
}

async fn dispatch_all(app: &App, mut wakes: mpsc::UnboundedReceiver<Hint>) {
    loop {
        tokio::select! {
            biased;
            () = app.stop.cancelled() => return,
            Some(wake) = wakes.recv() => dispatch(app, wake, &mut wakes).await,
        }
    }
}

/// Passes on everything that waits at once: what several wake-ups are about is looked at only once.
async fn dispatch(app: &App, first: Hint, wakes: &mut mpsc::UnboundedReceiver<Hint>) {
    let (mut tunnels, mut scopes) = (HashSet::new(), HashSet::new());
    let mut wake = Some(first);
    while let Some(next) = wake {
        match next {
            Hint::Device(device_id) => app.gateway.wake(device_id),
            Hint::Tunnel(tunnel_id) => drop(tunnels.insert(tunnel_id)),
            Hint::Deliveries => app.courier.wake(),
            Hint::Usage(scope_id) => drop(scopes.insert(scope_id)),
        }
        wake = wakes.try_recv().ok();
    }
    for tunnel_id in tunnels {
        app.nodes.apply(tunnel_id).await;
    }
    for scope_id in scopes {
        report("what a scope has used up could not be looked at", record_scope(app, scope_id, Vec::new()).await);
    }
}

/// Everything that is due; some of it only at every so many ticks. Where the database does not answer,
/// the rest waits for the next tick.
pub async fn tick(app: &App, ticks: u64) {
    let now = app.clock.now();
    // Another host may have written what is due now.
    app.courier.wake();
    app.nodes.refresh_countries().await;
    let steps: [(&str, BoxFuture<'_, Result<()>>); 6] = [
        ("presence could not be noted", Box::pin(app.store.record_seen(app.gateway.take_seen()))),
        ("request counts could not be kept", Box::pin(app.limits.save(&app.store, now))),
        ("what is due could not be done", Box::pin(app.store.sweep())),
        ("queued operations could not be looked for", Box::pin(wake_queued(app))),
        ("the nodes could not be brought up to date", Box::pin(app.nodes.reconcile())),
        ("traffic could not be noted", Box::pin(record_runs(app, !ticks.is_multiple_of(TRAFFIC_EVERY)))),
    ];
    for (what, step) in steps {
        let result = step.await;
        let failed = result.is_err();
        report(what, result);
        if failed && !app.store.answers().await {
            return;
        }
    }
    end_unknown_plans(app).await;
}

fn report(what: &str, result: Result<()>) {
    if let Err(error) = result {
        tracing::warn!(error = %Chain(&error), "{what}");
    }
}

async fn wake_queued(app: &App) -> Result<()> {
    app.store.devices_with_queued().await?.into_iter().for_each(|device_id| app.gateway.wake(device_id));
    Ok(())
}

/// Writes down what went through the nodes, scope by scope, and ends what has used up its month.
pub async fn record_traffic(app: &App) -> Result<()> {
    record_runs(app, false).await
}

/// With `over`, only of runs that have ended: their figures are final.
async fn record_runs(app: &App, over: bool) -> Result<()> {
    let mut by_scope: HashMap<Uuid, Vec<RunId>> = HashMap::new();
    for run in app.nodes.uncounted(over) {
        by_scope.entry(run.scope_id).or_default().push(run);
    }
    let mut result = Ok(());
    for (scope_id, runs) in by_scope {
        result = result.and(record_scope(app, scope_id, runs).await);
    }
    result
}

async fn record_scope(app: &App, scope_id: Uuid, runs: Vec<RunId>) -> Result<()> {
    let plan = app.store.scope(scope_id).await?.map(|scope| scope.plan).unwrap_or_default();
    let limit = gate::entitlement(&app.policies.pin(None), &plan)?.bandwidth_limit_bytes;
    if runs.is_empty() && limit.is_none() {
        return Ok(());
    }
    app.store
        .write(Some(scope_id), move |write| {
            Box::pin(async move {
                write.count_runs(&runs).await?;
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

/// Ends what runs under a plan that no policy knows: what such a plan allows, nobody has said.
async fn end_unknown_plans(app: &App) {
    let policies = app.policies.pin(None);
    for (scope_id, plan) in app.nodes.plans() {
        if policies.entitlement(&plan).is_ok_and(|known| known.is_none()) {
            tracing::warn!(%scope_id, plan, "no policy knows this plan; what runs under it ends");
            let end = app.store.write(Some(scope_id), move |write| {
                Box::pin(async move { write.end_sessions_of_scope(scope_id, EndReason::LimitReached).await })
            });
            report("what runs under an unknown plan could not be ended", end.await);
        }
    }
}

/// Notes what there is to note of a host that ends: its node serves nobody any longer.
pub async fn end_sessions_of_nodes(app: &App) -> Result<()> {
    report("traffic could not be noted", record_traffic(app).await);
    report("request counts could not be kept", app.limits.save(&app.store, app.clock.now()).await);
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
