//! `culvert policy new`.

use std::path::Path;

use clap::Args;
use serde_json::json;

use crate::cli::Output;
use crate::cli::{CliError, print, refused};
use culvert_policy::engine::kind::Kind;
use culvert_policy::tools::project::{self, Language};

#[derive(Args)]
pub(crate) struct New {
    /// The policy's name, and its folder's
    name: String,
    /// What it decides
    #[arg(long)]
    kind: Kind,
    /// What it is written in
    #[arg(long, default_value = "rust")]
    lang: Language,
}

impl New {
    pub(crate) fn run(self, output: Output) -> Result<(), CliError> {
        let Self { name, kind, lang } = self;
        let files = project::create(Path::new("."), &name, kind, lang).map_err(refused)?;
        let value = json!({"folder": name, "kind": kind, "files": files});
        let (rules, contract, next) = match lang {
            Language::Rust => ("src/lib.rs", ", wit/ the contract", ""),
            Language::JavaScript => ("policy.js", ", wit/ the contract", "    npm install\n"),
            Language::Rules => ("rules.toml", "", ""),
        };
        print(output, &value, || {
            format!(
                "{name}: a {kind} policy. {rules} holds the rules, cases/ what they must answer{contract}.\n\n    \
                 cd {name}\n{next}    culvert policy test"
            )
        });
        Ok(())
    }
}
