//! Files that people write: JSON if the name ends in `.json`, TOML otherwise.

use std::io;
use std::path::Path;

use figment::providers::{Format, Toml};
use serde::de::DeserializeOwned;

/// Why a file cannot be used: one line, without the file's name.
#[derive(Debug, thiserror::Error)]
pub enum TextFileError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("{line}", line = .0.to_string().trim().replace('\n', " "))]
    Toml(#[source] Box<<Toml as Format>::Error>),
}

/// Reads and parses a file.
///
/// # Errors
///
/// Where the file cannot be read or parsed.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, TextFileError> {
    let text = std::fs::read_to_string(path)?;
    if path.extension().is_some_and(|extension| extension == "json") {
        return Ok(serde_json::from_str(&text)?);
    }
    Toml::from_str(&text).map_err(|error| TextFileError::Toml(Box::new(error)))
}
