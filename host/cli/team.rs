//! `culvert team …`

use clap::Subcommand;
use serde_json::json;

use super::{CliError, operator, print, told};
use crate::cli::Output;
use crate::config::Config;
use culvert_domain::caller::Role;
use culvert_service::teams::{self, Membership};

#[derive(Subcommand)]
pub(super) enum Team {
    /// Make a Team
    Create {
        /// What the Team is called
        #[arg(long)]
        name: String,
        /// The account that owns it, by e-mail address or id
        #[arg(long)]
        owner: String,
        /// The Team's plan [default: the setting default_plan]
        #[arg(long)]
        plan: Option<String>,
    },
    /// Add a member
    Add {
        #[command(flatten)]
        member: Member,
        /// owner, admin or member
        #[arg(long, default_value = "member")]
        role: Role,
    },
    /// Remove a member, and what their devices run for the Team
    Remove {
        #[command(flatten)]
        member: Member,
    },
    /// Change what a member may do
    SetRole {
        #[command(flatten)]
        member: Member,
        /// owner, admin or member
        #[arg(long)]
        role: Role,
    },
}

#[derive(clap::Args)]
pub(super) struct Member {
    /// The Team, by name or id
    #[arg(long)]
    team: String,
    /// The account, by e-mail address or id
    #[arg(long)]
    account: String,
}

impl Team {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        match self {
            Self::Create { name, owner, plan } => create(config, output, name, &owner, plan).await,
            Self::Add { member, role } => change(config, output, member, Membership::Added(role)).await,
            Self::SetRole { member, role } => change(config, output, member, Membership::Changed(role)).await,
            Self::Remove { member } => change(config, output, member, Membership::Removed).await,
        }
    }
}

async fn create(
    config: &Config,
    output: Output,
    name: String,
    owner: &str,
    plan: Option<String>,
) -> Result<(), CliError> {
    operator::check_name("--name", &name)?;
    let (store, secrets) = operator::store_and_secrets(config).await?;
    let plan = operator::plan(config, &store, &secrets, plan).await?;
    let owner = operator::account(&store, owner).await?;
    let team = teams::create(&store, name, plan, owner.id).await?;
    let value = json!({"id": team.id, "name": team.name, "plan_name": team.plan, "owner_id": owner.id});
    print(output, &value, || format!("Team {} ({}), plan {}, owned by {}", team.id, team.name, team.plan, owner.email));
    Ok(())
}

async fn change(config: &Config, output: Output, member: Member, what: Membership) -> Result<(), CliError> {
    let store = operator::store(config).await?;
    let account = operator::account(&store, &member.account).await?;
    let team = operator::team(&store, &member.team).await?;
    teams::change(&store, team.id, account.id, what).await.map_err(told)?;
    let role = what.role();
    let value = json!({"id": team.id, "account_id": account.id, "role": role});
    print(output, &value, || match role {
        Some(role) => format!("{} is {role} of {}", account.email, team.name),
        None => format!("{} has left {}", account.email, team.name),
    });
    Ok(())
}
