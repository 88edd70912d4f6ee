//! `culvert policy replay`: what would other modules have said?

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::{Progress, Tool, settings};
use crate::cli::Output;
use crate::cli::{CliError, print, refused};
use crate::config::Config;
use crate::policies;
use culvert_policy::engine::engines::Engines;
use culvert_policy::engine::kind::Kind;
use culvert_policy::engine::sandbox::Limits;
use culvert_policy::load::artefact::Artefacts;
use culvert_policy::load::chain::{Loaded, Loader, Mode, Trust};
use culvert_policy::load::component::Configured;
use culvert_policy::load::dynamic::UntypedModule;
use culvert_policy::load::module_store::ModuleStore;
use culvert_policy::tools::replay::{Recorded, Report};

#[derive(Args)]
pub(crate) struct Replay {
    /// Decision records, as the host writes them (`decisions.file`)
    records: PathBuf,
    /// The module to ask [default: every module of the configuration]
    #[arg(long, value_name = "MODULE")]
    module: Option<PathBuf>,
    /// Its settings, TOML or JSON
    #[arg(long, value_name = "FILE", requires = "module")]
    settings: Option<PathBuf>,
    /// Whose answers it is compared with [default: those of the module of its name]
    #[arg(long, value_name = "NAME", requires = "module")]
    against: Option<String>,
    /// End with 1 where an answer would change
    #[arg(long)]
    fail_on_change: bool,
}

/// A module, and whose recorded answers it is held against.
struct Candidate {
    name: String,
    against: String,
    kind: Kind,
    dynamic: UntypedModule,
}

impl Replay {
    pub(crate) fn needs_host_config(&self) -> bool {
        self.module.is_none()
    }

    pub(crate) fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let progress = Progress::of("loading");
        let candidates = self.candidates(config)?;
        let mut reports: Vec<_> = candidates.iter().map(|candidate| Report::new(candidate.name.clone())).collect();
        let mut recorded = BTreeSet::new();
        let mut left: BTreeMap<String, usize> = BTreeMap::new();
        let fail = |problem: &dyn std::fmt::Display| refused(format!("{}: {problem}", self.records.display()));
        let file = File::open(&self.records).map_err(|e| fail(&e))?;
        let mut unreadable = 0;
        for line in BufReader::new(file).split(b'\n').enumerate() {
            let (line, text) = (line.0 + 1, line.1.map_err(|e| fail(&e))?);
            // A host that was killed while it wrote leaves half a line.
            let Ok(record) = serde_json::from_slice::<Recorded>(&text) else {
                unreadable += 1;
                continue;
            };
            progress.show(format!("line {line}"));
            let stands_for =
                |candidate: &Candidate| candidate.kind == record.kind && candidate.against == record.module;
            if self.module.is_none() && record.mode == "enforce" && !candidates.iter().any(stands_for) {
                *left.entry(record.module.clone()).or_default() += 1;
            }
            for (candidate, report) in candidates.iter().zip(&mut reports) {
                let is_same = candidate.name == record.module;
                if stands_for(candidate) && record.mode == "enforce" {
                    report.add(&candidate.dynamic, is_same, line, &record);
                }
            }
            recorded.insert((record.kind.name(), record.module));
        }
        drop(progress);
        if recorded.is_empty() {
            return Err(fail(&"it holds no decision record"));
        }
        let mut unasked = candidates.iter().zip(&reports).filter(|(_, report)| report.asked == 0);
        if self.module.is_some()
            && let Some((candidate, _)) = unasked.next()
        {
            return Err(fail(&nothing(candidate, &recorded)));
        }
        let value = json!({ "modules": reports, "not_configured": left, "unreadable_lines": unreadable });
        print(output, &value, || {
            let mut lines: Vec<_> = reports.iter().map(describe).collect();
            lines.extend(left.iter().map(|(module, decisions)| {
                let decisions = count(*decisions, "decision", "decisions");
                format!("{module}: {decisions}, of a module that the configuration does not have")
            }));
            lines.extend((unreadable > 0).then(|| {
                format!("{} no decision {}", count(unreadable, "line is", "lines are"), plural(unreadable, "record"))
            }));
            lines.join("\n")
        });
        match reports.iter().map(Report::doubtful).sum::<usize>() + left.values().sum::<usize>() + unreadable {
            0 => Ok(()),
            _ if !self.fail_on_change => Ok(()),
            doubtful => Err(refused(format!(
                "{} or cannot be compared",
                count(doubtful, "answer would change", "answers would change")
            ))),
        }
    }

    fn candidates(&self, config: &Config) -> Result<Vec<Candidate>, CliError> {
        let Some(path) = &self.module else { return configured(config) };
        let Tool { engines, module } = Tool::open(path)?;
        let taken = settings(self.settings.as_ref())?;
        let configured = module.configure(&engines, &Artefacts::none(), &taken, Limits::generous()).map_err(refused)?;
        Ok(vec![candidate(&engines, &configured, self.against.clone())?])
    }
}

