//! Local stops of tunnels that the host has not confirmed yet.
//!
//! A local stop stays in force: what the host resumes before it has recorded the stop is not run.

use std::collections::BTreeSet;
use std::io;

use uuid::Uuid;

use crate::state_dir::StateDir;

const FILE: &str = "stopped.json";

pub(crate) struct PendingStops {
    state: StateDir,
    leases: BTreeSet<Uuid>,
}

impl PendingStops {
    /// # Errors
    ///
    /// If the record exists but cannot be read.
    pub(crate) fn load(state: &StateDir) -> io::Result<Self> {
        Ok(Self { state: state.clone(), leases: state.read(FILE)?.unwrap_or_default() })
    }

    pub(crate) fn leases(&self) -> Vec<Uuid> {
        self.leases.iter().copied().collect()
    }

    /// # Errors
    ///
    /// If the record cannot be written.
    pub(crate) fn add(&mut self, lease_id: Uuid) -> io::Result<()> {
        self.leases.insert(lease_id);
        self.state.write(FILE, &self.leases)
    }

    /// The host has recorded these stops.
    ///
    /// # Errors
    ///
    /// If the record cannot be written.
    pub(crate) fn confirm(&mut self, leases: &[Uuid]) -> io::Result<()> {
        let before = self.leases.len();
        self.leases.retain(|lease| !leases.contains(lease));
        if self.leases.len() == before { Ok(()) } else { self.state.write(FILE, &self.leases) }
    }
}
