//! `culvert policy plan`: what a reload would change, and for whom. It takes nothing over.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use super::replay::{count, load_chain, short};
use super::{Progress, admin_client};
use crate::cli::Output;
use crate::cli::{CliError, print, refused, table};
use crate::config::Config;
use culvert_policy::engine::kind::Kind;
use culvert_policy::load::chain::{ChainError, Loaded, Mode};
use culvert_policy::load::dynamic::UntypedModule;
use culvert_policy::tools::chain_replay::{self, ChainReport, Change};
use culvert_policy::tools::recent_records::{self, RecentRecords};

/// Most lines of changes that are shown; `--json` has all of them.
const SHOWN: usize = 20;

#[derive(Args, Default)]
pub(crate) struct Plan {
    /// Decision records to compare with, of which the last hour is asked again [default: the file of decisions.file]
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
}

/// What came of the records.
struct Compared {
    report: ChainReport,
    unreadable: usize,
    is_cut: bool,
}

impl Plan {
    pub(crate) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let progress = Progress::of("loading and comparing");
        let (engines, loaded) = load_chain(config, config.trust)?;
        let deciding = loaded.iter().filter(|loaded| loaded.entry.mode == Mode::Enforce);
        let modules = deciding.map(|Loaded { module, .. }| UntypedModule::new(&engines, module).map_err(refused));
        let modules: Vec<_> = modules.collect::<Result<_, _>>()?;
        check_default_plan(&modules, &config.default_plan)?;
        let records = self.records.as_ref().or(config.decisions.file.as_ref());
        let compared = records.map(|path| compare(path, &modules)).transpose()?;
        let running = admin_client::answer(config, Method::GET, "policies").await;
        let running = running.ok().and_then(Result::ok);
        drop(progress);
        let modules: Vec<_> = loaded.iter().map(described).collect();
        let changes = running.as_ref().map(|status| difference(&status["modules"], &modules));
        let compared_json = compared.as_ref().map(|compared| {
            let Compared { report, unreadable, is_cut } = compared;
            let mut value = json!(report);
            value["unreadable_lines"] = (*unreadable).into();
            value["cut"] = (*is_cut).into();
            value
        });
        let value = json!({ "modules": modules, "changes": changes, "last_hour": compared_json });
        print(output, &value, || describe(&modules, changes.as_ref(), compared.as_ref()));
        match compared.map_or(0, |compared| compared.report.doubtful()) {
            0 => Ok(()),
            doubtful => Err(refused(format!(
                "{} or cannot be compared; nothing was taken over",
                count(doubtful, "decision would change", "decisions would change")
            ))),
        }
    }
}

/// A plan that no module knows would leave new accounts with nothing.
fn check_default_plan(modules: &[UntypedModule], plan: &str) -> Result<(), CliError> {
    let mut asked = modules.iter().filter(|module| module.kind() == Kind::PlanAccess);
    let knows = |module: &UntypedModule| {
        module.ask(Some("entitlements"), &json!({ "plan": plan })).is_ok_and(|answer| !answer.is_null())
    };
    if asked.any(knows) { Ok(()) } else { Err(refused(ChainError::DefaultPlan(plan.into()))) }
}

fn compare(path: &Path, modules: &[UntypedModule]) -> Result<Compared, CliError> {
    let fail = |error: std::io::Error| refused(format!("{}: {error}", path.display()));
    let mut file = File::open(path).map_err(fail)?;
    let RecentRecords { records, unreadable, is_cut } = recent_records::last_hour(&mut file).map_err(fail)?;
    Ok(Compared { report: chain_replay::replay(modules, records), unreadable, is_cut })
}

/// A module as `status` shows it.
fn described(loaded: &Loaded) -> Value {
    let Loaded { entry, module, .. } = loaded;
    json!({
        "kind": module.kind,
        "mode": entry.mode,
        "name": module.description.name,
        "version": module.description.version,
        "sha256": module.digest,
        "settings_sha256": module.settings_digest,
        "deadline_ms": entry.deadline_ms,
        "memory_kib": entry.memory_kib,
        "module": entry.module,
    })
}

