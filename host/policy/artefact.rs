//! Compiled modules, kept between starts so that a restart compiles nothing.
//!
//! The folder is the host's own: what is in it is machine code that will run. A file is named by
//! the digest of all that it was made from and carries the digest of what it holds; one that does
//! not fit is not there. Keeping is best effort: a full disk costs time, not the start.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};
use wasmtime::Engine;

const DIGEST_BYTES: usize = 32;

pub struct Artefacts {
    folder: Option<PathBuf>,
}

impl Artefacts {
    /// Artefacts in a folder, made if it is missing, readable by this user alone.
    pub fn in_folder(folder: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        Ok(Self { folder: Some(folder.into()) })
    }

    /// Keeps nothing.
    pub fn none() -> Self {
        Self { folder: None }
    }

    /// A name for what these inputs make on this engine, with this build of the host.
    pub fn key(&self, engine: &Engine, inputs: &[&[u8]]) -> String {
        let mut compatibility = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut compatibility);
        let mut digest = Sha256::new();
        digest.update(env!("CARGO_PKG_VERSION"));
        digest.update(compatibility.finish().to_le_bytes());
        for input in inputs {
            digest.update((input.len() as u64).to_le_bytes());
            digest.update(input);
        }
        hex::encode(digest.finalize())
    }

    pub fn find(&self, key: &str) -> Option<Vec<u8>> {
        let mut content = fs::read(self.folder.as_ref()?.join(key)).ok()?;
        let artefact = content.split_off(content.len().min(DIGEST_BYTES));
        (Sha256::digest(&artefact)[..] == content).then_some(artefact)
    }

    pub fn keep(&self, key: &str, artefact: &[u8]) {
        let Some(folder) = &self.folder else { return };
        // Written aside and renamed, for another process may look for the same.
        static KEPT: AtomicUsize = AtomicUsize::new(0);
        let number = KEPT.fetch_add(1, Ordering::Relaxed);
        let aside = folder.join(format!("{key}.{}.{number}", std::process::id()));
        let kept = write(&aside, artefact).and_then(|()| fs::rename(&aside, folder.join(key)));
        if let Err(error) = kept {
            tracing::warn!(%error, folder = %folder.display(), "a compiled policy could not be kept");
            let _ = fs::remove_file(aside);
        }
    }
}

fn write(path: &Path, artefact: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // Not synced: what a power cut leaves half written does not fit its digest, and is made again.
    file.write_all(&Sha256::digest(artefact))?;
    file.write_all(artefact)
}
