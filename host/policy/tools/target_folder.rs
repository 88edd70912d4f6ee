//! Where Cargo keeps what it builds for a policy: for a project that stands alone in a folder under the user's cache, which
//! all such projects share, so that the standard library and common crates are compiled once.

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::tools::sources::{LocalPackage, Sources, SourcesError};

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

    /// The local packages of which other sources were built here last. Cargo tells packages of different projects apart by
    /// their path in the project alone, and old from new by times, so it would take the one for the other.
    ///
    /// # Errors
    ///
    /// If the sources cannot be read.
    pub(crate) fn changed<'a>(&self, sources: &'a Sources) -> Result<Vec<&'a str>, SourcesError> {
        let mut changed = Vec::new();
        for package in sources.local_packages().iter().filter(|_| self.is_shared) {
            let digest = package.digest()?;
            if fs::read_to_string(self.digest_file(package)).is_ok_and(|built| built != digest) {
                changed.push(package.name.as_str());
            }
        }
        Ok(changed)
    }

    /// Remembers which sources are built here now.
    ///
    /// # Errors
    ///
    /// If the sources cannot be read, or a file not written.
    pub(crate) fn remember(&self, sources: &Sources) -> Result<(), SourcesError> {
        for package in sources.local_packages().iter().filter(|_| self.is_shared) {
            let (file, digest) = (self.digest_file(package), package.digest()?);
            let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
            folder.and_then(|()| fs::write(&file, digest)).map_err(|error| SourcesError::File { path: file, error })?;
        }
        Ok(())
    }

    fn digest_file(&self, package: &LocalPackage) -> PathBuf {
        // The name of the library's file, in which hyphens are underscores.
        self.path.join("sources").join(package.name.replace('-', "_"))
    }
}

/// The folder in the user's cache (XDG Base Directory Specification).
fn cache() -> Option<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let set = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).and_then(absolute);
    let in_home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache")).and_then(absolute);
    Some(set.or_else(in_home)?.join("culvert/policies"))
}
