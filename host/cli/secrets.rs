//! `culvert secrets …`

use clap::Subcommand;
use serde_json::json;

use super::{CliError, operator, print, refused};
use crate::cli::Output;
use crate::config::Config;
use culvert_service::keys::{self, Resealed};

#[derive(Subcommand)]
pub(super) enum Secrets {
    /// Seal everything that is stored with the newest key of secret_key_file, so that the older ones can
    /// be taken out of it
    Reseal,
}

impl Secrets {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let Self::Reseal = self;
        let (store, secrets) = operator::store_and_secrets(config).await?;
        if !keys::newest_is_used(&store, &secrets).await? {
            return Err(refused("no host has started with the newest key of secret_key_file; start the host first"));
        }
        let Resealed { webhooks, answers, certificates, second_factors } = keys::reseal(&store, &secrets).await?;
        let value = json!({
            "webhooks": webhooks,
            "answers": answers,
            "certificates": certificates,
            "second_factors": second_factors,
        });
        print(output, &value, || {
            format!(
                "sealed anew: the secrets of {webhooks} webhook endpoints, {answers} stored answers, the keys of \
                 {certificates} certificates, the secrets of {second_factors} authenticator apps"
            )
        });
        Ok(())
    }
}
