//! `culvert policy …`: for authors of policies. None of it needs a host.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::json;

use super::{Problem, print, refused};
use crate::policy::build;
use crate::policy::component::{INTERFACE_VERSION, Module};
use crate::policy::engine::Engines;

#[derive(Subcommand)]
pub enum Policy {
    /// Build a policy crate and make it a component
    Build {
        /// The crate's folder
        #[arg(default_value = ".")]
        folder: PathBuf,
        /// The component's file, or the folder for it [default: the crate's folder]
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Show what a component says of itself
    Inspect { module: PathBuf },
}

impl Policy {
    pub fn run(self, json: bool) -> Result<(), Problem> {
        match self {
            Self::Build { folder, out } => build(json, &folder, out),
            Self::Inspect { module } => inspect(json, &module),
        }
    }
}

fn build(json: bool, folder: &Path, out: Option<PathBuf>) -> Result<(), Problem> {
    let built = build::build(folder).map_err(refused)?;
    let name = built.name.strip_prefix("culvert-policy-").unwrap_or(&built.name);
    let file = format!("{name}.wasm");
    let path = match out {
        Some(out) if out.is_dir() => out.join(file),
        Some(out) => out,
        None => folder.join(file),
    };
    std::fs::write(&path, &built.wasm).map_err(|error| refused(format!("{}: {error}", path.display())))?;
    // What was built is looked at as a host would: a mistake shows here, not there.
    let module = read(&path)?;
    let value = json!({
        "path": path,
        "kind": module.kind,
        "sha256": module.digest,
        "bytes": built.wasm.len(),
        "sources": built.sources,
    });
    print(json, &value, || {
        format!("{}: {} policy, {} bytes, sha256 {}", path.display(), module.kind, built.wasm.len(), module.digest)
    });
    Ok(())
}

fn read(path: &Path) -> Result<Module, Problem> {
    let fail = |problem: &dyn std::fmt::Display| refused(format!("{}: {problem}", path.display()));
    let wasm = std::fs::read(path).map_err(|e| fail(&e))?;
    let engines = Engines::new(1).map_err(refused)?;
    Module::read(&engines, wasm).map_err(|e| fail(&e))
}

fn inspect(json: bool, path: &Path) -> Result<(), Problem> {
    let module = read(path)?;
    let about = &module.description;
    let rules: Vec<_> = about.rules.iter().map(|rule| json!({"id": rule.id, "summary": rule.summary})).collect();
    let codes: Vec<_> = about.codes.iter().map(|code| json!({"code": code.code, "text": code.text})).collect();
    let schema: serde_json::Value = serde_json::from_str(&about.settings_schema).map_err(refused)?;
    let value = json!({
        "name": about.name,
        "version": about.version,
        "summary": about.summary,
        "kind": module.kind,
        "interface": INTERFACE_VERSION,
        "sha256": module.digest,
        "bytes": module.wasm.len(),
        "memory_bytes": module.initial_memory_bytes,
        "rules": rules,
        "codes": codes,
        "settings_schema": schema,
    });
    print(json, &value, || {
        let mut text = format!(
            "{} {}: {}\nkind       {}\ninterface  {INTERFACE_VERSION}\nsha256     {}\nsize       {} bytes\nmemory     {} KiB",
            about.name,
            about.version,
            about.summary,
            module.kind,
            module.digest,
            module.wasm.len(),
            module.initial_memory_bytes / 1024,
        );
        for rule in &about.rules {
            text += &format!("\nrule       {}: {}", rule.id, rule.summary);
        }
        for code in &about.codes {
            text += &format!("\ncode       {}: {}", code.code, code.text);
        }
        text
    });
    Ok(())
}
