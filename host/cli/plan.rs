//! `culvert plan …`

use clap::{ArgGroup, Subcommand};
use serde_json::json;

use super::{CliError, operator, print};
use crate::cli::Output;
use crate::config::Config;
use culvert_domain::audit_log::Actor;
use culvert_service::accounts;

#[derive(Subcommand)]
pub(super) enum Plan {
    /// Give an account or a Team a plan
    #[command(group = ArgGroup::new("whose").required(true))]
    Set {
        /// The account, by e-mail address or id
        #[arg(long, group = "whose")]
        account: Option<String>,
        /// The Team, by name or id
        #[arg(long, group = "whose")]
        team: Option<String>,
        plan: String,
    },
}

impl Plan {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let Self::Set { account, team, plan } = self;
        let (store, secrets) = operator::store_and_secrets(config).await?;
        let plan = operator::plan(config, &store, &secrets, Some(plan)).await?;
        let scope_id = match team {
            Some(team) => operator::team(&store, &team).await?.id,
            None => operator::account(&store, &account.unwrap_or_default()).await?.id,
        };
        accounts::set_plan(&store, scope_id, plan.clone(), Actor::CLI).await?;
        print(output, &json!({"id": scope_id, "plan_name": plan}), || format!("{scope_id} has the plan {plan}"));
        Ok(())
    }
}
