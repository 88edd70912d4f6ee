//! The ticker: does what is due every second, and passes on the hints of committed transactions.
//!
//! All state is in the store, so the next tick makes up for a lost hint.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{Jobs, Ticker};
use crate::gate;
use crate::store::Hint;
use crate::store::error::first_error;
use crate::store::runs::RunId;
use culvert_domain::error::{Chain, Result};
use culvert_domain::session::EndReason;
use culvert_domain::usage::next_month;

const TICK: Duration = Duration::from_secs(1);
/// Ticks between two recordings of the traffic of sessions that still run.
const TRAFFIC_EVERY: u64 = 5;
/// Interval between two deletions of old rows, and delay of the first one. The delay is shorter, so that a
/// host that is restarted often deletes old rows as well.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
const FIRST_PRUNE: Duration = Duration::from_secs(60);

/// Runs until the host stops. Ticks, hints and deletions do not wait for each other: many hints do not delay
/// what is due, and a locked row does not delay hints.
pub async fn run(jobs: Arc<Jobs>, hints: mpsc::UnboundedReceiver<Hint>, mode: Ticker) {
    let time = async {
        if mode == Ticker::Auto {
            tokio::join!(keep_time(&jobs), prune(&jobs));
        }
    };
    tokio::join!(time, dispatch_all(&jobs, hints));
}

async fn keep_time(jobs: &Jobs) {
    let mut next = jobs.clock.moment().plus(TICK);
    for ticks in 1.. {
        tokio::select! {
            biased;
            () = jobs.stop.cancelled() => return,
            () = jobs.clock.until(next) => {
                next = jobs.clock.moment().plus(TICK);
                tick(jobs, ticks).await;
            }
        }
    }
}

async fn prune(jobs: &Jobs) {
    let mut next = jobs.clock.moment().plus(FIRST_PRUNE);
    while jobs.stop.run_until_cancelled(jobs.clock.until(next)).await.is_some() {
        if let Some(result) = jobs.stop.run_until_cancelled(jobs.service.store.prune()).await {
            report("old rows could not be deleted", result);
        }
        next = jobs.clock.moment().plus(PRUNE_EVERY);
    }
}

async fn dispatch_all(jobs: &Jobs, mut hints: mpsc::UnboundedReceiver<Hint>) {
    loop {
        tokio::select! {
            biased;
            () = jobs.stop.cancelled() => return,
            Some(wake) = hints.recv() => dispatch(jobs, wake, &mut hints).await,
        }
    }
}

/// Passes on all waiting hints. Several hints about one tunnel or scope are handled once.
async fn dispatch(jobs: &Jobs, first: Hint, hints: &mut mpsc::UnboundedReceiver<Hint>) {
    let (mut tunnels, mut scopes) = (HashSet::new(), HashSet::new());
    let mut wake = Some(first);
    while let Some(next) = wake {
        match next {
            Hint::Device(device_id) => jobs.agents.wake(device_id),
            Hint::Tunnel(tunnel_id) => drop(tunnels.insert(tunnel_id)),
            Hint::Deliveries => jobs.deliveries.wake(),
            Hint::Usage(scope_id) => drop(scopes.insert(scope_id)),
        }
        wake = hints.try_recv().ok();
    }
    for tunnel_id in tunnels {
        jobs.service.nodes.apply(tunnel_id).await;
    }
    for scope_id in scopes {
        report("what a scope has used up could not be looked at", record_scope(jobs, scope_id, Vec::new()).await);
    }
}