/// The modules that come and go; one whose content or settings change goes and comes.
fn difference(running: &Value, planned: &[Value]) -> Value {
    let same = ["kind", "mode", "sha256", "settings_sha256", "deadline_ms", "memory_kib"];
    let is_same = |one: &Value, other: &Value| same.iter().all(|field| one[*field] == other[*field]);
    let running: Vec<Value> = running.as_array().cloned().unwrap_or_default();
    // What is left of one list where each module of the other takes away one that is the same.
    let without = |from: &[Value], others: &[Value]| {
        let mut left = from.to_vec();
        for other in others {
            left.iter().position(|module| is_same(module, other)).map(|place| left.remove(place));
        }
        left
    };
    let (comes, goes) = (without(planned, &running), without(&running, planned));
    let of_kind = |modules: &[Value], kind: Kind| -> Vec<Value> {
        modules.iter().filter(|module| module["kind"] == kind.name()).cloned().collect()
    };
    let in_order = |kind: Kind| {
        let (before, after) = (of_kind(&running, kind), of_kind(planned, kind));
        before.iter().zip(&after).all(|(one, other)| is_same(one, other))
    };
    let is_reordered = comes.is_empty() && goes.is_empty() && !Kind::ALL.into_iter().all(in_order);
    json!({ "comes": comes, "goes": goes, "reordered": is_reordered })
}

fn describe(modules: &[Value], changes: Option<&Value>, compared: Option<&Compared>) -> String {
    let mut lines = vec![format!("{} can be loaded, and pass their cases", count(modules.len(), "module", "modules"))];
    match changes {
        None => lines.push("no host answers on admin_listen, so what is loaded now is not known".into()),
        Some(changes) => {
            for (sign, which) in [("-", "goes"), ("+", "comes")] {
                lines.extend(changes[which].as_array().into_iter().flatten().map(|module| {
                    let text = |field: &str| module[field].as_str().unwrap_or_default().to_owned();
                    let (kind, name, version) = (text("kind"), text("name"), text("version"));
                    format!("  {sign} {kind} {name} {version} ({})", text("module"))
                }));
            }
        }
    }
    let is_reordered = changes.is_some_and(|changes| changes["reordered"] == true);
    lines.extend(is_reordered.then(|| "  the order of the modules changes".to_owned()));
    match compared {
        None => lines.push("no decisions are recorded (`decisions.file`), so nothing was compared".into()),
        Some(compared) => lines.push(describe_compared(compared)),
    }
    lines.join("\n")
}

fn describe_compared(compared: &Compared) -> String {
    let Compared { report, unreadable, is_cut } = compared;
    let decisions = count(report.decisions, "decision", "decisions");
    let mut lines = vec![format!("the last hour on record: {decisions}, {} would change", report.changed.len())];
    let cut = "  only the newest 64 MiB of records were read";
    lines.extend(is_cut.then(|| cut.to_owned()));
    lines.extend((*unreadable > 0).then(|| format!("  {unreadable} lines are no decision records")));
    lines.extend(report.not_comparable.iter().map(|(why, number)| format!("  {number} cannot be compared: {why}")));
    let mut grouped: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for change in &report.changed {
        *grouped.entry(row(change)).or_default() += 1;
    }
    if grouped.is_empty() {
        return lines.join("\n");
    }
    let columns = ["scope", "account", "action", "was", "would be", "times"];
    let mut rows = vec![columns.map(str::to_uppercase).to_vec()];
    let left = grouped.len().saturating_sub(SHOWN);
    rows.extend(grouped.into_iter().take(SHOWN).map(|(row, times)| [row, vec![times.to_string()]].concat()));
    lines.push(table(rows));
    lines.extend((left > 0).then(|| format!("and {left} more; `--json` has all of them")));
    lines.join("\n")
}

fn row(change: &Change) -> Vec<String> {
    let action = change.action.clone().unwrap_or_else(|| change.kind.to_string());
    let Change { scope_id, account_id, was, would_be, .. } = change;
    vec![scope_id.clone(), account_id.clone(), action, outcome(was), outcome(would_be)]
}

/// An answer in a few words.
fn outcome(answer: &Value) -> String {
    match answer {
        Value::Array(violations) if violations.is_empty() => "valid".into(),
        Value::Array(violations) => {
            let fields = violations.iter().filter_map(|violation| violation["field"].as_str());
            format!("invalid: {}", fields.collect::<Vec<_>>().join(", "))
        }
        answer => answer["deny"]["code"].as_str().map_or_else(|| short(answer), |code| format!("deny {code}")),
    }
}
