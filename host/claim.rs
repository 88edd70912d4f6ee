//! A host takes its place: its folder, and its row among the hosts on its database.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;

use culvert_domain::error::Chain;
use culvert_node::Identity;
use culvert_store::Store;
use culvert_store::fleet::{Claim, HostRegistration, LiveHost};
use culvert_wire::private_dir;
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

fn registration(config: &Config, host_id: Uuid, lock: &File) -> std::io::Result<HostRegistration> {
    let held = lock.metadata()?;
    // The boot id is another one whenever the machine is started.
    let identity = Sha256::digest(format!("{} {} {}", kernel("random/boot_id"), held.dev(), held.ino()));
    Ok(HostRegistration {
        id: host_id,
        name: kernel("hostname"),
        version: env!("CARGO_PKG_VERSION").into(),
        lock_identity: identity.to_vec(),
        agent_url: config.agent_url(),
    })
}

/// A value of the kernel; empty where it does not say.
fn kernel(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default().trim().into()
}

/// Takes the place, if no other host is in the way.
///
/// # Errors
///
/// One line that says who is.
pub(crate) async fn claim(config: &Config, store: &Store, nodes: &[Identity], lock: &File) -> Result<(), ConfigError> {
    // The host has the id of its first node.
    let Some(id) = nodes.first().map(|node| node.id) else { return Ok(()) };
    let host = registration(config, id, lock).map_err(|e| ConfigError::new("data_dir", e))?;
    let claimed = store.claim_host(host, !config.several_hosts).await;
    match claimed.map_err(|e| ConfigError::new("database_url", Chain(&e)))? {
        Claim::Taken(now) => {
            if store.is_on_a_server() {
                store.clock().follow(now, store.clock().moment());
            }
            Ok(())
        }
        Claim::Refused(other) => Err(in_the_way(id, &other)),
    }
}

fn in_the_way(id: Uuid, other: &LiveHost) -> ConfigError {
    let LiveHost { name, lease_until, .. } = other;
    let until = lease_until.format("%H:%M:%S");
    if other.id == id {
        let used = "data_dir: the host of this folder, or of one that it was copied from, was alive just now on";
        return ConfigError::whole(format!(
            "{used} {name}; use another folder, or where it is gone, try again after {until} UTC"
        ));
    }
    let used = "database_url: another host uses this database, on";
    ConfigError::whole(format!("{used} {name}; stop it, or where it is gone, try again after {until} UTC"))
}
