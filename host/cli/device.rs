//! `culvert device …`

use clap::Subcommand;
use serde_json::json;
use uuid::Uuid;

use super::{CliError, operator, print, refused, table, told};
use crate::cli::Output;
use crate::config::Config;
use culvert_service::{devices, enrolment};
use culvert_store::keys::DeviceCode;

#[derive(Subcommand)]
pub(super) enum Device {
    /// Make a one-time code by which a machine enrols; it is good for 10 minutes
    Code {
        /// The account that will own the device, by e-mail address or id
        #[arg(long)]
        account: String,
        /// The Team that the device is for, by name or id [default: the account's own scope]
        #[arg(long)]
        team: Option<String>,
        /// Commands at the device may not create tunnels
        #[arg(long)]
        no_create: bool,
    },
    /// Let commands at a device create tunnels, as its owner: `culvert-agent http 3000`
    AllowCreate {
        device: Uuid,
        /// Do not let them
        #[arg(long)]
        off: bool,
    },
    /// List devices
    List,
    /// Remove a device: what it runs stops, and it cannot connect again
    Remove { device: Uuid },
}

impl Device {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        match self {
            Self::Code { account, team, no_create } => {
                code(config, output, &account, team.as_deref(), !no_create).await
            }
            Self::AllowCreate { device, off } => allow_create(config, output, device, !off).await,
            Self::List => list(config, output).await,
            Self::Remove { device } => remove(config, output, device).await,
        }
    }
}

async fn code(
    config: &Config,
    output: Output,
    account: &str,
    team: Option<&str>,
    may_create: bool,
) -> Result<(), CliError> {
    let store = operator::store(config).await?;
    let account = operator::account(&store, account).await?;
    let scope_id = operator::scope(&store, &account, team).await?;
    let (code, expires_at) =
        enrolment::create_code(&store, DeviceCode { account_id: account.id, scope_id, may_create }).await?;
    let server = config.public_url();
    print(output, &json!({"code": code.reveal(), "expires_at": expires_at}), || {
        let code = code.reveal();
        format!("{code}\n(good for 10 minutes, on the device: culvert-agent enroll --server {server} --code {code})")
    });
    Ok(())
}

async fn list(config: &Config, output: Output) -> Result<(), CliError> {
    let devices = operator::store(config).await?.all_devices().await?;
    let record = |device: &culvert_domain::device::Device| {
        json!({
            "id": device.id,
            "owner_id": device.owner_id,
            "scope_id": device.scope_id,
            "name": device.name,
            "platform": device.platform,
            "version": device.version,
            "online": device.online,
            "remote_control_enabled": device.remote_control,
            "may_create_tunnels": device.may_create,
            "last_seen_at": device.last_seen_at,
        })
    };
    let value = json!({"data": devices.iter().map(record).collect::<Vec<_>>()});
    print(output, &value, || {
        let mut rows =
            vec![["DEVICE", "NAME", "ONLINE", "REMOTE CONTROL", "CREATES", "VERSION"].map(String::from).into()];
        rows.extend(devices.iter().map(|device| {
            let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
            let word = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
            let (name, version) = (text(&device.name), text(&device.version));
            let flags = [device.online, device.remote_control, device.may_create].map(word);
            [device.id.to_string(), name].into_iter().chain(flags).chain([version]).collect()
        }));
        table(rows)
    });
    Ok(())
}

async fn allow_create(config: &Config, output: Output, id: Uuid, may_create: bool) -> Result<(), CliError> {
    let store = operator::store(config).await?;
    let device = store.enrolled_device(id).await?.ok_or_else(|| refused(format!("there is no device {id}")))?;
    devices::set_may_create(&store, device.device.scope_id, id, may_create).await?;
    print(output, &json!({"id": id, "may_create_tunnels": may_create}), || {
        let word = if may_create { "may" } else { "may not" };
        format!("commands at {id} {word} create tunnels")
    });
    Ok(())
}

async fn remove(config: &Config, output: Output, id: Uuid) -> Result<(), CliError> {
    let store = operator::store(config).await?;
    let device = store.enrolled_device(id).await?.ok_or_else(|| refused(format!("there is no device {id}")))?;
    let removed = devices::remove_of_scope(&store, device.device.scope_id, id).await;
    removed.map_err(told)?;
    print(output, &json!({"id": id, "removed": true}), || format!("removed {id}"));
    Ok(())
}
