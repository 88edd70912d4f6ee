//! The policies of a configuration, and the modules that a generation of them consists of.

use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::load::bundle;
use crate::load::policy_config::PolicyConfig;

/// The policies that a configuration names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Policies {
    pub entries: Vec<PolicyConfig>,
    /// A plan that they must know.
    pub default_plan: String,
}

impl Policies {
    /// Tells configurations apart.
    pub fn digest(&self) -> String {
        hex::encode(Sha256::digest(json!([self.entries, self.default_plan]).to_string()))
    }

    /// A generation of these modules, which were loaded for them.
    ///
    /// # Errors
    ///
    /// If they cannot be written as JSON.
    pub fn of(&self, modules: &[ModuleBytes]) -> Result<Generation, serde_json::Error> {
        let mut held = self.clone();
        for (entry, module) in held.entries.iter_mut().zip(modules) {
            entry.sha256 = Some(module.sha256.clone());
        }
        let content = serde_json::to_string(&held)?;
        Ok(Generation { content, configuration: self.digest(), ..Generation::default() })
    }

    /// Whether each module that a host brings along is the one of this host, where entries are held to digests.
    pub fn are_built_in_here(&self) -> bool {
        let built_in =
            self.entries.iter().filter_map(|entry| Some((entry, entry.module.strip_prefix(bundle::PREFIX)?)));
        let is_here = |(entry, name): (&PolicyConfig, &str)| {
            bundle::find(name).map(|wasm| hex::encode(Sha256::digest(wasm))) == entry.sha256
        };
        built_in.into_iter().all(is_here)
    }
}

/// A module, as it is kept with the generations that it belongs to.
#[derive(Clone, Debug)]
pub struct ModuleBytes {
    /// In hexadecimal.
    pub sha256: String,
    pub wasm: Vec<u8>,
    /// The signature that came with it.
    pub signature: Option<Vec<u8>>,
}

/// Where the modules of a chain are taken from.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// From where the entries say.
    Configured,
    /// From these: each entry is held to a digest.
    Given(&'a [ModuleBytes]),
}

/// One generation of the policies.
#[derive(Clone, Debug, Default)]
pub struct Generation {
    pub number: u64,
    /// Its [`Policies`] as JSON, each entry held to the digest of its module.
    pub content: String,
    /// Digest of the configuration that it was made from, or whose policies were rolled back to it.
    pub configuration: String,
    /// The generations before it that a rollback leads to, most recent first.
    pub earlier: Vec<u64>,
    /// Whether it has come by a rollback.
    pub is_rollback: bool,
    /// Whether it is only compared with what was decided.
    pub is_trial: bool,
}

impl Generation {
    /// What it consists of.
    ///
    /// # Errors
    ///
    /// If a later version of the host has made it, which knows more of policies.
    pub fn policies(&self) -> Result<Policies, serde_json::Error> {
        serde_json::from_str(&self.content)
    }

    /// Tells contents apart: the same at every host.
    pub fn digest(&self) -> String {
        hex::encode(Sha256::digest(&self.content))
    }
}
