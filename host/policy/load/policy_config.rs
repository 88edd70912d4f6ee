//! One `[[policy]]` entry of the configuration.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engine::kind::Kind;
use crate::engine::sandbox::Limits;
use crate::load::bundle;
use crate::load::text_file::{self, TextFileError};

/// One `[[policy]]` of the configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyConfig {
    pub kind: Kind,
    /// `builtin:` and the name of a shipped module, the path of a component, `oci://…@sha256:…` or `https://…`.
    pub module: String,
    /// SHA-256 of the file, in hexadecimal; required for a path and for `https://`.
    pub sha256: Option<String>,
    /// A signature over the module's bytes, in base64, where `policies.trusted_keys` asks for one and none comes with the
    /// module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    #[serde(default)]
    pub mode: Mode,
    /// Deadline of one decision, in milliseconds.
    #[serde(default = "default_deadline")]
    pub deadline_ms: u32,
    #[serde(default = "default_memory")]
    pub memory_kib: u32,
    #[serde(default)]
    pub settings: Map<String, Value>,
    /// A file of settings, TOML or JSON, instead of `settings`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings_file: Option<PathBuf>,
}

/// Why an entry's file of settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsFileError {
    #[error("is given beside `settings`; leave one of them out")]
    Both,
    #[error("{}: {error}", .path.display())]
    File { path: PathBuf, error: TextFileError },
}

/// How a module's responses are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The responses decide.
    #[default]
    Enforce,
    /// The responses are only compared with what the chain decided.
    Shadow,
}

fn default_deadline() -> u32 {
    50
}

fn default_memory() -> u32 {
    2048
}

impl PolicyConfig {
    /// The three built-in modules with their default settings.
    pub fn shipped() -> Vec<Self> {
        Kind::ALL.map(Self::builtin).into()
    }

    pub fn builtin(kind: Kind) -> Self {
        Self {
            kind,
            module: format!("{}{kind}", bundle::PREFIX),
            sha256: None,
            signature: None,
            mode: Mode::Enforce,
            deadline_ms: default_deadline(),
            memory_kib: default_memory(),
            settings: Map::new(),
            settings_file: None,
        }
    }

    /// Reads the file of settings, if the entry names one.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or the entry has settings of its own as well.
    pub fn read_settings(&mut self) -> Result<(), SettingsFileError> {
        let Some(path) = self.settings_file.take() else { return Ok(()) };
        if !self.settings.is_empty() {
            return Err(SettingsFileError::Both);
        }
        self.settings = text_file::read(&path).map_err(|error| SettingsFileError::File { path, error })?;
        Ok(())
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            deadline: Duration::from_millis(self.deadline_ms.into()),
            memory_bytes: self.memory_kib as usize * 1024,
        }
    }
}

/// Whether a module's file must match a digest in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    #[default]
    Digest,
    /// For development: without a digest, any file is accepted.
    Path,
}
