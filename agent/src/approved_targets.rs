//! The local targets that this device has agreed to, by tunnel.
//!
//! Without remote control, a device resumes only what it ran before: the host cannot lead a running tunnel to
//! a target that nobody at the device has chosen.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::state_dir::StateDir;
use culvert_wire::target::Target;

const FILE: &str = "targets.json";

/// Who chose a tunnel's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// Somebody at the device. Every address is allowed, except link-local and metadata addresses.
    Here,
    /// Somebody by remote control. Only the targets in the device's list are allowed.
    FromAfar,
}

pub(crate) struct ApprovedTargets {
    state: StateDir,
    targets: BTreeMap<Uuid, Agreement>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Agreement {
    #[serde(flatten)]
    target: Target,
    /// Whether somebody at the device chose the target. Older agents did not record it; then it counts as
    /// chosen.
    #[serde(default = "yes")]
    chosen_here: bool,
}

fn yes() -> bool {
    true
}

impl Agreement {
    fn chosen(&self) -> Chosen {
        if self.chosen_here { Chosen::Here } else { Chosen::FromAfar }
    }

    /// Whether the agreement has the target's host and all of its ports, and how they are spoken to.
    fn includes(&self, target: &Target) -> bool {
        self.target.host == target.host
            && self.target.port == target.port
            && self.target.tls == target.tls
            && self.target.tls_verify == target.tls_verify
            && target.extra.iter().all(|extra| self.target.extra.contains(extra))
    }
}

impl ApprovedTargets {
    /// # Errors
    ///
    /// If the record exists but cannot be read.
    pub(crate) fn load(state: &StateDir) -> io::Result<Self> {
        Ok(Self { state: state.clone(), targets: state.read(FILE)?.unwrap_or_default() })
    }

    /// Who chose a target, if the tunnel last ran with this host and these ports.
    pub(crate) fn chosen(&self, tunnel_id: Uuid, target: &Target) -> Option<Chosen> {
        self.targets.get(&tunnel_id).filter(|agreed| agreed.includes(target)).map(Agreement::chosen)
    }

    /// The target that a tunnel last ran with, and who chose it.
    pub(crate) fn last(&self, tunnel_id: Uuid) -> Option<(Target, Chosen)> {
        self.targets.get(&tunnel_id).map(|agreed| (agreed.target.clone(), agreed.chosen()))
    }

    pub(crate) fn targets(&self) -> impl Iterator<Item = &Target> {
        self.targets.values().map(|agreed| &agreed.target)
    }

    /// # Errors
    ///
    /// If the record cannot be written.
    pub(crate) fn agree(&mut self, tunnel_id: Uuid, target: &Target, chosen: Chosen) -> io::Result<()> {
        let agreement = Agreement { target: target.clone(), chosen_here: chosen == Chosen::Here };
        if self.targets.get(&tunnel_id) == Some(&agreement) {
            return Ok(());
        }
        self.targets.insert(tunnel_id, agreement);
        self.state.write(FILE, &self.targets)
    }

    /// # Errors
    ///
    /// If the record cannot be written.
    pub(crate) fn forget(&mut self, tunnel_id: Uuid) -> io::Result<()> {
        match self.targets.remove(&tunnel_id) {
            Some(_) => self.state.write(FILE, &self.targets),
            None => Ok(()),
        }
    }
}
