//! `culvert secrets …`

use clap::Subcommand;
use serde_json::json;

use super::{Problem, operator, print};
use crate::config::Config;
use crate::store::key_check::Resealed;

#[derive(Subcommand)]
pub enum Secrets {
    /// Seal everything that is stored with the newest key of secret_key_file, so that the older ones can
    /// be taken out of it
    Reseal,
}

impl Secrets {
    pub async fn run(self, config: &Config, json: bool) -> Result<(), Problem> {
        let Self::Reseal = self;
        let Resealed { webhooks, answers } = operator::store(config).await?.reseal().await?;
        print(json, &json!({"webhooks": webhooks, "answers": answers}), || {
            format!("sealed anew: the secrets of {webhooks} webhook endpoints, {answers} stored answers")
        });
        Ok(())
    }
}
