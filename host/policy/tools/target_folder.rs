//! Where Cargo keeps what it builds for a policy: for a project that stands alone in a folder under the user's cache, which
//! all such projects share, so that the standard library and common crates are compiled once.

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::tools::sources::Sources;

/// The folder for one build. No other build of a shared folder begins before it is dropped.
pub(crate) struct TargetFolder {
    pub(crate) path: PathBuf,
    /// Whether other projects build here as well.
    pub(crate) is_shared: bool,
    _lock: Option<File>,
}

impl TargetFolder {
    /// The folder for a project. A project in a workspace, and one whose target folder is set, keep their own, apart from
    /// that of other builds, because the compiler may be another one.
    ///
    /// # Errors
    ///
    /// The file that cannot be used.
    pub(crate) fn open(sources: &Sources) -> Result<Self, (PathBuf, io::Error)> {
        let stands_alone = sources.manifest().parent() == Some(sources.workspace());
        let is_default = sources.target() == sources.workspace().join("target");
        let Some(path) = cache().filter(|_| stands_alone && is_default) else {
            return Ok(Self { path: sources.target().join("policy"), is_shared: false, _lock: None });
        };
        fs::create_dir_all(&path).map_err(|error| (path.clone(), error))?;
        let file = path.join("lock");
        let lock = File::create(&file).and_then(|lock| lock.lock().map(|()| lock)).map_err(|error| (file, error))?;
        Ok(Self { path, is_shared: true, _lock: Some(lock) })
    }

    /// Whether another project of this name was built here last. Cargo names the modules of both alike, and would take the
    /// one for the other.
    pub(crate) fn is_of_another(&self, sources: &Sources) -> bool {
        self.is_shared && fs::read(self.owner_file(sources)).is_ok_and(|owner| owner != owner_of(sources))
    }

    /// Remembers the project that is built here now.
    ///
    /// # Errors
    ///
    /// The file that cannot be written.
    pub(crate) fn own(&self, sources: &Sources) -> Result<(), (PathBuf, io::Error)> {
        if !self.is_shared {
            return Ok(());
        }
        let file = self.owner_file(sources);
        let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
        folder.and_then(|()| fs::write(&file, owner_of(sources))).map_err(|error| (file, error))
    }

    fn owner_file(&self, sources: &Sources) -> PathBuf {
        // The name of the library's file, in which hyphens are underscores.
        self.path.join("owners").join(sources.package().replace('-', "_"))
    }
}

fn owner_of(sources: &Sources) -> Vec<u8> {
    Sha256::digest(sources.manifest().as_os_str().as_encoded_bytes()).to_vec()
}

/// The folder in the user's cache (XDG Base Directory Specification).
fn cache() -> Option<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let set = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).and_then(absolute);
    let in_home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache")).and_then(absolute);
    Some(set.or_else(in_home)?.join("culvert/policies"))
}
