//! The local targets that this device has agreed to lead to, by tunnel.
//!
//! A device without remote control resumes what it ran before, and nothing else: the host cannot
//! turn a running tunnel to a target that nobody at the device has chosen.

use std::collections::BTreeMap;
use std::io;

use uuid::Uuid;

use crate::state::StateDir;
use crate::wire::Target;

const FILE: &str = "targets.json";

pub struct Agreed {
    state: StateDir,
    targets: BTreeMap<Uuid, Target>,
}

impl Agreed {
    /// # Errors
    ///
    /// Where the record is there but broken.
    pub fn load(state: &StateDir) -> io::Result<Self> {
        Ok(Self { state: state.clone(), targets: state.read(FILE)?.unwrap_or_default() })
    }

    /// Whether the tunnel was last run with this host and these ports.
    pub fn includes(&self, tunnel_id: Uuid, target: &Target) -> bool {
        self.targets.get(&tunnel_id).is_some_and(|agreed| {
            agreed.host == target.host
                && agreed.port == target.port
                && target.extra.iter().all(|extra| agreed.extra.contains(extra))
        })
    }

    /// # Errors
    ///
    /// Where the disk does not take it.
    pub fn agree(&mut self, tunnel_id: Uuid, target: &Target) -> io::Result<()> {
        if self.targets.get(&tunnel_id) == Some(target) {
            return Ok(());
        }
        self.targets.insert(tunnel_id, target.clone());
        self.state.write(FILE, &self.targets)
    }

    /// # Errors
    ///
    /// Where the disk does not take it.
    pub fn forget(&mut self, tunnel_id: Uuid) -> io::Result<()> {
        match self.targets.remove(&tunnel_id) {
            Some(_) => self.state.write(FILE, &self.targets),
            None => Ok(()),
        }
    }
}