/// Does everything that is due; `ticks` counts the calls, because some work is done only every few ticks. If
/// the database does not answer, the rest waits for the next tick.
pub async fn tick(jobs: &Jobs, ticks: u64) {
    let now = jobs.clock.now();
    // Another host may have written deliveries that are due now.
    jobs.deliveries.wake();
    jobs.service.nodes.refresh_countries().await;
    let steps: [(&str, BoxFuture<'_, Result<()>>); 6] = [
        ("presence could not be noted", Box::pin(jobs.service.store.record_seen(jobs.agents.take_seen()))),
        ("request counts could not be kept", Box::pin(jobs.rate_limits.save(&jobs.service.store, now))),
        ("what is due could not be done", Box::pin(jobs.service.store.sweep())),
        ("queued operations could not be looked for", Box::pin(wake_queued(jobs))),
        ("the nodes could not be brought up to date", Box::pin(jobs.service.nodes.reconcile())),
        ("traffic could not be noted", Box::pin(record_runs(jobs, !ticks.is_multiple_of(TRAFFIC_EVERY)))),
    ];
    for (what, step) in steps {
        let result = step.await;
        let failed = result.is_err();
        report(what, result);
        if failed && !jobs.service.store.answers().await {
            return;
        }
    }
    end_unknown_plans(jobs).await;
}

fn report(what: &str, result: Result<()>) {
    if let Err(error) = result {
        tracing::warn!(error = %Chain(&error), "{what}");
    }
}

async fn wake_queued(jobs: &Jobs) -> Result<()> {
    jobs.service.store.devices_with_queued().await?.into_iter().for_each(|device_id| jobs.agents.wake(device_id));
    Ok(())
}

/// Records the traffic of the nodes by scope, and ends the sessions of scopes that have used up their monthly
/// bandwidth.
pub async fn record_traffic(jobs: &Jobs) -> Result<()> {
    record_runs(jobs, false).await
}

/// Records the traffic of runs. With `over`, only of runs that have ended: their counts are final.
async fn record_runs(jobs: &Jobs, over: bool) -> Result<()> {
    let mut by_scope: HashMap<Uuid, Vec<RunId>> = HashMap::new();
    for run in jobs.service.nodes.uncounted(over) {
        by_scope.entry(run.scope_id).or_default().push(run);
    }
    let mut result = Ok(());
    for (scope_id, runs) in by_scope {
        result = first_error(result, record_scope(jobs, scope_id, runs).await);
    }
    result
}

async fn record_scope(jobs: &Jobs, scope_id: Uuid, runs: Vec<RunId>) -> Result<()> {
    let plan = jobs.service.store.scope(scope_id).await?.map(|scope| scope.plan).unwrap_or_default();
    let limit = gate::entitlement(&jobs.service.policies.pin(None), &plan)?.bandwidth_limit_bytes;
    if runs.is_empty() && limit.is_none() {
        return Ok(());
    }
    jobs.service
        .store
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

/// Ends the sessions under a plan that no policy knows, because nothing defines what the plan allows.
async fn end_unknown_plans(jobs: &Jobs) {
    let policies = jobs.service.policies.pin(None);
    for (scope_id, plan) in jobs.service.nodes.plans() {
        if policies.entitlement(&plan).is_ok_and(|known| known.is_none()) {
            tracing::warn!(%scope_id, plan, "no policy knows this plan; what runs under it ends");
            let end = jobs.service.store.write(Some(scope_id), move |write| {
                Box::pin(async move { write.end_sessions_of_scope(scope_id, EndReason::LimitReached).await })
            });
            report("what runs under an unknown plan could not be ended", end.await);
        }
    }
}

/// Records the final state of a host that stops: traffic, request counts, and the end of its nodes' sessions.
pub async fn end_sessions_of_nodes(jobs: &Jobs) -> Result<()> {
    report("traffic could not be noted", record_traffic(jobs).await);
    report("request counts could not be kept", jobs.rate_limits.save(&jobs.service.store, jobs.clock.now()).await);
    let mut by_scope: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
    for node_id in jobs.service.nodes.ids() {
        for lease in jobs.service.store.leases_on_node(node_id).await? {
            by_scope.entry(lease.scope_id).or_default().push(lease.session_id);
        }
    }
    for (scope_id, session_ids) in by_scope {
        jobs.service.store.end_sessions(scope_id, session_ids, EndReason::NodeShutdown).await?;
    }
    Ok(())
}
