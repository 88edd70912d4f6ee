//! What a reload of the policies would change, as the dashboard shows it.

use std::sync::Arc;

use culvert_dashboard::{ChangedDecisions, WouldChange};
use culvert_policy::serve::generations::Generations;
use culvert_policy::tools::policy_plan::{Changed, HourSummary, PlannedModule};
use culvert_service::Service;
use futures_util::future::BoxFuture;

use crate::config::Config;
use crate::policies::{self, FleetPlan, HostPlan};

type Planning = BoxFuture<'static, Result<WouldChange, String>>;

/// Tells what a reload would change, in a task of its own, so that it leaves nothing behind if the browser disconnects.
pub(crate) fn planner(
    config: &Config,
    service: &Arc<Service>,
    policies: &Arc<Generations>,
) -> Box<dyn Fn() -> Planning + Send + Sync> {
    let (file, service, policies) = (config.file.clone(), service.clone(), policies.clone());
    Box::new(move || {
        let (file, service, policies) = (file.clone(), service.clone(), policies.clone());
        let plan = tokio::spawn(async move { policies::plan(&service, &policies, file.as_deref()).await });
        Box::pin(async move { plan.await.map_err(|panic| panic.to_string())?.map(shown) })
    })
}

/// A plan as the dashboard shows it.
fn shown(FleetPlan { plan, others }: FleetPlan) -> WouldChange {
    let names = |modules: &[PlannedModule]| modules.iter().map(ToString::to_string).collect::<Vec<_>>();
    let changes = plan.changes.as_ref();
    WouldChange {
        modules: plan.modules.len(),
        comes: changes.map(|changes| names(&changes.comes)).unwrap_or_default(),
        goes: changes.map(|changes| names(&changes.goes)).unwrap_or_default(),
        is_reordered: changes.is_some_and(|changes| changes.is_reordered),
        decisions: plan.last_hour.map(|hour| decisions(hour.summary())),
        others: others.into_iter().map(at_host).collect(),
    }
}

fn at_host(HostPlan { host, problem, last_hour }: HostPlan) -> (String, Result<Option<ChangedDecisions>, String>) {
    (host, problem.map_or(Ok(last_hour.map(decisions)), Err))
}

fn decisions(hour: HourSummary) -> ChangedDecisions {
    let row = |changed: Changed| {
        let Changed { scope_id, account_id, action, was, would_be, times } = changed;
        [scope_id, account_id, action, was, would_be, times.to_string()]
    };
    let HourSummary { decisions, changed, groups, notes, .. } = hour;
    ChangedDecisions { all: decisions, changed, rows: groups.into_iter().map(row).collect(), notes }
}
