//! `culvert policy …`: for authors of policies, who need no host, and for the operator of one.

mod admin_client;
mod audit;
mod bench;
mod build;
mod inspect;
mod plan;
mod project;
mod registry;
mod replay;
mod run;
mod test;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use clap::Subcommand;
use indicatif::ProgressBar;
use serde_json::{Map, Value};

use super::{CliError, refused};
use crate::cli::Output;
use crate::config::Config;
use culvert_policy::engine::engines::Engines;
use culvert_policy::load::artefact::Artefacts;
use culvert_policy::load::bundle;
use culvert_policy::load::component::Module;
use culvert_policy::load::load_error::LoadError;
use culvert_policy::load::text_file;

#[derive(Subcommand)]
pub(super) enum Policy {
    /// Begin a policy project, in a new folder
    #[command(
        after_help = "Examples:\n  culvert policy new night-rest --kind team-role\n  culvert policy new hooks --kind validation --lang javascript\n  culvert policy new names --kind validation --lang rules"
    )]
    New(project::New),
    /// Build a policy project and make it a component
    #[command(
        after_help = "Examples:\n  culvert policy build night-rest\n  culvert policy build night-rest --out modules/"
    )]
    Build(build::Build),
    /// Hold a component against the contract, and settings against its schema
    #[command(
        after_help = "Examples:\n  culvert policy check night-rest.wasm --kind team-role --settings settings.toml"
    )]
    Check(inspect::Check),
    /// Show what a component says of itself
    #[command(
        after_help = "Examples:\n  culvert policy inspect night-rest.wasm\n  culvert policy inspect builtin:plan-access"
    )]
    Inspect(inspect::Inspect),
    /// Run cases against a component, and see which rules they come by
    #[command(
        after_help = "Examples:\n  culvert policy test night-rest --min-coverage 100\n  culvert policy test night-rest --watch\n  culvert policy test night-rest.wasm --junit report.xml\n  culvert policy test builtin:rules-team-role --settings rules.toml --cases cases"
    )]
    Test(test::Test),
    /// Measure a component's decisions
    #[command(after_help = "Examples:\n  culvert policy bench night-rest.wasm --seconds 5")]
    Bench(bench::Bench),
    /// Have a component decide one question
    #[command(
        after_help = "Examples:\n  echo '{\"action\": \"tunnels.start\"}' | culvert policy run night-rest.wasm --fact now=2026-01-31T23:00:00Z"
    )]
    Run(run::Run),
    /// Ask recorded decisions again, and see which answers would change
    #[command(
        after_help = "Examples:\n  culvert policy replay decisions.jsonl --fail-on-change\n  culvert policy replay decisions.jsonl --module new.wasm --settings new.toml"
    )]
    Replay(replay::Replay),
    /// Push a component to a registry
    #[command(
        after_help = "Examples:\n  culvert policy push night-rest.wasm oci://registry.example.com/policies/night-rest:1.0.0"
    )]
    Push(registry::Push),
    /// Pull a component from a registry
    #[command(
        after_help = "Examples:\n  culvert policy pull oci://registry.example.com/policies/night-rest:1.0.0 --out night-rest.wasm"
    )]
    Pull(registry::Pull),
    /// Sign a component: a file .sig beside it
    #[command(
        after_help = "Examples:\n  openssl genpkey -algorithm ed25519 -out policy.key\n  openssl pkey -in policy.key -pubout -out policy.pub\n  culvert policy sign night-rest.wasm --key policy.key"
    )]
    Sign(registry::Sign),
    /// Show what exists and would be refused by the validation and Team rules of today
    #[command(after_help = "Examples:\n  culvert policy audit\n  culvert policy audit --json --fail-on-refusal")]
    Audit(audit::Audit),
    /// Show what a reload would change, and for whom; it takes nothing over, and ends with 1 if anything would change
    #[command(after_help = "Examples:\n  culvert policy plan\n  culvert policy plan --records decisions.jsonl --json")]
    Plan(plan::Plan),
    /// Have the running host load the policies of its configuration
    Reload {
        /// Only show what would change, as `plan` does
        #[arg(long)]
        dry_run: bool,
        /// While no host runs: have them decide from the next start on
        #[arg(long, conflicts_with = "dry_run")]
        offline: bool,
    },
    /// Have the running host go back to the policies before
    Rollback,
    /// Show the policies of the running host
    Status,
}

