//! `culvert secrets …`

use clap::Subcommand;
use serde_json::json;

use super::{CliError, operator, print, refused};
use crate::cli::Output;
use crate::config::Config;
use culvert_service::keys::{self, Activation, Resealed};
use culvert_service::secrets::Secrets as Keys;
use culvert_store::Store;

#[derive(Subcommand)]
pub(super) enum Secrets {
    /// Seal everything that is stored with the newest key of secret_key_file, so that the older ones can
    /// be taken out of it
    Reseal,
    /// Have all hosts use the newest key of secret_key_file, once each of them was started with it
    Activate,
}

impl Secrets {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let (store, secrets) = operator::store_and_secrets(config).await?;
        match self {
            Self::Reseal => reseal(&store, &secrets, output).await,
            Self::Activate => activate(&store, &secrets, output).await,
        }
    }
}

async fn reseal(store: &Store, secrets: &Keys, output: Output) -> Result<(), CliError> {
    if !keys::newest_is_used(store, secrets).await? {
        return Err(refused(
            "no host uses the newest key of secret_key_file; start the host, or where several share the database, run \
             `culvert secrets activate`",
        ));
    }
    let Resealed { webhooks, answers, certificates, second_factors } = keys::reseal(store, secrets).await?;
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

async fn activate(store: &Store, secrets: &Keys, output: Output) -> Result<(), CliError> {
    if !store.is_on_a_server() {
        return Err(refused(
            "on SQLite, the host uses the newest key of secret_key_file when it is started; restart it",
        ));
    }
    let version = secrets.newest();
    let is_new = match keys::activate(store, secrets).await? {
        Activation::Activated => true,
        Activation::InUse => false,
        Activation::Missing(hosts) => {
            return Err(refused(format!(
                "hosts that were not started with key v{version} of this secret_key_file: {}; copy the file to them and restart them",
                hosts.join(", ")
            )));
        }
    };
    print(output, &json!({"version": version, "activated": is_new}), || {
        if is_new {
            format!("all hosts use key v{version} within three seconds")
        } else {
            format!("key v{version}, the newest one of secret_key_file here, is in use already; nothing was changed")
        }
    });
    Ok(())
}
