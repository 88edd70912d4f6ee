//! Files that people write: JSON if the name ends in `.json`, TOML otherwise.

use std::path::Path;

use figment::providers::{Format, Toml};
use serde::de::DeserializeOwned;

/// Reads and parses a file.
///
/// # Errors
///
/// Where the file cannot be read or parsed: one line, without the file's name.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    if path.extension().is_some_and(|extension| extension == "json") {
        return serde_json::from_str(&text).map_err(|error| error.to_string());
    }
    Toml::from_str(&text).map_err(|error| error.to_string().trim().replace('\n', " "))
}
