//! The ticker: does what is due every second, and passes on the hints of committed transactions.
//!
//! All state is in the store, so the next tick makes up for a lost hint.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::future::FutureExt;
use uuid::Uuid;

use super::{Jobs, Ticker, sweep};
use crate::scope_changes::INSTALLATION;
use crate::{Service, gate, locked_accounts, sessions};
use culvert_domain::error::{Chain, Result};
use culvert_domain::session::EndReason;
use culvert_store::Hint;
use culvert_store::due::{Due, Look};

const TICK: Duration = Duration::from_secs(1);
/// Ticks between two comparisons of what nodes were sent with what the database has.
const CHECK_EVERY: u64 = 30;
/// Interval between two deletions of old rows, and delay of the first one. The delay is shorter, so that a
/// host that is restarted often deletes old rows as well.
const PRUNE_EVERY: Duration = Duration::from_hours(1);
const FIRST_PRUNE: Duration = Duration::from_mins(1);

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
    while jobs.clock.until(next).with_cancellation_token(&jobs.stop).await.is_some() {
        if jobs.service.fleet.leads()
            && let Some(result) = jobs.service.store.prune().with_cancellation_token(&jobs.stop).await
        {
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

/// Passes on all waiting hints. Several hints about one node are handled once.
async fn dispatch(jobs: &Jobs, first: Hint, hints: &mut mpsc::UnboundedReceiver<Hint>) {
    let mut nodes = HashSet::new();
    let mut wake = Some(first);
    while let Some(next) = wake {
        match next {
            Hint::Device(device_id) => jobs.agents.wake(device_id),
            Hint::Host(host_id, what) => jobs.notifier.tell_host(host_id, what),
            Hint::LeaseEnded(session_id) => jobs.service.liveness.forget_lease(session_id),
            Hint::Node(node_id) => drop(nodes.insert(node_id)),
            Hint::Deliveries => jobs.deliveries.wake(),
            Hint::Mails => jobs.mail.wake(),
            Hint::Certificates => jobs.certificates.wake(),
            Hint::Scope(scope_id) => tell_pages(jobs, scope_id),
            Hint::Installation => tell_pages(jobs, INSTALLATION),
        }
        wake = hints.try_recv().ok();
    }
    for node_id in nodes {
        if !jobs.service.nodes.notify(node_id).await && jobs.service.fleet.has_others() {
            jobs.notifier.tell_node(node_id);
        }
    }
}

/// Has open pages of a scope show what has changed, those at other hosts as well.
fn tell_pages(jobs: &Jobs, scope_id: Uuid) {
    jobs.changes.tell(scope_id);
    if jobs.service.fleet.has_others() {
        jobs.notifier.scope_changed(scope_id);
    }
}

/// Does everything that is due; `ticks` counts the calls, because some work is done only every few ticks. If
/// the database does not answer, the rest waits for the next tick.
pub async fn tick(jobs: &Jobs, ticks: u64) {
    if !jobs.service.fleet.is_alive() {
        return;
    }
    // What this host holds comes first: what its memory has let go of meanwhile, the database has, and the look finds it.
    let held: Vec<Step<'_>> = vec![
        ("what is alive could not be recorded", Box::pin(record_alive(jobs))),
        ("request counts could not be kept", Box::pin(jobs.rate_limits.save(&jobs.service))),
        ("what this host holds could not be ended", Box::pin(sweep::held(&jobs.service))),
    ];
    if !run_steps(jobs, held).await {
        return;
    }
    let due = match look(jobs).await {
        Ok(due) => due,
        Err(error) => return report("what is due could not be looked for", Err(error)),
    };
    // Other processes may have written what is due now.
    let waits_since = due.oldest_delivery.unwrap_or(due.at);
    jobs.metrics.set_delivery_lag((due.at - waits_since).num_seconds());
    if due.oldest_delivery.is_some() {
        jobs.deliveries.wake();
    }
    if due.certificates {
        jobs.certificates.wake();
    }
    let policies_differ = due.policy_generation != jobs.service.policy_generation();
    if due.proposed_policies || policies_differ || !jobs.service.policies.is_confirmed() {
        jobs.service.heard_of_policies(&jobs.tasks);
    }
    if due.lost_hosts && jobs.service.fleet.replaces_nodes() {
        replace_lost_nodes(jobs);
    }
    let steps: Vec<Step<'_>> = vec![
        ("what is due could not be done", Box::pin(sweep::sweep(&jobs.service, due))),
        ("what other processes have changed could not be read", Box::pin(jobs.wakeups.wake(jobs, due))),
        ("what commands have changed could not be read", Box::pin(jobs.wakeups.look_for_commands(jobs))),
        ("what other hosts ask of nodes could not be read", Box::pin(take_requests(jobs, due))),
        ("moves of tunnels could not be confirmed", Box::pin(confirm_moves(jobs, due))),
        ("the nodes could not be brought up to date", Box::pin(jobs.service.nodes.tick(due.revisions))),
        ("the nodes could not be compared with the database", Box::pin(check_nodes(jobs, ticks))),
    ];
    if run_steps(jobs, steps).await {
        end_unknown_plans(jobs).await;
    }
}

