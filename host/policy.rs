//! The policy engine: WebAssembly components decide, and nothing else about them is trusted.
//!
//! A module comes from a file ([`component`]), takes its settings once ([`snapshot`]), and is then
//! asked in a fresh sandbox for every decision ([`call`]). [`live`] holds the set that decides now.
//! Only these files name wasmtime; what they hand out are the records of `wit/`, in [`bindings`].
//! Where a module gives no valid answer, the question is answered with an error, never with a yes.

pub mod artefact;
pub mod bindings;
pub mod build;
pub mod bundle;
pub mod call;
pub mod cases;
pub mod component;
pub mod convert;
pub mod engine;
pub mod live;
pub mod sandbox;
pub mod snapshot;
pub mod sources;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use artefact::Artefacts;
use component::{Kind, LoadError, Module};
use engine::Engines;
use live::Set;
use sandbox::Limits;

/// One `[[policy]]` of the configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyConfig {
    pub kind: Kind,
    /// `builtin:<kind>`, or the path of a component.
    pub module: String,
    /// The file's SHA-256 in hexadecimal; required for a path.
    pub sha256: Option<String>,
    /// Milliseconds for one decision.
    #[serde(default = "default_deadline")]
    pub deadline_ms: u32,
    #[serde(default = "default_memory")]
    pub memory_kib: u32,
    #[serde(default)]
    pub settings: serde_json::Map<String, serde_json::Value>,
}

fn default_deadline() -> u32 {
    50
}

fn default_memory() -> u32 {
    2048
}

impl PolicyConfig {
    /// The three shipped modules with their own settings.
    pub fn shipped() -> Vec<Self> {
        Kind::ALL.map(Self::builtin).into()
    }

    pub fn builtin(kind: Kind) -> Self {
        Self {
            kind,
            module: format!("{}{kind}", bundle::PREFIX),
            sha256: None,
            deadline_ms: default_deadline(),
            memory_kib: default_memory(),
            settings: serde_json::Map::new(),
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            deadline: Duration::from_millis(self.deadline_ms.into()),
            memory_bytes: self.memory_kib as usize * 1024,
        }
    }
}

/// Why a chain of policies was not loaded. One line, naming the entry and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    #[error("policy[{index}].{field}: {problem}")]
    Entry { index: usize, field: &'static str, problem: String },
    #[error("policy[{index}] ({module}): {error}")]
    Load { index: usize, module: String, error: LoadError },
    #[error("policy: no module of kind {0} is named; add one, for instance `module = \"builtin:{0}\"`")]
    Missing(Kind),
    #[error("policy: the WebAssembly engine did not start: {0}")]
    Engine(String),
}

/// Loads the chains of a configuration. Relative paths are seen from `folder`.
pub fn load(
    engines: &Engines,
    artefacts: &Artefacts,
    chain: &[PolicyConfig],
    folder: &Path,
) -> Result<Set, ChainError> {
    if let Some(missing) = Kind::ALL.into_iter().find(|kind| chain.iter().all(|entry| entry.kind != *kind)) {
        return Err(ChainError::Missing(missing));
    }
    let modules = chain.iter().enumerate().map(|(index, entry)| {
        let load = |error| ChainError::Load { index, module: entry.module.clone(), error };
        let wasm = wasm(entry, folder).map_err(|(field, problem)| ChainError::Entry { index, field, problem })?;
        let module = Module::read(engines, wasm).map_err(load)?;
        if module.kind != entry.kind {
            return Err(load(LoadError::World { wanted: entry.kind, exported: Some(module.kind) }));
        }
        let settings = serde_json::Value::Object(entry.settings.clone()).to_string();
        module.configure(engines, artefacts, &settings, entry.limits()).map(Arc::new).map_err(load)
    });
    let modules = modules.collect::<Result<Vec<_>, _>>()?;
    Set::new(engines, modules).map_err(|error| ChainError::Engine(error.to_string()))
}

/// The bytes of an entry's module, or the field that is wrong.
fn wasm(entry: &PolicyConfig, folder: &Path) -> Result<Vec<u8>, (&'static str, String)> {
    if entry.deadline_ms == 0 || entry.deadline_ms > 10_000 {
        return Err(("deadline_ms", "must be between 1 and 10000".into()));
    }
    if !(64..=engine::MEMORY_LIMIT / 1024).contains(&(entry.memory_kib as usize)) {
        return Err(("memory_kib", format!("must be between 64 and {}", engine::MEMORY_LIMIT / 1024)));
    }
    if let Some(name) = entry.module.strip_prefix(bundle::PREFIX) {
        let shipped = bundle::find(name).ok_or_else(|| {
            let names = Kind::ALL.map(|kind| format!("builtin:{kind}")).join(", ");
            ("module", format!("there is no `{}`; shipped are {names}", entry.module))
        })?;
        return Ok(shipped.into());
    }
    let path = folder.join(&entry.module);
    let wasm = std::fs::read(&path).map_err(|error| ("module", format!("{}: {error}", path.display())))?;
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&wasm));
    match &entry.sha256 {
        Some(expected) if expected.eq_ignore_ascii_case(&digest) => Ok(wasm),
        Some(expected) => Err(("sha256", format!("{} has the digest {digest}, not {expected}", path.display()))),
        None => Err(("sha256", format!("is required for a module from a file; this one's is {digest}"))),
    }
}
