//! `culvert policy check` and `inspect`: what a component is, before any host loads it.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::{Progress, Tool, settings};
use crate::cli::Output;
use crate::cli::{CliError, print, refused};
use culvert_policy::engine::kind::{INTERFACE_VERSION, Kind};
use culvert_policy::engine::sandbox::Limits;
use culvert_policy::load::artefact::Artefacts;
use culvert_policy::load::cases::File;
use culvert_policy::tools::compile;

#[derive(Args)]
pub(crate) struct Check {
    /// The component
    module: PathBuf,
    /// What it must decide
    #[arg(long)]
    kind: Option<Kind>,
    /// The settings that it must take, TOML or JSON
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// What it may use, as `memory_kib` in the configuration
    #[arg(long, default_value_t = 2048, value_name = "KIB")]
    memory_kib: u32,
    /// How long one decision may take, as `deadline_ms` in the configuration
    #[arg(long, default_value_t = 50, value_name = "MS")]
    deadline_ms: u32,
}

impl Check {
    pub(crate) fn run(self, output: Output) -> Result<(), CliError> {
        let fail = |problem: &dyn std::fmt::Display| refused(format!("{}: {problem}", self.module.display()));
        let shown = Progress::of("checking");
        let Tool { engines, module } = Tool::open(&self.module)?;
        if self.kind.is_some_and(|kind| kind != module.kind) {
            return Err(fail(&format!("it is a {} policy", module.kind)));
        }
        let limits = Limits {
            deadline: std::time::Duration::from_millis(self.deadline_ms.into()),
            memory_bytes: (self.memory_kib as usize * 1024).min(culvert_policy::engine::engines::MEMORY_LIMIT),
        };
        let artefacts = Artefacts::none();
        let taken = settings(self.settings.as_ref())?;
        module.configure(&engines, &artefacts, &taken, limits).map_err(|e| fail(&e))?;
        let mut cases = 0;
        for file in File::bundled(&module.wasm).map_err(|e| fail(&e))? {
            let configuring = file.configuring(&engines, &module, limits).map_err(|e| fail(&e))?;
            let failed = file.outcomes(&configuring).find(|outcome| !outcome.passed());
            if let Some(failed) = failed {
                return Err(fail(&format!("its case \"{}\" fails: {}", failed.name, failed.problem())));
            }
            cases += file.cases.len();
        }
        let value = json!({"kind": module.kind, "interface": INTERFACE_VERSION, "cases": cases});
        drop(shown);
        print(output, &value, || {
            format!(
                "{}: a {} policy for policy API {INTERFACE_VERSION}; it imports nothing, takes the settings, and passes \
                 its {cases} cases",
                self.module.display(),
                module.kind
            )
        });
        Ok(())
    }
}

#[derive(Args)]
pub(crate) struct Inspect {
    /// The component
    module: PathBuf,
}

impl Inspect {
    pub(crate) fn run(self, output: Output) -> Result<(), CliError> {
        let Tool { module, .. } = Tool::open(&self.module)?;
        let about = &module.description;
        let rules: Vec<_> = about.rules.iter().map(|rule| json!({"id": rule.id, "summary": rule.summary})).collect();
        let codes: Vec<_> = about.codes.iter().map(|code| json!({"code": code.code, "text": code.text})).collect();
        let schema: Value = serde_json::from_str(&about.settings_schema).map_err(refused)?;
        let cases: usize = File::bundled(&module.wasm).map_err(refused)?.iter().map(|file| file.cases.len()).sum();
        let sources = compile::built_from(&module.wasm);
        let value = json!({
            "name": about.name,
            "version": about.version,
            "summary": about.summary,
            "kind": module.kind,
            "interface": INTERFACE_VERSION,
            "sha256": module.digest,
            "sources": sources,
            "bytes": module.wasm.len(),
            "memory_bytes": module.initial_memory_bytes,
            "cases": cases,
            "facts": module.facts.iter().collect::<Vec<_>>(),
            "rules": rules,
            "codes": codes,
            "settings_schema": schema,
        });
        print(output, &value, || {
            let mut lines = vec![
                format!("{} {}: {}", about.name, about.version, about.summary),
                format!("kind       {}", module.kind),
                format!("interface  {INTERFACE_VERSION}"),
                format!("sha256     {}", module.digest),
                format!("size       {} bytes", module.wasm.len()),
                format!("memory     {} KiB", module.initial_memory_bytes / 1024),
                format!("cases      {cases}"),
            ];
            lines.extend(module.facts.iter().map(|fact| format!("fact       {fact}: {}", fact.meaning().1)));
            lines.extend(about.rules.iter().map(|rule| format!("rule       {}: {}", rule.id, rule.summary)));
            lines.extend(about.codes.iter().map(|code| format!("code       {}: {}", code.code, code.text)));
            lines.extend(schema["properties"].as_object().into_iter().flatten().map(|(name, setting)| {
                format!("setting    {name}: {}", setting["description"].as_str().unwrap_or("(not described)"))
            }));
            lines.join("\n")
        });
        Ok(())
    }
}