/// A part of a tick, and what is said where it fails.
type Step<'a> = (&'static str, BoxFuture<'a, Result<()>>);

/// One after another. False where the database does not answer: the rest waits for the next tick.
async fn run_steps(jobs: &Jobs, steps: Vec<Step<'_>>) -> bool {
    for (what, step) in steps {
        let result = step.await;
        let failed = result.is_err();
        report(what, result);
        if failed && !jobs.service.store.answers().await {
            return false;
        }
    }
    true
}

/// Looks at what is due.
async fn look(jobs: &Jobs) -> Result<Due> {
    let Service { fleet, nodes, store, .. } = &*jobs.service;
    let look = Look { host_id: fleet.host_id(), node_ids: nodes.ids(), since: jobs.wakeups.looked_at() };
    store.due(&look).await
}

fn report(what: &str, result: Result<()>) {
    if let Err(error) = result {
        tracing::warn!(error = %Chain(&error), "{what}");
    }
}

async fn record_alive(jobs: &Jobs) -> Result<()> {
    let service = &jobs.service;
    let replaced = service.liveness.record(&service.store).await?;
    replaced.into_iter().for_each(|device_id| jobs.agents.replace(device_id));
    Ok(())
}

async fn take_requests(jobs: &Jobs, due: Due) -> Result<()> {
    if due.requests { jobs.service.nodes.take_requests().await } else { Ok(()) }
}

async fn confirm_moves(jobs: &Jobs, due: Due) -> Result<()> {
    let Service { fleet, nodes, store, .. } = &*jobs.service;
    if due.lost_nodes {
        nodes.end_lost(fleet.host_id()).await?;
    }
    if due.moves {
        nodes.confirm_moves().await?;
    }
    if due.moves_from_dead_nodes && fleet.leads() { store.confirm_moves_from_dead_nodes().await } else { Ok(()) }
}

/// Moves the tunnels of lost nodes. They may be many, and nothing else waits for them.
fn replace_lost_nodes(jobs: &Jobs) {
    let (service, stop) = (jobs.service.clone(), jobs.stop.clone());
    jobs.tasks.spawn(async move {
        if let Some(result) = service.replace_lost_nodes().with_cancellation_token(&stop).await {
            report("tunnels could not be moved from lost nodes", result);
        }
    });
}

async fn check_nodes(jobs: &Jobs, ticks: u64) -> Result<()> {
    if !ticks.is_multiple_of(CHECK_EVERY) {
        return Ok(());
    }
    jobs.service.nodes.check().await?;
    locked_accounts::stop_devices(&jobs.service.store).await
}

/// Ends the sessions under a plan that no policy knows, because nothing defines what the plan allows.
async fn end_unknown_plans(jobs: &Jobs) {
    // Those that decide may know a plan that the ones here do not.
    if jobs.service.policies.check().is_err() {
        return;
    }
    let policies = jobs.service.policies_now();
    for plan in jobs.service.nodes.plans().await {
        if !gate::known_entitlement(&policies, &plan).await.is_ok_and(|known| known.is_none()) {
            continue;
        }
        for scope_id in jobs.service.nodes.scopes_of(&plan).await {
            tracing::warn!(%scope_id, plan, "no policy knows this plan; what runs under it ends");
            let end = jobs.service.store.write(Some(scope_id), move |write| {
                Box::pin(async move { sessions::end_of_scope(write, scope_id, EndReason::LimitReached).await })
            });
            report("what runs under an unknown plan could not be ended", end.await);
        }
    }
}

/// Records the final state of a host that stops: request counts, and the end of its nodes' sessions.
///
/// # Errors
///
/// If the database fails.
pub async fn end_sessions_of_nodes(jobs: &Jobs) -> Result<()> {
    report("request counts could not be kept", jobs.rate_limits.save(&jobs.service).await);
    let mut by_scope: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
    for node_id in jobs.service.nodes.ids() {
        for lease in jobs.service.store.leases_on_node(node_id).await? {
            by_scope.entry(lease.scope_id).or_default().push(lease.session_id);
        }
    }
    for (scope_id, session_ids) in by_scope {
        sessions::end_all(&jobs.service.store, scope_id, session_ids, EndReason::NodeShutdown).await?;
    }
    Ok(())
}
