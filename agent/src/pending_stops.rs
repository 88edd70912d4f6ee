//! Tunnels that people at the device stopped while the host could not hear of it.
//!
//! Their word holds: until the host has heard it, nothing that it resumes of them is run.

use std::collections::BTreeSet;
use std::io;

use uuid::Uuid;

use crate::state_dir::StateDir;

const FILE: &str = "stopped.json";

pub struct PendingStops {
    state: StateDir,
    leases: BTreeSet<Uuid>,
}

impl PendingStops {
    /// # Errors
    ///
    /// Where the record is there but broken.
    pub fn load(state: &StateDir) -> io::Result<Self> {
        Ok(Self { state: state.clone(), leases: state.read(FILE)?.unwrap_or_default() })
    }

    pub fn leases(&self) -> Vec<Uuid> {
        self.leases.iter().copied().collect()
    }

    /// # Errors
    ///
    /// Where the disk does not take it.
    pub fn add(&mut self, lease_id: Uuid) -> io::Result<()> {
        self.leases.insert(lease_id);
        self.state.write(FILE, &self.leases)
    }

    /// The host has heard of these.
    ///
    /// # Errors
    ///
    /// Where the disk does not take it.
    pub fn confirm(&mut self, leases: &[Uuid]) -> io::Result<()> {
        let before = self.leases.len();
        self.leases.retain(|lease| !leases.contains(lease));
        if self.leases.len() == before { Ok(()) } else { self.state.write(FILE, &self.leases) }
    }
}