impl Policy {
    /// Whether it is about the host of a configuration.
    pub(super) fn needs_host_config(&self) -> bool {
        match self {
            Self::Replay(replay) => replay.needs_host_config(),
            Self::Audit(_) | Self::Plan(_) | Self::Reload { .. } | Self::Rollback | Self::Status => true,
            _ => false,
        }
    }

    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        match self {
            Self::New(new) => new.run(output),
            Self::Build(build) => build.run(output),
            Self::Check(check) => check.run(output),
            Self::Inspect(inspect) => inspect.run(output),
            Self::Test(test) => test.run(output),
            Self::Bench(bench) => bench.run(output),
            Self::Run(run) => run.run(output),
            Self::Replay(replay) => replay.run(config, output),
            Self::Push(push) => push.run(output).await,
            Self::Pull(pull) => pull.run(output).await,
            Self::Sign(sign) => sign.run(output),
            Self::Audit(audit) => audit.run(config, output).await,
            Self::Plan(plan) => plan.run(config, output).await,
            Self::Reload { dry_run: true, .. } => plan::Plan::default().run(config, output).await,
            Self::Reload { offline: true, .. } => admin_client::reload_offline(config, output).await,
            Self::Reload { .. } => admin_client::reload(config, output).await,
            Self::Rollback => admin_client::rollback(config, output).await,
            Self::Status => admin_client::status(config, output).await,
        }
    }
}

/// A module with the engines that it runs on.
struct Tool {
    engines: Engines,
    module: Module,
}

impl Tool {
    /// Reads a module: a file, or one that is built in, as `builtin:plan-access`.
    fn open(path: &Path) -> Result<Self, CliError> {
        let fail = |problem: &dyn std::fmt::Display| refused(format!("{}: {problem}", path.display()));
        if let Some(name) = path.to_str().and_then(|path| path.strip_prefix(bundle::PREFIX)) {
            let wasm = bundle::find(name)
                .ok_or_else(|| fail(&format!("there is no such module; there are {}", bundle::NAMES.join(", "))))?;
            return Self::of(wasm.into()).map_err(|e| fail(&e));
        }
        if path.is_dir() {
            return Err(fail(&"it is a folder; name the component, or build it with `culvert policy build`"));
        }
        Self::of(std::fs::read(path).map_err(|e| fail(&e))?).map_err(|e| fail(&e))
    }

    fn of(wasm: Vec<u8>) -> Result<Self, LoadError> {
        let engines = Engines::new(1).map_err(LoadError::engine)?;
        let module = Module::read(&engines, &Artefacts::none(), wasm, None)?;
        Ok(Self { engines, module })
    }
}

/// Settings from a file, TOML or JSON; none without one.
fn settings(file: Option<&PathBuf>) -> Result<Map<String, Value>, CliError> {
    let Some(path) = file else { return Ok(Map::new()) };
    text_file::read(path).map_err(|problem| refused(format!("{}: {problem}", path.display())))
}

/// Something that takes its time: a line on the terminal that goes away with it. Elsewhere, as in a pipe, one line on
/// standard error if it takes longer than a second.
struct Progress {
    bar: ProgressBar,
    /// Dropped at the end.
    _ended: Option<mpsc::Sender<()>>,
}

impl Progress {
    fn of(what: impl Into<String>) -> Self {
        let what = what.into();
        let bar = ProgressBar::new_spinner().with_message(what.clone());
        bar.enable_steady_tick(Duration::from_millis(100));
        let ended = (!std::io::stderr().is_terminal()).then(|| {
            let (ended, end) = mpsc::channel::<()>();
            std::thread::spawn(move || {
                if end.recv_timeout(Duration::from_secs(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
                    anstream::eprintln!("{what} …");
                }
            });
            ended
        });
        Self { bar, _ended: ended }
    }

    fn show(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
