//! What the operator's commands have in common: the store, beside a running host or without one,
//! and the names by which people call accounts and Teams.

use culvert_wire::clock::Clock;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::{CliError, refused};
use crate::config::{Config, ConfigError};
use crate::database;
use crate::policies;
use culvert_domain::account::{self, Account};
use culvert_domain::caller::Scope;
use culvert_domain::error::Chain;
use culvert_service::secrets::Secrets;
use culvert_service::{audit_log, keys};
use culvert_store::Store;

/// Opens the store that the host of this configuration uses.
pub(super) async fn store(config: &Config) -> Result<Store, CliError> {
    Ok(store_and_secrets(config).await?.0)
}

/// As [`store`], with the keys of the host.
pub(super) async fn store_and_secrets(config: &Config) -> Result<(Store, Secrets), CliError> {
    let clock = Clock::system();
    let folder = &config.data_dir;
    culvert_wire::private_dir::open(folder)
        .map_err(|error| ConfigError::new("data_dir", format!("{}: {error}", folder.display())))?;
    let db = database::open(config, false).await?;
    let secrets = keys::open(&db, &config.secret_key_file(), &clock).await;
    let secrets = secrets.map_err(|e| ConfigError::new("secret_key_file", Chain(&e)))?;
    let (store, _) = Store::new(db, clock, TaskTracker::new());
    audit_log::sign_with(&store, &secrets);
    Ok((store, secrets))
}

/// An account by e-mail address or id.
pub(super) async fn account(store: &Store, account: &str) -> Result<Account, CliError> {
    let found = match Uuid::parse_str(account) {
        Ok(id) => store.account(id).await?,
        Err(_) => store.account_by_email(account).await?,
    };
    found.ok_or_else(|| refused(format!("there is no account {account}; `culvert account create` makes one")))
}

/// A Team by name or id.
pub(super) async fn team(store: &Store, team: &str) -> Result<Scope, CliError> {
    let mut found = store.teams_by_name(team).await?;
    match found.len() {
        0 => Err(refused(format!("there is no Team {team}; `culvert team create` makes one"))),
        1 => Ok(found.remove(0)),
        _ => Err(refused(format!("several Teams are called {team}; use an id"))),
    }
}

/// The scope that an account acts in: its own, or that of a Team which it must be in.
pub(super) async fn scope(store: &Store, account: &Account, team: Option<&str>) -> Result<Uuid, CliError> {
    let Some(name) = team else { return Ok(account.id) };
    let team = self::team(store, name).await?;
    let members = store.members(team.id).await?;
    if members.iter().any(|member| member.account_id == account.id) {
        return Ok(team.id);
    }
    Err(refused(format!("{} is not in the Team {}; `culvert team add` adds them", account.email, team.name)))
}

/// The plan that was asked for, or else the default one. It refuses a plan that no policy knows: whoever had it could do
/// nothing.
pub(super) async fn plan(
    config: &Config,
    store: &Store,
    secrets: &Secrets,
    plan: Option<String>,
) -> Result<String, CliError> {
    let policies = policies::deciding(config, store, secrets).await?;
    let plan = plan.unwrap_or_else(|| policies.default_plan().to_owned());
    match policies.entitlement(&plan).await.map_err(refused)? {
        Some(_) => Ok(plan),
        None => Err(refused(format!("no policy knows a plan `{plan}`"))),
    }
}

/// A name that people are shown.
pub(super) fn check_name(option: &str, name: &str) -> Result<(), CliError> {
    account::name(name).map(drop).map_err(|problem| refused(format!("{option} {problem}")))
}
