//! `culvert account …`

use std::sync::Arc;

use clap::Subcommand;
use serde_json::json;

use super::{CliError, operator, print, refused, told};
use crate::cli::Output;
use crate::config::Config;
use culvert_domain::account;
use culvert_domain::audit_log::Actor;
use culvert_domain::error::Error;
use culvert_service::links::{self, NewLink};
use culvert_service::{accounts, locked_accounts};
use culvert_store::Store;

#[derive(Subcommand)]
pub(super) enum Account {
    /// Make an account
    Create {
        #[arg(long)]
        email: String,
        /// What the account is called
        #[arg(long)]
        name: String,
        /// The account's plan [default: the setting default_plan]
        #[arg(long)]
        plan: Option<String>,
    },
    /// Make a link by which somebody comes into the dashboard; it can be used once, within 30 minutes
    Link {
        #[arg(long)]
        email: String,
    },
    /// As `link`, for who has lost the authenticator app: the second factor, the password and all sign-ins end
    Recover {
        #[arg(long)]
        email: String,
    },
    /// Make an account an operator, who sees the installation in the dashboard
    Operator {
        #[arg(long)]
        email: String,
        /// Make it no operator any more
        #[arg(long)]
        off: bool,
    },
    /// Lock an account: its sign-ins and what its devices run end, and its keys are refused
    Lock {
        #[arg(long)]
        email: String,
    },
    /// Unlock an account: people sign in again, and its keys are good again
    Unlock {
        #[arg(long)]
        email: String,
    },
}

impl Account {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        match self {
            Self::Create { email, name, plan } => create(config, output, email, name, plan).await,
            Self::Link { email } => link(config, output, &email).await,
            Self::Recover { email } => recover(config, output, &email).await,
            Self::Operator { email, off } => set_operator(config, output, &email, !off).await,
            Self::Lock { email } => set_locked(config, output, &email, true).await,
            Self::Unlock { email } => set_locked(config, output, &email, false).await,
        }
    }
}

async fn create(
    config: &Config,
    output: Output,
    email: String,
    name: String,
    plan: Option<String>,
) -> Result<(), CliError> {
    let email = account::email(&email).map_err(|problem| refused(format!("--email {problem}")))?;
    operator::check_name("--name", &name)?;
    let (store, secrets) = operator::store_and_secrets(config).await?;
    let plan = operator::plan(config, &store, &secrets, plan).await?;
    let account = accounts::create(&store, email.clone(), name, plan).await;
    let account =
        account.map_err(|error| told(Error { detail: format!("{email}: {}", error.detail).into(), ..error }))?;
    let value = json!({
        "id": account.id,
        "email": account.email,
        "display_name": account.name,
        "plan_name": account.plan,
        "created_at": account.created_at,
    });
    print(output, &value, || format!("account {} ({}), plan {}", account.id, account.email, account.plan));
    Ok(())
}

async fn link(config: &Config, output: Output, email: &str) -> Result<(), CliError> {
    let (store, account) = of_dashboard(config, email).await?;
    let link = links::create(&store, account.id).await?;
    print_link(config, output, &account, &link);
    Ok(())
}

async fn recover(config: &Config, output: Output, email: &str) -> Result<(), CliError> {
    let (store, account) = of_dashboard(config, email).await?;
    let link = links::recover(&store, account.id).await?;
    print_link(config, output, &account, &link);
    Ok(())
}

/// An account that can come into the dashboard, unless that is turned off.
async fn of_dashboard(config: &Config, email: &str) -> Result<(Store, account::Account), CliError> {
    if !config.dashboard.enabled {
        return Err(refused("the dashboard is turned off; set dashboard.enabled to true first"));
    }
    let store = operator::store(config).await?;
    let account = operator::account(&store, email).await?;
    Ok((store, account))
}

fn print_link(config: &Config, output: Output, account: &account::Account, link: &NewLink) {
    let NewLink { secret, expires_at } = link;
    let url = entrance(config, secret);
    let value = json!({"url": url, "expires_at": expires_at});
    print(output, &value, || format!("{url}\n(for {}, once, until {})", account.email, expires_at.format("%F %R UTC")));
}

async fn set_operator(config: &Config, output: Output, email: &str, is_operator: bool) -> Result<(), CliError> {
    let store = operator::store(config).await?;
    let account = operator::account(&store, email).await?;
    accounts::set_operator(&store, account.id, is_operator, Actor::CLI).await.map_err(told)?;
    let value = json!({"id": account.id, "email": account.email, "operator": is_operator});
    let word = if is_operator { "is an operator" } else { "is no operator" };
    print(output, &value, || format!("{} {word}", account.email));
    Ok(())
}

async fn set_locked(config: &Config, output: Output, email: &str, is_locked: bool) -> Result<(), CliError> {
    let store = Arc::new(operator::store(config).await?);
    let account = operator::account(&store, email).await?;
    let set = if is_locked {
        locked_accounts::lock(&store, account.id, Actor::CLI).await
    } else {
        locked_accounts::unlock(&store, account.id, Actor::CLI).await
    };
    set.map_err(told)?;
    let value = json!({"id": account.id, "email": account.email, "locked": is_locked});
    let word = if is_locked { "is locked" } else { "is not locked" };
    print(output, &value, || format!("{} {word}", account.email));
    Ok(())
}

/// The URL of a link. The secret stands in its fragment, which no server sees.
pub(super) fn entrance(config: &Config, secret: &str) -> String {
    format!("{}/enter#{secret}", config.dashboard_url())
}
