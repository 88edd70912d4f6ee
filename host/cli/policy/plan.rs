//! `culvert policy plan`: what a reload would change, and for whom. It takes nothing over.

use std::path::PathBuf;

use clap::Args;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Notify;

use super::replay::{count, loader};
use super::{Progress, admin_client};
use crate::cli::Output;
use crate::cli::{CliError, operator, print, refused, table};
use crate::config::Config;
use crate::policies::{self, HostPlan};
use culvert_policy::load::policies::{ModuleBytes, Source};
use culvert_policy::tools::policy_plan::{Changed, HourSummary, LastHour, PlannedModule, PolicyPlan};
use culvert_service::policy_rollout;

/// Most lines of changes that are shown; `--json` has all of them.
const SHOWN: usize = 20;

#[derive(Args, Default)]
pub(crate) struct Plan {
    /// Decision records to compare with, of which the last hour is asked again [default: those of each host on the database, or the file of decisions.file]
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
}

impl Plan {
    pub(crate) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let progress = Progress::of("loading and comparing");
        let loader = loader(config, config.trust)?;
        let (loaded, modules) = loader.load_from(Source::Configured, &config.policy, &[]).map_err(refused)?;
        let running = admin_client::answer(config, Method::GET, "policies").await.ok().and_then(Result::ok);
        let running = running.and_then(|status| Vec::<PlannedModule>::deserialize(&status["modules"]).ok());
        let hosts = if self.records.is_none() { at_hosts(config, modules).await? } else { Vec::new() };
        // Each host has the records of its own.
        let own = self.records.as_deref().or(config.decisions.file.as_deref()).filter(|_| hosts.is_empty());
        let plan = PolicyPlan::of(&loader.engines, &loaded, &config.default_plan, running.as_deref(), own);
        let plan = plan.map_err(refused)?;
        drop(progress);
        let mut value = json!(plan);
        value["hosts"] = json!(hosts);
        print(output, &value, || describe(&plan, &hosts));
        verdict(&plan, &hosts)
    }
}

/// What the hosts say that run on the database.
async fn at_hosts(config: &Config, modules: Vec<ModuleBytes>) -> Result<Vec<HostPlan>, CliError> {
    if !config.is_on_a_server() {
        return Ok(Vec::new());
    }
    let (store, secrets) = operator::store_and_secrets(config).await?;
    let generation = policies::configured_policies(config).of(&modules).map_err(refused)?;
    let tried = policy_rollout::try_at_hosts(&store, &secrets, &generation, modules, &Notify::new()).await;
    let tried = tried.map_err(refused)?;
    Ok(tried.into_iter().map(Into::into).collect())
}

/// An error where a reload would fail, or change decisions.
fn verdict(plan: &PolicyPlan, hosts: &[HostPlan]) -> Result<(), CliError> {
    if let Some((host, problem)) = hosts.iter().find_map(|plan| Some((&plan.host, plan.problem.as_ref()?))) {
        return Err(refused(format!("host {host}: {problem}; nothing was taken over")));
    }
    let elsewhere = hosts.iter().filter_map(|plan| plan.last_hour.as_ref()).map(|hour| hour.doubtful);
    match plan.last_hour.as_ref().map_or(0, |hour| hour.report.doubtful()) + elsewhere.sum::<usize>() {
        0 => Ok(()),
        doubtful => Err(refused(format!(
            "{} or cannot be compared; nothing was taken over",
            count(doubtful, "decision would change", "decisions would change")
        ))),
    }
}

fn describe(plan: &PolicyPlan, hosts: &[HostPlan]) -> String {
    let modules = count(plan.modules.len(), "module", "modules");
    let mut lines = vec![format!("{modules} can be loaded, and pass their cases")];
    match &plan.changes {
        None => lines.push("no host answers on admin_listen, so what is loaded now is not known".into()),
        Some(changes) => {
            for (sign, modules) in [("-", &changes.goes), ("+", &changes.comes)] {
                lines.extend(modules.iter().map(|module| format!("  {sign} {module}")));
            }
            lines.extend(changes.is_reordered.then(|| "  the order of the modules changes".to_owned()));
        }
    }
    if hosts.is_empty() {
        lines.push(describe_hour(plan.last_hour.as_ref().map(LastHour::summary)));
    }
    for HostPlan { host, problem, last_hour } in hosts {
        let said = problem.clone().unwrap_or_else(|| describe_hour(last_hour.clone()));
        lines.push(format!("at host {host}: {said}"));
    }
    lines.join("\n")
}

fn describe_hour(hour: Option<HourSummary>) -> String {
    let Some(HourSummary { decisions, changed, groups, notes, .. }) = hour else {
        return "no decisions are recorded (`decisions.file`), so nothing was compared".into();
    };
    let decisions = count(decisions, "decision", "decisions");
    let mut lines = vec![format!("the last hour on record: {decisions}, {changed} would change")];
    lines.extend(notes.iter().map(|note| format!("  {note}")));
    if groups.is_empty() {
        return lines.join("\n");
    }
    let columns = ["scope", "account", "action", "was", "would be", "times"];
    let mut rows = vec![columns.map(str::to_uppercase).to_vec()];
    let left = groups.len().saturating_sub(SHOWN);
    rows.extend(groups.into_iter().take(SHOWN).map(
        |Changed { scope_id, account_id, action, was, would_be, times }| {
            vec![scope_id, account_id, action, was, would_be, times.to_string()]
        },
    ));
    lines.push(table(rows));
    lines.extend((left > 0).then(|| format!("and {left} more; `--json` has all of them")));
    lines.join("\n")
}
