//! What a reload would change, and for whom. It takes nothing over.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::engine::engines::Engines;
use crate::engine::kind::Kind;
use crate::load::chain::{ChainError, Loaded, Mode};
use crate::load::dynamic::UntypedModule;
use crate::load::load_error::LoadError;
use crate::tools::chain_replay::{self, ChainReport, Change};
use crate::tools::recent_records::{self, RecentRecords};

/// What is known of the policies that a configuration names, beside those that are in use.
#[derive(Debug, Serialize)]
pub struct PolicyPlan {
    pub modules: Vec<PlannedModule>,
    /// None where it is not known what is in use.
    pub changes: Option<Changes>,
    /// What would become of the decisions of the last hour; none where none are recorded.
    pub last_hour: Option<LastHour>,
}

/// A module as the status shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlannedModule {
    pub kind: Kind,
    pub mode: Mode,
    pub name: String,
    pub version: String,
    pub sha256: String,
    pub settings_sha256: String,
    pub deadline_ms: u32,
    pub memory_kib: u32,
    /// The module's name in the configuration.
    pub module: String,
}

/// The modules that come and go; one whose content or settings change goes and comes.
#[derive(Debug, Serialize)]
pub struct Changes {
    pub comes: Vec<PlannedModule>,
    pub goes: Vec<PlannedModule>,
    #[serde(rename = "reordered")]
    pub is_reordered: bool,
}

#[derive(Debug, Serialize)]
pub struct LastHour {
    #[serde(flatten)]
    pub report: ChainReport,
    #[serde(rename = "unreadable_lines")]
    pub unreadable: usize,
    #[serde(rename = "cut")]
    pub is_cut: bool,
}

/// Most groups of changes that a host tells another one.
const MOST_TOLD: usize = 1000;

/// What would become of the decisions of a host's last hour, as it tells others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HourSummary {
    pub decisions: usize,
    /// How many would change.
    pub changed: usize,
    /// How many would change, or may change.
    pub doubtful: usize,
    pub groups: Vec<Changed>,
    /// What was not compared, and why.
    pub notes: Vec<String>,
}

/// Decisions that would change alike, and how many they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    pub scope_id: String,
    pub account_id: String,
    pub action: String,
    pub was: String,
    pub would_be: String,
    pub times: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("{0}")]
    Module(#[from] LoadError),
    #[error("{0}")]
    DefaultPlan(ChainError),
    #[error("{}: {error}", path.display())]
    Records { path: PathBuf, error: io::Error },
}

impl PolicyPlan {
    /// Compares loaded modules with those in use, and asks them once more what was decided in the last hour of a file of
    /// decision records.
    ///
    /// # Errors
    ///
    /// If no module knows the default plan, which new accounts get; if the records cannot be read.
    pub fn of(
        engines: &Engines,
        loaded: &[Loaded],
        default_plan: &str,
        running: Option<&[PlannedModule]>,
        records: Option<&Path>,
    ) -> Result<Self, PlanError> {
        let deciding = loaded.iter().filter(|loaded| loaded.entry.mode == Mode::Enforce);
        let asked = deciding.map(|Loaded { module, .. }| UntypedModule::new(engines, module));
        let asked: Vec<_> = asked.collect::<Result<_, _>>()?;
        check_default_plan(&asked, default_plan)?;
        let last_hour = records.map(|path| compare(path, &asked)).transpose()?;
        let modules: Vec<_> = loaded.iter().map(PlannedModule::of).collect();
        let changes = running.map(|running| Changes::of(running, &modules));
        Ok(Self { modules, changes, last_hour })
    }
}

fn check_default_plan(modules: &[UntypedModule], plan: &str) -> Result<(), PlanError> {
    let mut asked = modules.iter().filter(|module| module.kind() == Kind::PlanAccess);
    let knows = |module: &UntypedModule| {
        module.ask(Some("entitlements"), &json!({ "plan": plan })).is_ok_and(|answer| !answer.is_null())
    };
    if asked.any(knows) { Ok(()) } else { Err(PlanError::DefaultPlan(ChainError::DefaultPlan(plan.into()))) }
}

fn compare(path: &Path, modules: &[UntypedModule]) -> Result<LastHour, PlanError> {
    let read = || recent_records::last_hour(&mut File::open(path)?);
    let RecentRecords { records, unreadable, is_cut } =
        read().map_err(|error| PlanError::Records { path: path.to_owned(), error })?;
    Ok(LastHour { report: chain_replay::replay(modules, records), unreadable, is_cut })
}

