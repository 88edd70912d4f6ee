//! `culvert key …`: the stand-in for the dashboard, where keys are made and revoked.

use chrono::{DateTime, Utc};
use clap::Subcommand;
use serde_json::json;

use super::{CliError, operator, print, refused, table};
use crate::cli::Output;
use crate::config::Config;
use culvert_domain::permission::Permissions;
use culvert_service::api_keys::{self, NewKey};

#[derive(Subcommand)]
pub(super) enum Key {
    /// Make a key; it is shown this once
    Create {
        /// The account, by e-mail address or id
        #[arg(long)]
        account: String,
        /// The Team that the key is for, by name or id [default: the account's own scope]
        #[arg(long)]
        team: Option<String>,
        /// A preset (read_only, operator, tunnel_manager, webhook_manager, full_access) or a list of scopes
        #[arg(long)]
        scopes: String,
        /// When the key ends (RFC 3339) [default: never]
        #[arg(long)]
        expires_at: Option<DateTime<Utc>>,
        /// What you call the key
        #[arg(long, default_value = "")]
        name: String,
    },
    /// List keys
    List,
    /// Revoke a key, within a second
    Revoke {
        /// Its id, or how it begins: `ctk_` and twelve characters
        key: String,
    },
}

impl Key {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        match self {
            Self::Create { account, team, scopes, expires_at, name } => {
                create(config, output, &account, team.as_deref(), &scopes, expires_at, &name).await
            }
            Self::List => list(config, output).await,
            Self::Revoke { key } => revoke(config, output, key).await,
        }
    }
}

async fn create(
    config: &Config,
    output: Output,
    account: &str,
    team: Option<&str>,
    scopes: &str,
    expires_at: Option<DateTime<Utc>>,
    name: &str,
) -> Result<(), CliError> {
    if !name.is_empty() {
        operator::check_name("--name", name)?;
    }
    let permissions = Permissions::parse(scopes).map_err(|problem| CliError::Usage(format!("--scopes: {problem}")))?;
    let store = operator::store(config).await?;
    let account = operator::account(&store, account).await?;
    let scope_id = operator::scope(&store, &account, team).await?;
    let NewKey { id, key, created_at } =
        api_keys::create(&store, account.id, scope_id, permissions, expires_at, name).await?;
    let value = json!({
        "id": id,
        "key": key.reveal(),
        "scopes": permissions.iter().collect::<Vec<_>>(),
        "account_id": account.id,
        "scope_id": scope_id,
        "created_at": created_at,
        "expires_at": expires_at,
    });
    print(output, &value, || {
        format!("{}\n(shown this once; id {id}, scopes {})", key.reveal(), permissions.to_words())
    });
    Ok(())
}

async fn list(config: &Config, output: Output) -> Result<(), CliError> {
    let keys = operator::store(config).await?.keys().await?;
    let record = |key: &culvert_store::keys::KeyRecord| {
        json!({
            "id": key.id,
            "prefix": format!("ctk_{}", key.public_id),
            "name": key.name,
            "account": key.email,
            "team": key.team,
            "scopes": key.permissions.iter().collect::<Vec<_>>(),
            "created_at": key.created_at,
            "expires_at": key.expires_at,
            "revoked_at": key.revoked_at,
            "last_used_at": key.last_used_at,
        })
    };
    let value = json!({"data": keys.iter().map(record).collect::<Vec<_>>()});
    print(output, &value, || {
        let time = |at: Option<DateTime<Utc>>| at.map_or_else(|| "-".into(), |at| at.format("%F %R").to_string());
        let mut rows = vec![["KEY", "ACCOUNT", "TEAM", "LAST USED", "REVOKED", "SCOPES"].map(String::from).into()];
        rows.extend(keys.iter().map(|key| {
            let team = key.team.clone().unwrap_or_else(|| "-".into());
            let prefix = format!("ctk_{}", key.public_id);
            vec![
                prefix,
                key.email.clone(),
                team,
                time(key.last_used_at),
                time(key.revoked_at),
                key.permissions.to_words(),
            ]
        }));
        table(rows)
    });
    Ok(())
}

async fn revoke(config: &Config, output: Output, key: String) -> Result<(), CliError> {
    let store = operator::store(config).await?;
    let id = api_keys::revoke(&store, key.clone()).await?;
    let id = id.ok_or_else(|| refused(format!("there is no key {key}")))?;
    print(output, &json!({"id": id, "revoked": true}), || format!("revoked {id}"));
    Ok(())
}
