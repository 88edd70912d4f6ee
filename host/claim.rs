//! A host takes its place: its folder, and its row among the hosts on its database.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use culvert_domain::error::Chain;
use culvert_node::Identity;
use culvert_service::fleet::EndCause;
use culvert_service::keys;
use culvert_service::secrets::Secrets;
use culvert_store::Store;
use culvert_store::fleet::{Claim, HostRegistration, LiveHost};
use culvert_store::schema::NEWER;
use culvert_wire::clock::Moment;
use culvert_wire::private_dir;
use serde_json::json;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::config::{Config, ConfigError};

/// Locks the data folder, so that only one host uses it. The lock is released when the process ends in any
/// way.
pub(crate) fn lock_data_dir(config: &Config) -> Result<File, ConfigError> {
    let folder = &config.data_dir;
    let fail =
        |problem: &dyn std::fmt::Display| ConfigError::new("data_dir", format!("{}: {problem}", folder.display()));
    private_dir::open(folder).map_err(|e| fail(&e))?;
    let file = File::options().write(true).create(true).truncate(false).open(folder.join("host.lock"));
    let file = file.map_err(|e| fail(&e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(fail(&"another host is running on it; stop it, or use another folder")),
        Err(TryLockError::Error(error)) => Err(fail(&error)),
    }
}

/// Of the machine, if it has one (machine-id(5)). It stays when the machine is started again.
const MACHINE_ID: &str = "/etc/machine-id";

fn registration(
    config: &Config,
    (host_id, policy_generation): (Uuid, u64),
    (store, secrets): (&Store, &Secrets),
    lock: &File,
) -> std::io::Result<HostRegistration> {
    let mut settings = config.shared_settings();
    settings.insert(keys::SETTING, secrets.listed().join(" "));
    let held = lock.metadata()?;
    let identity = |of: &[String]| Sha256::digest(of.join(" ")).to_vec();
    let (device, file) = (held.dev().to_string(), held.ino().to_string());
    let machine = std::fs::read_to_string(MACHINE_ID).unwrap_or_default();
    Ok(HostRegistration {
        id: host_id,
        name: kernel("hostname"),
        version: env!("CARGO_PKG_VERSION").into(),
        // The boot id is another one whenever the machine is started.
        lock_identity: identity(&[kernel("random/boot_id"), device, file.clone()]),
        // The numbers of disks may be others then.
        machine_identity: Some(machine.trim()).filter(|id| !id.is_empty()).map(|id| identity(&[id.into(), file])),
        agent_url: config.agent_url(),
        // On SQLite no other host can take the tunnels of its nodes.
        authority: if store.is_on_a_server() { config.node_authority() } else { Duration::ZERO },
        policy_generation,
        settings: json!(settings).to_string(),
        key_check: secrets.check(),
    })
}

/// A value of the kernel; empty where it does not say.
fn kernel(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default().trim().into()
}

/// Takes the place, if no other host is in the way, and uses the key that all hosts use. Returns when it has asked for the
/// place, since the machine was started.
///
/// # Errors
///
/// One line that says who is.
pub(crate) async fn claim(
    config: &Config,
    (store, secrets): (&Store, &Secrets),
    nodes: &[Identity],
    lock: &File,
    policy_generation: u64,
) -> Result<Option<Moment>, ConfigError> {
    // The host has the id of its first node.
    let Some(id) = nodes.first().map(|node| node.id) else { return Ok(None) };
    let since_boot = store.clock().since_boot();
    let host = registration(config, (id, policy_generation), (store, secrets), lock);
    let claimed = store.claim_host(host.map_err(|e| ConfigError::new("data_dir", e))?).await;
    match claimed.map_err(|e| ConfigError::new("database_url", Chain(&e)))? {
        Claim::Taken { now, key_check, key_is_new } => {
            if secrets.follow(&key_check).is_none() {
                // It has to be copied first.
                let _ = store.end_host(id).await;
                return Err(ConfigError::new(keys::SETTING, secrets.refusal(&config.secret_key_file(), &key_check)));
            }
            if key_is_new {
                tracing::info!("secret_key_file has a new key; lease tokens are signed with it from now on");
            } else if secrets.current_number() != secrets.newest() {
                tracing::info!("secret_key_file has a newer key; `culvert secrets activate` has all hosts use it");
            }
            if store.is_on_a_server() {
                store.clock().follow(now, store.clock().moment());
            }
            Ok(Some(since_boot))
        }
        Claim::Refused(other) => Err(in_the_way(&other)),
    }
}

fn in_the_way(other: &LiveHost) -> ConfigError {
    let LiveHost { name, until } = other;
    let until = until.format("%H:%M:%S");
    let used = "data_dir: the host of this folder, or of one that it was copied from, was alive just now on";
    ConfigError::whole(format!(
        "{used} {name}; use another folder, or where it is gone, try again after {until} UTC, or see `culvert node abandon`"
    ))
}

/// Why a host has ended by itself, for its operator.
pub(crate) fn end_of(cause: EndCause, config: &Config) -> ConfigError {
    match cause {
        EndCause::Outdated => ConfigError::new("database_url", NEWER),
        EndCause::Replaced => ConfigError::new(
            "data_dir",
            "the database does not know this process as the host of the folder any longer: another one runs on a copy of the \
             folder, or the database was put back to before this start; in the second case, start it again",
        ),
        EndCause::KeyMissing(version) => {
            let file = config.secret_key_file();
            let problem =
                format!("{}: the other hosts use key v{version}, which it does not have; copy theirs", file.display());
            ConfigError::new("secret_key_file", problem)
        }
    }
}