impl fmt::Display for PlannedModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, version, module, .. } = self;
        write!(f, "{kind} {name} {version} ({module})")
    }
}

impl PlannedModule {
    pub fn of(loaded: &Loaded) -> Self {
        let Loaded { entry, module, .. } = loaded;
        Self {
            kind: module.kind,
            mode: entry.mode,
            name: module.description.name.clone(),
            version: module.description.version.clone(),
            sha256: module.digest.clone(),
            settings_sha256: module.settings_digest.clone(),
            deadline_ms: entry.deadline_ms,
            memory_kib: entry.memory_kib,
            module: entry.module.clone(),
        }
    }

    /// Whether it decides as another one does, wherever either comes from.
    fn is_same(&self, other: &Self) -> bool {
        (self.kind, self.mode, self.deadline_ms, self.memory_kib)
            == (other.kind, other.mode, other.deadline_ms, other.memory_kib)
            && (&self.sha256, &self.settings_sha256) == (&other.sha256, &other.settings_sha256)
    }
}

impl Changes {
    fn of(running: &[PlannedModule], planned: &[PlannedModule]) -> Self {
        let (comes, goes) = (without(planned, running), without(running, planned));
        let in_order = |kind: Kind| {
            let of_kind = |modules: &[PlannedModule]| {
                modules.iter().filter(|module| module.kind == kind).cloned().collect::<Vec<_>>()
            };
            of_kind(running).iter().zip(&of_kind(planned)).all(|(one, other)| one.is_same(other))
        };
        let is_reordered = comes.is_empty() && goes.is_empty() && !Kind::ALL.into_iter().all(in_order);
        Self { comes, goes, is_reordered }
    }
}

/// What is left of one list where each module of the other takes away one that is the same.
fn without(from: &[PlannedModule], others: &[PlannedModule]) -> Vec<PlannedModule> {
    let mut left = from.to_vec();
    for other in others {
        left.iter().position(|module| module.is_same(other)).map(|place| left.remove(place));
    }
    left
}

impl LastHour {
    /// What was not compared, and why.
    fn notes(&self) -> Vec<String> {
        let Self { report, unreadable, is_cut } = self;
        let mut notes = Vec::new();
        notes.extend(is_cut.then(|| "only the newest 64 MiB of records were read".to_owned()));
        notes.extend((*unreadable > 0).then(|| format!("{unreadable} lines are no decision records")));
        notes.extend(report.not_comparable.iter().map(|(why, number)| format!("{number} cannot be compared: {why}")));
        notes
    }

    pub fn summary(&self) -> HourSummary {
        let (mut groups, mut notes) = (self.changed(), self.notes());
        if groups.len() > MOST_TOLD {
            notes.push(format!("only {MOST_TOLD} of {} kinds of changes are shown", groups.len()));
            groups.truncate(MOST_TOLD);
        }
        let report = &self.report;
        let (decisions, changed, doubtful) = (report.decisions, report.changed.len(), report.doubtful());
        HourSummary { decisions, changed, doubtful, groups, notes }
    }

    /// The decisions that would change, those together that would change alike.
    fn changed(&self) -> Vec<Changed> {
        let mut grouped: BTreeMap<[String; 5], usize> = BTreeMap::new();
        for change in &self.report.changed {
            *grouped.entry(row(change)).or_default() += 1;
        }
        let changed = grouped.into_iter().map(|([scope_id, account_id, action, was, would_be], times)| Changed {
            scope_id,
            account_id,
            action,
            was,
            would_be,
            times,
        });
        changed.collect()
    }
}

fn row(change: &Change) -> [String; 5] {
    let action = change.action.clone().unwrap_or_else(|| change.kind.to_string());
    let Change { scope_id, account_id, was, would_be, .. } = change;
    [scope_id.clone(), account_id.clone(), action, outcome(was), outcome(would_be)]
}

/// An answer in a few words.
fn outcome(answer: &Value) -> String {
    match answer {
        Value::Array(violations) if violations.is_empty() => "valid".into(),
        Value::Array(violations) => {
            let fields = violations.iter().filter_map(|violation| violation["field"].as_str());
            format!("invalid: {}", fields.collect::<Vec<_>>().join(", "))
        }
        Value::String(answer) => answer.clone(),
        answer => answer["deny"]["code"].as_str().map_or_else(|| answer.to_string(), |code| format!("deny {code}")),
    }
}
