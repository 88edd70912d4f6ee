//! `culvert audit …`

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use clap::Subcommand;
use culvert_agent::output::print_line;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{CliError, PROGRAM, operator, print, refused};
use crate::cli::Output;
use crate::config::Config;
use culvert_domain::audit_log::KEPT;
use culvert_service::audit_log::{self, Fault, record};

#[derive(Subcommand)]
pub(super) enum Audit {
    /// Print the whole log, an entry a line (JSON); keep it on another machine
    Export,
    /// Look whether entries were altered or deleted
    Verify {
        /// An earlier export, of which every entry must be there still
        #[arg(long, value_name = "FILE")]
        against: Option<PathBuf>,
    },
}

/// What is compared of an entry in an export.
#[derive(Deserialize)]
struct Exported {
    scope_id: Uuid,
    number: u64,
    at: DateTime<Utc>,
    digest: String,
}

impl Audit {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        match self {
            Self::Export => export(config).await,
            Self::Verify { against } => verify(config, output, against.as_deref()).await,
        }
    }
}

async fn export(config: &Config) -> Result<(), CliError> {
    let (store, secrets) = operator::store_and_secrets(config).await?;
    let verified = audit_log::verify(&store, &secrets, |entry| print_line(PROGRAM, &record(entry).to_string())).await?;
    whole(verified.faults.iter().map(problem).collect())
}

async fn verify(config: &Config, output: Output, against: Option<&Path>) -> Result<(), CliError> {
    let mut expected = against.map(exported).transpose()?.unwrap_or_default();
    let (store, secrets) = operator::store_and_secrets(config).await?;
    let kept_since = store.clock().now() - KEPT;
    let mut replaced = Vec::new();
    let verified = audit_log::verify(&store, &secrets, |entry| {
        // A chain of which everything was deleted in its time begins anew.
        if let Some((at, digest)) = expected.remove(&(entry.scope_id, entry.number))
            && at > kept_since
            && digest != hex::encode(&entry.digest)
        {
            replaced.push((entry.scope_id, entry.number));
        }
    })
    .await?;
    let missing = expected.into_iter().filter(|(_, (at, _))| *at > kept_since).map(|(place, _)| place);
    let mut problems: Vec<String> = verified.faults.iter().map(problem).collect();
    problems
        .extend(replaced.into_iter().map(|(scope, number)| format!("{scope} {number}: is another one in the export")));
    problems
        .extend(missing.map(|(scope, number)| format!("{scope} {number}: is in the export, and was deleted since")));
    problems.sort();
    whole(problems)?;
    let value = json!({"scopes": verified.scopes, "entries": verified.entries});
    print(output, &value, || format!("{} entries of {} scopes: whole", verified.entries, verified.scopes));
    Ok(())
}

fn whole(problems: Vec<String>) -> Result<(), CliError> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(refused(format!("the audit log is not whole:\n{}", problems.join("\n"))))
}

fn problem(fault: &Fault) -> String {
    format!("{} {}: {}", fault.scope_id, fault.number, fault.problem)
}

/// The entries of an export: when each was written, and its digest.
type Expected = HashMap<(Uuid, u64), (DateTime<Utc>, String)>;

fn exported(file: &Path) -> Result<Expected, CliError> {
    let fail = |problem: &dyn std::fmt::Display| CliError::Usage(format!("--against {}: {problem}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| fail(&error))?;
    let mut expected = Expected::new();
    for (index, line) in text.lines().enumerate() {
        let Exported { scope_id, number, at, digest } =
            serde_json::from_str(line).map_err(|error| fail(&format!("line {}: {error}", index + 1)))?;
        expected.insert((scope_id, number), (at, digest));
    }
    Ok(expected)
}
