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
        let next = match lang {
            Language::Rust => "",
            Language::JavaScript => "    npm install\n",
        };
        print(output, &value, || {
            let (rules, about) = match lang {
                Language::Rust => ("src/lib.rs", "the rules"),
                Language::JavaScript => ("policy.js", "the rules"),
            };
            format!(
                "{name}: a {kind} policy. {rules} holds {about}, cases/ what they must answer, wit/ the contract.\n\n    \
                 cd {name}\n{next}    culvert policy test"
            )
        });
        Ok(())
    }
}
