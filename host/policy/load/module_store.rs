//! Modules as they were loaded, by digest, so that an earlier set can be loaded again after a restart.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use culvert_wire::private_dir;

pub struct ModuleStore {
    folder: Option<PathBuf>,
}

impl ModuleStore {
    /// Keeps modules in a private folder, which is created if it is missing.
    ///
    /// # Errors
    ///
    /// If the folder cannot be created, or belongs to another user.
    pub fn in_folder(folder: &Path) -> io::Result<Self> {
        private_dir::open_trusted(folder)?;
        Ok(Self { folder: Some(folder.into()) })
    }

    /// Keeps nothing.
    pub fn none() -> Self {
        Self { folder: None }
    }

    /// The module with this digest, if it is kept and unchanged.
    pub(crate) fn find(&self, digest: &str) -> Option<Vec<u8>> {
        let wasm = fs::read(self.folder.as_ref()?.join(name(digest))).ok()?;
        (hex::encode(Sha256::digest(&wasm)) == digest).then_some(wasm)
    }

    /// Keeps a module. On a full disk the host goes on, and cannot load the module again from here.
    pub(crate) fn keep(&self, digest: &str, wasm: &[u8]) {
        let Some(folder) = &self.folder else { return };
        let path = folder.join(name(digest));
        if path.exists() {
            return;
        }
        if let Err(error) = private_dir::replace(&path, wasm) {
            tracing::warn!(%error, file = %path.display(), "a module could not be kept");
        }
    }

    /// Removes all modules but those with these digests.
    pub(crate) fn retain(&self, digests: &BTreeSet<String>) {
        let Some(folder) = &self.folder else { return };
        let kept: BTreeSet<String> = digests.iter().map(|digest| name(digest)).collect();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if !kept.contains(entry.file_name().to_string_lossy().as_ref()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn name(digest: &str) -> String {
    format!("{digest}.wasm")
}
