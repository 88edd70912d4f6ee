//! `culvert policy build`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::{Progress, Tool};
use crate::cli::Output;
use crate::cli::{CliError, print, refused};
use culvert_policy::tools::compile::{self, CompiledPolicy};
use culvert_policy::tools::rules_project::{self, RulesProject};

#[derive(Args)]
pub(crate) struct Build {
    /// The project's folder
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// The component's file, or the folder for it [default: the project's folder]
    #[arg(long)]
    out: Option<PathBuf>,
}

impl Build {
    pub(crate) fn run(self, output: Output) -> Result<(), CliError> {
        let Self { folder, out } = self;
        let built = build(&folder)?;
        let name = built.name.strip_prefix("culvert-policy-").unwrap_or(&built.name);
        let file = format!("{name}.wasm");
        let path = match out {
            Some(out) if out.is_dir() => out.join(file),
            Some(out) => out,
            None => folder.join(file),
        };
        // What was built is looked at as a host would: a mistake shows here, not there.
        let Tool { module, .. } = Tool::of(built.wasm).map_err(refused)?;
        write_whole(&path, &module.wasm)?;
        let value = json!({
            "path": path,
            "kind": module.kind,
            "sha256": module.digest,
            "bytes": module.wasm.len(),
            "sources": built.sources,
        });
        print(output, &value, || {
            format!("{}: {} policy, {} bytes, sha256 {}", path.display(), module.kind, module.wasm.len(), module.digest)
        });
        Ok(())
    }
}

/// Builds a project; cargo says itself how far it is.
pub(super) fn build(folder: &Path) -> Result<CompiledPolicy, CliError> {
    if RulesProject::is_in(folder) {
        return Err(refused(format!(
            "{}: rules are not built; name the file as `settings_file` beside the module builtin:rules-<kind>",
            folder.join(rules_project::RULES).display()
        )));
    }
    let _shown = folder.join("package.json").is_file().then(|| Progress::of("ComponentizeJS makes the component"));
    compile::build(folder).map_err(refused)
}

/// Aside and renamed: a host that reads the file meanwhile reads the old one or the new one.
pub(super) fn write_whole(path: &Path, content: &[u8]) -> Result<(), CliError> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let written = std::fs::write(&aside, content).and_then(|()| std::fs::rename(&aside, path));
    written.map_err(|error| refused(format!("{}: {error}", path.display())))
}
