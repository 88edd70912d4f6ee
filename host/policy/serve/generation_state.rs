//! What a restart must know of the generations: their numbers, a rollback that still holds, and what is kept on disk.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::load::chain::PolicyConfig;
use culvert_wire::private_dir;

/// The configuration that a set is loaded from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Policies {
    pub entries: Vec<PolicyConfig>,
    /// A plan that the set must know.
    pub default_plan: String,
}

impl Policies {
    /// Tells configurations apart.
    pub(crate) fn digest(&self) -> String {
        hex::encode(Sha256::digest(json!([self.entries, self.default_plan]).to_string()))
    }
}

/// A rollback that holds until the next reload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Rollback {
    /// Digest of the configuration that was rolled back.
    pub from: String,
    /// What decides instead. Its modules are named by their digests.
    pub to: Policies,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GenerationState {
    /// The highest number so far.
    pub newest: u64,
    /// The number of the set that decides.
    pub active: u64,
    /// What it was loaded from, and the modules that this led to.
    pub configuration: String,
    pub modules: Vec<String>,
    pub rollback: Option<Rollback>,
}

/// The file that holds the state. None keeps nothing.
#[derive(Clone, Debug, Default)]
pub struct StateFile(Option<PathBuf>);

impl StateFile {
    pub fn at(path: &Path) -> Self {
        Self(Some(path.into()))
    }

    /// What the last process left; the beginning if there is nothing, or nothing that can be read.
    pub(crate) fn read(&self) -> GenerationState {
        let Some(path) = &self.0 else { return GenerationState::default() };
        let Ok(text) = fs::read(path) else { return GenerationState::default() };
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::warn!(%error, file = %path.display(), "the numbers of the policies begin anew");
            GenerationState::default()
        })
    }

    pub(crate) fn write(&self, state: &GenerationState) {
        let Some(path) = &self.0 else { return };
        let written = serde_json::to_vec(state).map_err(std::io::Error::other);
        if let Err(error) = written.and_then(|text| private_dir::replace(path, &text)) {
            tracing::warn!(%error, file = %path.display(), "a restart will not know the number of the policies");
        }
    }
}
