//! `culvert account …`

use clap::Subcommand;
use serde_json::json;

use super::{CliError, operator, print, refused};
use crate::cli::Output;
use crate::config::Config;
use culvert_service::accounts;

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
}

impl Account {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let Self::Create { email, name, plan } = self;
        let plan = plan.unwrap_or_else(|| config.default_plan.clone());
        check_email(&email)?;
        operator::check_name("--name", &name)?;
        let (store, secrets) = operator::store_and_secrets(config).await?;
        operator::check_plan(config, &secrets, &plan).await?;
        let account = accounts::create(&store, email.clone(), name, plan).await;
        let account = account.map_err(|error| refused(format!("{email}: {}", error.detail)))?;
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
}

fn check_email(email: &str) -> Result<(), CliError> {
    let parts = email.split_once('@').is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty());
    let clean = email.len() <= 254 && !email.chars().any(|c| c.is_control() || c.is_whitespace());
    if parts && clean { Ok(()) } else { Err(refused("--email must be an e-mail address")) }
}
