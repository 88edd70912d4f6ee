//! Modules as they were loaded, by digest, so that one that has come over the network is not fetched again.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::load::oci_manifest::OciManifest;
use culvert_wire::private_dir;

pub struct ModuleStore {
    folder: Option<PathBuf>,
    /// Whether it also keeps and removes modules.
    is_own: bool,
}

impl ModuleStore {
    /// Keeps modules in a private folder, which is created if it is missing.
    ///
    /// # Errors
    ///
    /// If the folder cannot be created, or belongs to another user.
    pub fn in_folder(folder: &Path) -> io::Result<Self> {
        private_dir::open_trusted(folder)?;
        Ok(Self { folder: Some(folder.into()), is_own: true })
    }

    /// Keeps nothing.
    pub fn none() -> Self {
        Self { folder: None, is_own: false }
    }

    /// Finds what a host keeps in its folder, and changes nothing there.
    pub fn reading(folder: &Path) -> Self {
        Self { folder: Some(folder.into()), is_own: false }
    }

    /// The folder, if it may be changed.
    fn own_folder(&self) -> Option<&Path> {
        self.folder.as_deref().filter(|_| self.is_own)
    }

    /// The module with this digest, if it is kept and unchanged.
    pub(crate) fn find(&self, digest: &str) -> Option<Vec<u8>> {
        let wasm = fs::read(self.folder.as_ref()?.join(name(digest))).ok()?;
        (hex::encode(Sha256::digest(&wasm)) == digest).then_some(wasm)
    }

    /// The signature that came with a module.
    pub(crate) fn signature(&self, digest: &str) -> Option<Vec<u8>> {
        fs::read(self.folder.as_ref()?.join(signature_name(digest))).ok()
    }

    /// The manifest of a registry with this digest, if it is kept and unchanged.
    pub(crate) fn manifest(&self, digest: &str) -> Option<Vec<u8>> {
        let manifest = fs::read(self.folder.as_ref()?.join(manifest_name(digest))).ok()?;
        (hex::encode(Sha256::digest(&manifest)) == digest).then_some(manifest)
    }

    /// Keeps a module. On a full disk the host goes on, and fetches the module again when it is loaded anew.
    pub(crate) fn keep(&self, digest: &str, wasm: &[u8], signature: Option<&[u8]>) {
        self.keep_file(&name(digest), wasm);
        if let Some(signature) = signature {
            self.keep_file(&signature_name(digest), signature);
        }
    }

    /// Keeps a manifest, as [`ModuleStore::keep`] keeps its module.
    pub(crate) fn keep_manifest(&self, digest: &str, manifest: &[u8]) {
        self.keep_file(&manifest_name(digest), manifest);
    }

    fn keep_file(&self, name: &str, content: &[u8]) {
        let Some(folder) = self.own_folder() else { return };
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|kept| kept == content) {
            return;
        }
        if let Err(error) = private_dir::replace(&path, content) {
            tracing::warn!(%error, file = %path.display(), "a module could not be kept");
        }
    }

    /// Removes all modules but those with these digests, and what came with them.
    pub(crate) fn retain(&self, digests: &BTreeSet<String>) {
        let Some(folder) = self.own_folder() else { return };
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, file) = (entry.path(), entry.file_name());
            let (name, kind) = file.to_str().and_then(|file| file.split_once('.')).unwrap_or_default();
            let is_used = match kind {
                "wasm" | "sig" => digests.contains(name),
                MANIFEST => fs::read(&path)
                    .is_ok_and(|bytes| OciManifest::parse(&bytes).is_ok_and(|of| digests.contains(&of.layer))),
                _ => false,
            };
            if !is_used {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// How the name of a manifest ends.
const MANIFEST: &str = "manifest.json";

fn name(digest: &str) -> String {
    format!("{digest}.wasm")
}

fn signature_name(digest: &str) -> String {
    format!("{digest}.sig")
}

fn manifest_name(digest: &str) -> String {
    format!("{digest}.{MANIFEST}")
}
