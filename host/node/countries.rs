//! Countries of IP addresses, from the operator's database (MaxMind DB, version 2.0).

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use chrono::{DateTime, Utc};
use maxminddb::{Reader, path};

use culvert_domain::access::Country;

/// The country database, if one is configured. The file is read again when it has changed.
pub struct Countries {
    file: Option<PathBuf>,
    loaded: ArcSwapOption<Loaded>,
    /// How often another database was loaded.
    generation: AtomicU64,
}

/// Why the database cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum CountriesError {
    #[error("{}: there is no such file", .0.display())]
    Missing(PathBuf),
    #[error("{}: {source}", .path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{}: it is no MaxMind database: {source}", .path.display())]
    Invalid { path: PathBuf, source: maxminddb::MaxMindDbError },
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
    pub fn open(file: Option<&Path>) -> Result<Self, CountriesError> {
        let loaded = ArcSwapOption::from(file.map(load).transpose()?.map(Arc::new));
        Ok(Self { file: file.map(Path::to_path_buf), loaded, generation: AtomicU64::new(0) })
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

    /// Reads the file again if it has changed. Returns how often another database was loaded so far. If the
    /// new file cannot be loaded, the old database stays in use.
    pub fn refresh(&self) -> u64 {
        if let Some(new) = self.changed() {
            self.loaded.store(Some(Arc::new(new)));
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        self.generation.load(Ordering::Acquire)
    }

    fn changed(&self) -> Option<Loaded> {
        let (file, loaded) = (self.file.as_ref()?, self.loaded.load_full()?);
        if stamp(file).is_none_or(|stamp| stamp == loaded.stamp) {
            return None;
        }
        match load(file) {
            Ok(new) => {
                tracing::info!(file = %file.display(), "the country database was read again");
                Some(new)
            }
            Err(problem) => {
                tracing::warn!(%problem, "the former country database stays");
                None
            }
        }
    }
}

fn load(file: &Path) -> Result<Loaded, CountriesError> {
    let stamp = stamp(file).ok_or_else(|| CountriesError::Missing(file.into()))?;
    let bytes = fs::read(file).map_err(|source| CountriesError::Unreadable { path: file.into(), source })?;
    let reader = Reader::from_source(bytes);
    let reader = reader.map_err(|source| CountriesError::Invalid { path: file.into(), source })?;
    Ok(Loaded { reader, stamp })
}

fn stamp(file: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(file).ok()?;
    Some(Stamp { modified: metadata.modified().ok(), length: metadata.len() })
}
