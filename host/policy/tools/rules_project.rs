//! A project of rules: a folder with `rules.toml`, the settings of a built-in module, and `cases/`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::engine::kind::Kind;
use crate::load::text_file::{self, TextFileError};

/// The file of the rules.
pub const RULES: &str = "rules.toml";

pub struct RulesProject {
    pub kind: Kind,
    pub settings: Map<String, Value>,
}

#[derive(Debug, thiserror::Error)]
pub enum RulesProjectError {
    #[error("{}: {error}", .path.display())]
    File { path: PathBuf, error: TextFileError },
    #[error("{}: kind: must be plan-access, team-role or validation", .0.display())]
    Kind(PathBuf),
}

impl RulesProject {
    /// Whether a folder is a project of rules.
    pub fn is_in(folder: &Path) -> bool {
        folder.join(RULES).is_file() && !folder.join("Cargo.toml").exists() && !folder.join("package.json").exists()
    }

    /// Reads the rules of a project.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or does not say what kind of policy it is.
    pub fn read(folder: &Path) -> Result<Self, RulesProjectError> {
        let path = folder.join(RULES);
        let settings: Map<String, Value> =
            text_file::read(&path).map_err(|error| RulesProjectError::File { path: path.clone(), error })?;
        let kind = settings.get("kind").and_then(|kind| Kind::deserialize(kind).ok());
        kind.map(|kind| Self { kind, settings }).ok_or(RulesProjectError::Kind(path))
    }
}
