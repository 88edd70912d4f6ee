//! `culvert policy run`: one question, one answer.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use super::{Tool, settings};
use crate::cli::Output;
use crate::cli::{CliError, print, refused};
use culvert_domain::policy_fact::PolicyFact;
use culvert_policy::engine::facts;
use culvert_policy::engine::sandbox::Limits;
use culvert_policy::load::artefact::Artefacts;
use culvert_policy::load::dynamic::UntypedModule;
use culvert_policy::load::given_facts::GivenFacts;

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
    /// A fact that the module wants, as `tunnel.name=web`; the value is JSON, or a text. Can be repeated
    #[arg(long = "fact", value_name = "NAME=VALUE", value_parser = fact)]
    facts: Vec<(PolicyFact, Value)>,
}

fn fact(text: &str) -> Result<(PolicyFact, Value), String> {
    let (name, value) = text.split_once('=').ok_or("is NAME=VALUE")?;
    Ok((facts::parse(name)?, serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}

impl Run {
    pub(crate) fn run(self, output: Output) -> Result<(), CliError> {
        let Tool { engines, module } = Tool::open(&self.module)?;
        let taken = settings(self.settings.as_ref())?;
        let configured = module.configure(&engines, &Artefacts::none(), &taken, Limits::generous()).map_err(refused)?;
        let mut question = read(&self.question)?;
        let dynamic = UntypedModule::new(&engines, &configured).map_err(refused)?.debugging();
        if !self.facts.is_empty() {
            let mut given = GivenFacts::default();
            self.facts.into_iter().for_each(|(fact, value)| given.insert(fact, value));
            given.attach(&mut question, dynamic.kind(), dynamic.facts).map_err(refused)?;
        }
        let mut store = dynamic.store();
        let answer = dynamic.ask_in(&mut store, self.call.as_deref(), &question);
        store.data().debug.iter().for_each(|line| anstream::eprintln!("debug: {line}"));
        let answer = answer.map_err(refused)?;
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
