//! A cache of compiled modules on disk, so that a restart compiles nothing.
//!
//! The folder must belong to the host alone, because the machine code in it will run. A file's name is
//! the digest of all its inputs. The file begins with a tag (a message authentication code, MAC) over
//! its name and content, which only the host's key can create. A file whose tag does not match is
//! treated as missing. Writing is best effort: on a full disk the host still starts, only more slowly.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};
use wasmtime::Engine;

use culvert_wire::private_dir;

/// Bytes of a tag: one for the key's version, 32 for HMAC-SHA256.
const TAG_BYTES: usize = 33;

/// Authenticates artefacts with the host's key: the key's version, followed by HMAC-SHA256.
pub trait ArtefactKey: Send + Sync {
    fn mac(&self, data: &[u8]) -> Vec<u8>;

    fn verify_mac(&self, data: &[u8], mac: &[u8]) -> bool;
}

pub struct Artefacts {
    place: Option<(PathBuf, Arc<dyn ArtefactKey>)>,
}

impl Artefacts {
    /// Keeps artefacts in a folder that only this user can write into. It is created if it is missing.
    ///
    /// # Errors
    ///
    /// If the folder cannot be created, belongs to another user, or can be written into by others.
    pub fn in_folder(folder: &Path, key: Arc<dyn ArtefactKey>) -> io::Result<Self> {
        private_dir::open_trusted(folder)?;
        Ok(Self { place: Some((folder.into(), key)) })
    }

    /// A cache that keeps nothing.
    pub fn none() -> Self {
        Self { place: None }
    }

    /// Whether it keeps anything.
    pub(crate) fn keeps(&self) -> bool {
        self.place.is_some()
    }

    /// The name of the artefact made from these inputs for this engine by this version of the host.
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
        let (folder, own_key) = self.place.as_ref()?;
        let mut content = fs::read(folder.join(key)).ok()?;
        let artefact = content.split_off(content.len().min(TAG_BYTES));
        own_key.verify_mac(&tagged(key, &artefact), &content).then_some(artefact)
    }

    pub fn keep(&self, key: &str, artefact: &[u8]) {
        let Some((folder, own_key)) = &self.place else { return };
        let tag = own_key.mac(&tagged(key, artefact));
        // Written to a temporary file and renamed, because another process may read the same artefact.
        static KEPT: AtomicUsize = AtomicUsize::new(0);
        let number = KEPT.fetch_add(1, Ordering::Relaxed);
        let aside = folder.join(format!("{key}.{}.{number}", std::process::id()));
        let kept = write(&aside, &tag, artefact).and_then(|()| fs::rename(&aside, folder.join(key)));
        if let Err(error) = kept {
            tracing::warn!(%error, folder = %folder.display(), "a compiled policy could not be kept");
            let _ = fs::remove_file(aside);
        }
    }

    /// Keeps what was made, and hands it on.
    pub(crate) fn kept(&self, key: &str, artefact: Vec<u8>) -> Vec<u8> {
        self.keep(key, &artefact);
        artefact
    }

    /// Removes all artefacts but these. A folder that is a symbolic link may be shared with others, so nothing is removed
    /// there.
    pub(crate) fn retain(&self, keys: &BTreeSet<&str>) {
        let Some((folder, _)) = &self.place else { return };
        if folder.is_symlink() {
            return;
        }
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            // What is not a key is being written.
            let is_unused = name.to_str().is_some_and(|name| !name.contains('.') && !keys.contains(name));
            if is_unused {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// The data that a tag authenticates: the name, and the digest of the content.
fn tagged(key: &str, artefact: &[u8]) -> Vec<u8> {
    [key.as_bytes(), &Sha256::digest(artefact)[..]].concat()
}

fn write(path: &Path, tag: &[u8], artefact: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // Not synced: a file that a power failure leaves incomplete does not match its tag and is made
    // again.
    file.write_all(tag)?;
    file.write_all(artefact)
}
