//! `culvert policy plan`: what a reload would change, and for whom. It takes nothing over.

use std::path::PathBuf;

use clap::Args;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use super::replay::{count, load_chain};
use super::{Progress, admin_client};
use crate::cli::Output;
use crate::cli::{CliError, print, refused, table};
use crate::config::Config;
use culvert_policy::tools::policy_plan::{Changed, LastHour, PlannedModule, PolicyPlan};

/// Most lines of changes that are shown; `--json` has all of them.
const SHOWN: usize = 20;

#[derive(Args, Default)]
pub(crate) struct Plan {
    /// Decision records to compare with, of which the last hour is asked again [default: the file of decisions.file]
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
}

impl Plan {
    pub(crate) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let progress = Progress::of("loading and comparing");
        let (engines, loaded) = load_chain(config, config.trust)?;
        let running = admin_client::answer(config, Method::GET, "policies").await.ok().and_then(Result::ok);
        let running = running.and_then(|status| Vec::<PlannedModule>::deserialize(&status["modules"]).ok());
        let records = self.records.as_deref().or(config.decisions.file.as_deref());
        let plan = PolicyPlan::of(&engines, &loaded, &config.default_plan, running.as_deref(), records);
        let plan = plan.map_err(refused)?;
        drop(progress);
        print(output, &json!(plan), || describe(&plan));
        match plan.last_hour.map_or(0, |hour| hour.report.doubtful()) {
            0 => Ok(()),
            doubtful => Err(refused(format!(
                "{} or cannot be compared; nothing was taken over",
                count(doubtful, "decision would change", "decisions would change")
            ))),
        }
    }
}

fn describe(plan: &PolicyPlan) -> String {
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
    match &plan.last_hour {
        None => lines.push("no decisions are recorded (`decisions.file`), so nothing was compared".into()),
        Some(hour) => lines.push(describe_hour(hour)),
    }
    lines.join("\n")
}

fn describe_hour(hour: &LastHour) -> String {
    let decisions = count(hour.report.decisions, "decision", "decisions");
    let mut lines = vec![format!("the last hour on record: {decisions}, {} would change", hour.report.changed.len())];
    lines.extend(hour.notes().iter().map(|note| format!("  {note}")));
    let changed = hour.changed();
    if changed.is_empty() {
        return lines.join("\n");
    }
    let columns = ["scope", "account", "action", "was", "would be", "times"];
    let mut rows = vec![columns.map(str::to_uppercase).to_vec()];
    let left = changed.len().saturating_sub(SHOWN);
    rows.extend(changed.into_iter().take(SHOWN).map(
        |Changed { scope_id, account_id, action, was, would_be, times }| {
            vec![scope_id, account_id, action, was, would_be, times.to_string()]
        },
    ));
    lines.push(table(rows));
    lines.extend((left > 0).then(|| format!("and {left} more; `--json` has all of them")));
    lines.join("\n")
}
