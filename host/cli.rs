//! The command line. `serve` and `dev` run a host; the rest are the operator's, and work beside one.

mod account;
mod audit;
mod ca;
mod dev;
mod device;
mod host;
mod key;
mod migrate;
mod node;
mod operator;
mod plan;
mod policy;
mod secrets;
mod serve;
mod set_up;
mod team;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use culvert_agent::output::{ensure_written, print_line};
use serde_json::json;

use crate::config::{Config, ConfigError};
use culvert_domain::error::{Chain, Error};

/// A self-hosted tunnel service.
#[derive(Parser)]
#[command(name = "culvert", version)]
struct Cli {
    /// The configuration file [default: culvert.toml, if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the host
    Serve,
    /// Run everything on this machine, to try it out
    Dev,
    /// Accounts
    #[command(subcommand)]
    Account(account::Account),
    /// The log of who has changed what
    #[command(subcommand)]
    Audit(audit::Audit),
    /// The local authority, which signs certificates for the platform's own domains
    #[command(subcommand)]
    Ca(ca::Ca),
    /// Teams and their members
    #[command(subcommand)]
    Team(team::Team),
    /// API keys
    #[command(subcommand)]
    Key(key::Key),
    /// Devices
    #[command(subcommand)]
    Device(device::Device),
    /// The hosts that share a database
    #[command(subcommand)]
    Host(host::Host),
    /// Bring the database up to date with this version
    ///
    /// Hosts of the version before go on meanwhile, unless the changelog says otherwise. `culvert serve` does so by itself on
    /// SQLite, on an empty database, and with `database.migrate = "auto"`.
    Migrate(migrate::Migrate),
    /// Nodes
    #[command(subcommand)]
    Node(node::Node),
    /// Plans of accounts and Teams
    #[command(subcommand)]
    Plan(plan::Plan),
    /// Policy modules
    ///
    /// For authors: new, build, test, check, inspect, run, bench. For operators: reload, rollback, status, replay, inspect.
    /// The guide is policies/README.md, which a host shows at /docs/policies.
    #[command(subcommand)]
    Policy(policy::Policy),
    /// What the host keeps sealed
    #[command(subcommand)]
    Secrets(secrets::Secrets),
    /// Print a completion script for a shell
    #[command(after_help = "Examples:\n  culvert completions bash > /etc/bash_completion.d/culvert")]
    Completions { shell: Shell },
    /// The agent, as `culvert-agent`
    #[command(hide = true, disable_help_flag = true)]
    Agent {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
enum CliError {
    /// The operator's settings: exit code 2.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The command is wrong: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// What was asked for cannot be: exit code 1.
    #[error("{0}")]
    Refused(String),
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        Self::Refused(Chain(&error).to_string())
    }
}

fn refused(problem: impl std::fmt::Display) -> CliError {
    CliError::Refused(problem.to_string())
}

/// What an operator is told of an error: what a client is told, or what has failed.
fn told(error: Error) -> CliError {
    if error.hides_its_source() { error.into() } else { refused(error.detail) }
}

/// Runs the command line that this process was started with.
pub fn main() -> ExitCode {
    let Cli { config, json, command } = Cli::try_parse().unwrap_or_else(|error| usage(&error));
    if let Command::Agent { arguments } = command {
        return culvert_agent::cli::run(std::iter::once("culvert-agent".into()).chain(arguments));
    }
    if let Command::Completions { shell } = command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), PROGRAM, &mut script);
        ensure_written(PROGRAM, std::io::stdout().write_all(&script));
        return ExitCode::SUCCESS;
    }
    // What a policy's author makes is theirs to share; everything else here is the host's own.
    if !matches!(&command, Command::Policy(policy) if !policy.needs_host_config()) {
        culvert_wire::private_dir::keep_private();
    }
    // Who writes a policy needs no host, and so none of its settings.
    let settings = match &command {
        Command::Policy(policy) if !policy.needs_host_config() => Ok(Config::default()),
        _ => Config::load(config.as_deref()).map_err(CliError::from),
    };
    let output = if json { Output::Json } else { Output::Text };
    let ended = settings.and_then(|config| execute(config, output, command));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            // One object in any case, for whoever reads only that.
            if output == Output::Json && !PRINTED.load(Ordering::Relaxed) {
                print(output, &json!({ "problem": problem.to_string() }), String::new);
            }
            eprintln!("culvert: {problem}");
            ExitCode::from(if matches!(problem, CliError::Refused(_)) { 1 } else { 2 })
        }
    }
}

/// Ends with a mistake in the command line, or with the help that was asked for.
fn usage(error: &clap::Error) -> ! {
    if error.use_stderr() && std::env::args().any(|argument| argument == "--json") {
        let text = error.to_string();
        let problem = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        print(Output::Json, &json!({ "problem": problem }), String::new);
    }
    error.exit()
}

fn execute(config: Config, output: Output, command: Command) -> Result<(), CliError> {
    let runtime = tokio::runtime::Runtime::new().map_err(refused)?;
    let ended = runtime.block_on(async {
        match command {
            Command::Serve => serve::run(config).await,
            Command::Dev => dev::run(config).await,
            Command::Account(command) => command.run(&config, output).await,
            Command::Audit(command) => command.run(&config, output).await,
            Command::Ca(command) => command.run(&config, output).await,
            Command::Team(command) => command.run(&config, output).await,
            Command::Key(command) => command.run(&config, output).await,
            Command::Device(command) => command.run(&config, output).await,
            Command::Host(command) => command.run(&config, output).await,
            Command::Migrate(command) => command.run(&config, output).await,
            Command::Node(command) => command.run(&config, output).await,
            Command::Plan(command) => command.run(&config, output).await,
            Command::Policy(command) => command.run(&config, output).await,
            Command::Secrets(command) => command.run(&config, output).await,
            // Handled before.
            Command::Agent { .. } | Command::Completions { .. } => Ok(()),
        }
    });
    // A module that is still being loaded is not waited for.
    runtime.shutdown_background();
    ended
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    /// For people.
    Text,
    /// For programs: one line.
    Json,
}

const PROGRAM: &str = "culvert";

/// Whether the one object of `--json` was printed.
static PRINTED: AtomicBool = AtomicBool::new(false);

fn print(output: Output, value: &serde_json::Value, text: impl FnOnce() -> String) {
    match output {
        Output::Json => {
            PRINTED.store(true, Ordering::Relaxed);
            print_line(PROGRAM, &value.to_string());
        }
        Output::Text => print_line(PROGRAM, &text()),
    }
}

/// Lines of a table, each column as wide as its widest cell.
fn table(rows: Vec<Vec<String>>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
