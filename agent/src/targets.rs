//! The device's own list of targets that remote control may use, in the state folder.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use culvert_wire::allowed_target::{
    AllowedTarget, MAX_ENTRIES, admits, exactly, is_reserved, literal, ports, standard,
};
use culvert_wire::target::Target;

use crate::approved_targets::ApprovedTargets;
use crate::state_dir::StateDir;

const FILE: &str = "allowed_targets.json";

/// The list of allowed targets. It is kept in the state folder, and shared with the running tunnels.
#[derive(Clone)]
pub struct Targets {
    state: StateDir,
    list: Arc<RwLock<Vec<AllowedTarget>>>,
}

impl Targets {
    /// Opens the list of a state folder. If there is none and the device consents, the agent consented before
    /// lists existed: the list then has the targets that its tunnels lead to already.
    ///
    /// # Errors
    ///
    /// If a record exists but cannot be read.
    pub fn open(state: &StateDir, consenting: bool) -> io::Result<Self> {
        let list = match state.read(FILE)? {
            Some(list) => list,
            None if consenting => of_agreed(ApprovedTargets::load(state)?.targets()),
            None => standard(),
        };
        Ok(Self { state: state.clone(), list: Arc::new(RwLock::new(list)) })
    }

    /// Whether a state folder has a list.
    pub fn is_stored(state: &StateDir) -> bool {
        state.path(FILE).exists()
    }

    pub fn list(&self) -> Vec<AllowedTarget> {
        self.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the list. The new one applies from the next dial on.
    ///
    /// # Errors
    ///
    /// If the list cannot be written. Then nothing has changed.
    pub fn replace(&self, list: Vec<AllowedTarget>) -> io::Result<()> {
        self.state.write(FILE, &list)?;
        *self.list.write().unwrap_or_else(PoisonError::into_inner) = list;
        Ok(())
    }

    pub fn admits(&self, host: &str, ip: IpAddr, port: u16) -> bool {
        admits(&self.list.read().unwrap_or_else(PoisonError::into_inner), host, ip, port)
    }
}

/// The first list of an agent that had none: this machine, and the targets that its tunnels lead to already.
fn of_agreed<'a>(agreed: impl Iterator<Item = &'a Target>) -> Vec<AllowedTarget> {
    let mut list = standard();
    for target in agreed {
        // Reserved addresses need an explicit entry by the device's owner.
        if literal(&target.host).is_some_and(is_reserved) {
            continue;
        }
        for entry in ports(target).filter_map(|port| exactly(&target.host, port)) {
            if list.len() < MAX_ENTRIES && !list.iter().any(|known| known.covers(&entry)) {
                list.push(entry);
            }
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_targets_are_allowed_except_reserved_addresses() {
        let target = |host: &str, port| Target::new(host, port);
        let agreed =
            [target("127.0.0.1", 80), target("10.0.0.5", 5432), target("nas", 22), target("169.254.169.254", 80)];
        let said: Vec<String> = of_agreed(agreed.iter()).iter().map(ToString::to_string).collect();
        assert_eq!(said, ["127.0.0.0/8", "::1", "localhost", "10.0.0.5:5432", "nas:22"]);
    }
}
