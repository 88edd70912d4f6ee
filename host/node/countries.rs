//! Countries of IP addresses, from the operator's database (MaxMind DB, version 2.0).

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use chrono::{DateTime, Utc};
use maxminddb::{Reader, path};

use culvert_domain::access::Country;

/// The country database, if one is configured. The file is read again when it has changed.
pub struct Countries {
    file: Option<PathBuf>,
    loaded: ArcSwapOption<Loaded>,
}

struct Loaded {
    reader: Reader<Vec<u8>>,
    stamp: Stamp,
}

/// Modification time and length of a file, by which a change is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
}

impl Countries {
    /// # Errors
    ///
    /// If the file cannot be read, or is not a MaxMind database.
    pub fn open(file: Option<&Path>) -> Result<Self, String> {
        let loaded = file.map(load).transpose()?;
        Ok(Self { file: file.map(Path::to_path_buf), loaded: ArcSwapOption::from(loaded.map(Arc::new)) })
    }

    pub fn are_known(&self) -> bool {
        self.loaded.load().is_some()
    }

    /// The country of an address: where the address is used, or else where it is registered.
    pub fn of(&self, address: IpAddr) -> Option<Country> {
        let loaded = self.loaded.load();
        let found = loaded.as_ref()?.reader.lookup(address).ok()?;
        let code = |path: &[maxminddb::PathElement<'_>]| found.decode_path::<&str>(path).ok().flatten();
        let code = code(&path!["country", "iso_code"]).or_else(|| code(&path!["registered_country", "iso_code"]));
        Country::parse(code?)
    }

    /// When the database was built.
    pub fn built_at(&self) -> Option<DateTime<Utc>> {
        let loaded = self.loaded.load();
        let seconds = loaded.as_ref()?.reader.metadata().build_epoch;
        DateTime::from_timestamp(i64::try_from(seconds).ok()?, 0)
    }

    /// Reads the file again if it has changed. Returns whether a new database was loaded. If the new file
    /// cannot be loaded, the old database stays in use.
    pub fn refresh(&self) -> bool {
        let (Some(file), Some(loaded)) = (&self.file, self.loaded.load_full()) else { return false };
        if stamp(file).is_none_or(|stamp| stamp == loaded.stamp) {
            return false;
        }
        match load(file) {
            Ok(new) => {
                tracing::info!(file = %file.display(), "the country database was read again");
                self.loaded.store(Some(Arc::new(new)));
                true
            }
            Err(problem) => {
                tracing::warn!(problem, "the former country database stays");
                false
            }
        }
    }
}

fn load(file: &Path) -> Result<Loaded, String> {
    let problem = |problem: &dyn std::fmt::Display| format!("{}: {problem}", file.display());
    let stamp = stamp(file).ok_or_else(|| problem(&"there is no such file"))?;
    let bytes = fs::read(file).map_err(|e| problem(&e))?;
    let reader = Reader::from_source(bytes).map_err(|e| problem(&format!("it is no MaxMind database: {e}")))?;
    Ok(Loaded { reader, stamp })
}

fn stamp(file: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(file).ok()?;
    Some(Stamp { modified: metadata.modified().ok(), length: metadata.len() })
}
