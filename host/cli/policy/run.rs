//! `culvert policy run`: one question, one answer.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use super::{Tool, settings};
use crate::cli::Output;
use crate::cli::{CliError, print, refused};
use culvert_policy::engine::sandbox::Limits;
use culvert_policy::load::artefact::Artefacts;
use culvert_policy::load::dynamic::UntypedModule;

#[derive(Args)]
pub(crate) struct Run {
    /// The component
    module: PathBuf,
    /// The question, as JSON in the contract's names; `-` is standard input
    #[arg(default_value = "-")]
    question: PathBuf,
    /// The decision's function [default: the kind's own one]
    #[arg(long)]
    call: Option<String>,
    /// The module's settings, TOML or JSON
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
}

impl Run {
    pub(crate) fn run(self, output: Output) -> Result<(), CliError> {
        let Tool { engines, module } = Tool::open(&self.module)?;
        let taken = settings(self.settings.as_ref())?;
        let configured = module.configure(&engines, &Artefacts::none(), &taken, Limits::generous()).map_err(refused)?;
        let question = read(&self.question)?;
        let dynamic = UntypedModule::new(&engines, &configured).map_err(refused)?;
        let answer = dynamic.ask(self.call.as_deref(), &question).map_err(refused)?;
        print(output, &answer, || serde_json::to_string_pretty(&answer).unwrap_or_default());
        Ok(())
    }
}

fn read(path: &Path) -> Result<Value, CliError> {
    let mut text = String::new();
    let (name, read) = match path.to_str() {
        Some("-") => ("standard input".into(), std::io::stdin().read_to_string(&mut text)),
        _ => {
            (path.display().to_string(), std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text)))
        }
    };
    read.map_err(|error| refused(format!("{name}: {error}")))?;
    serde_json::from_str(&text).map_err(|error| refused(format!("{name}: {error}")))
}
