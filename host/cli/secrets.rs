//! `culvert secrets …`

use clap::Subcommand;
use serde_json::json;

use super::{CliError, operator, print, refused};
use crate::config::Config;
use crate::store::key_check::Resealed;

#[derive(Subcommand)]
pub enum Secrets {
    /// Seal everything that is stored with the newest key of secret_key_file, so that the older ones can
    /// be taken out of it
    Reseal,
}

impl Secrets {
    pub async fn run(self, config: &Config, json: bool) -> Result<(), CliError> {
        let Self::Reseal = self;
        let store = operator::store(config).await?;
        if !store.newest_key_is_used().await? {
            return Err(refused("no host has started with the newest key of secret_key_file; start the host first"));
        }
        let Resealed { webhooks, answers } = store.reseal().await?;
        print(json, &json!({"webhooks": webhooks, "answers": answers}), || {
            format!("sealed anew: the secrets of {webhooks} webhook endpoints, {answers} stored answers")
        });
        Ok(())
    }
}