/// The modules that the configuration would have decide.
fn configured(config: &Config) -> Result<Vec<Candidate>, CliError> {
    let (engines, loaded) = load_chain(config, Trust::Path)?;
    let deciding = loaded.iter().filter(|loaded| loaded.entry.mode == Mode::Enforce);
    deciding.map(|Loaded { module, .. }| candidate(&engines, module, None)).collect()
}

/// Loads the chain of the configuration.
pub(super) fn load_chain(config: &Config, trust: Trust) -> Result<(Engines, Vec<Loaded>), CliError> {
    let loader = loader(config, trust)?;
    let loaded = loader.load(&config.policy).map_err(refused)?;
    Ok((loader.engines, loaded))
}

/// Loads modules as a host of the configuration does.
pub(super) fn loader(config: &Config, trust: Trust) -> Result<Loader, CliError> {
    Ok(Loader {
        engines: Engines::new(1).map_err(refused)?,
        artefacts: Artefacts::none(),
        modules: ModuleStore::reading(&policies::module_folder(config)),
        folder: ".".into(),
        trust,
        origins: policies::origins(config)?,
    })
}

fn candidate(engines: &Engines, module: &Configured, against: Option<String>) -> Result<Candidate, CliError> {
    let name = module.description.name.clone();
    let against = against.unwrap_or_else(|| name.clone());
    let dynamic = UntypedModule::new(engines, module).map_err(refused)?;
    Ok(Candidate { name, against, kind: module.kind, dynamic })
}

fn nothing(candidate: &Candidate, recorded: &BTreeSet<(&str, String)>) -> String {
    let same_kind = recorded.iter().filter(|(kind, _)| *kind == candidate.kind.name());
    let names: Vec<&str> = same_kind.map(|(_, name)| name.as_str()).collect();
    let kind = candidate.kind;
    if names.is_empty() {
        format!("it holds no decision of a {kind} policy")
    } else {
        let names = names.join(", ");
        format!("it holds no {kind} decision of {}; name one of {names} with --against", candidate.against)
    }
}

fn describe(report: &Report) -> String {
    let asked = count(report.asked, "decision", "decisions");
    let mut lines = vec![format!("{}: {asked}, {} would change", report.module, report.changed.len())];
    lines.extend(report.not_comparable.iter().map(|(why, records)| format!("  {records} cannot be compared: {why}")));
    for changed in &report.changed {
        let asker = changed.request_id.as_ref().map_or_else(|| "the host itself".into(), |id| format!("request {id}"));
        lines.push(format!("  line {}, {}, {asker}", changed.line, changed.time));
        lines.push(format!("    was       {}", short(&changed.was)));
        lines.push(format!("    would be  {}", short(&changed.would_be)));
    }
    lines.join("\n")
}

/// `1 line is`, `2 lines are`.
pub(super) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

fn plural(number: usize, word: &str) -> String {
    if number == 1 { word.into() } else { format!("{word}s") }
}

fn short(answer: &Value) -> String {
    answer.as_str().map_or_else(|| answer.to_string(), String::from)
}
