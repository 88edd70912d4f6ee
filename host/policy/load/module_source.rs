//! Where the bytes of an entry's module come from: the host itself, a file, a registry or a web server; or the modules that
//! are kept with a generation.
//!
//! Whatever comes from elsewhere is held to a digest in the configuration, and kept, so that a start needs no network.

use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::load::module_store::ModuleStore;
use crate::load::oci_manifest::OciManifest;
use crate::load::policies::ModuleBytes;
use crate::load::policy_config::{PolicyConfig, Trust};
use crate::load::{SIZE_LIMIT, bundle};

/// Prefix of a module in a registry.
pub const OCI: &str = "oci://";
/// Prefix of a module on a web server.
pub const HTTPS: &str = "https://";

/// Fetches what is not on this machine. It may return anything: whoever calls it compares digests.
pub trait RemoteModules: Send + Sync {
    /// The manifest that a reference without `oci://` names.
    ///
    /// # Errors
    ///
    /// Why there is none, in one line.
    fn manifest(&self, reference: &str) -> Result<Vec<u8>, String>;

    /// A layer of the artefact, of at most this many bytes.
    ///
    /// # Errors
    ///
    /// Why there is none, in one line.
    fn blob(&self, reference: &str, digest: &str, limit: usize) -> Result<Vec<u8>, String>;

    /// A file of at most this many bytes.
    ///
    /// # Errors
    ///
    /// Why there is none, in one line.
    fn download(&self, url: &str, limit: usize) -> Result<Vec<u8>, String>;
}

/// The keys whose signatures are accepted.
pub trait TrustedKeys: Send + Sync {
    /// Whether one of the keys has made this signature, raw or in base64, over these bytes.
    fn verify(&self, wasm: &[u8], signature: &[u8]) -> bool;
}

/// What a host knows of modules that it does not bring along.
#[derive(Clone, Default)]
pub struct Origins {
    /// None where only files are loaded.
    pub remote: Option<Arc<dyn RemoteModules>>,
    /// None where modules need no signature.
    pub trusted: Option<Arc<dyn TrustedKeys>>,
}

/// Where modules are looked for, and how far they are trusted.
pub(crate) struct Places<'a> {
    pub(crate) modules: &'a ModuleStore,
    /// The folder that relative paths start from.
    pub(crate) folder: &'a Path,
    pub(crate) trust: Trust,
    pub(crate) origins: &'a Origins,
}

/// A module, and the signature that came with it.
pub(crate) struct Sourced {
    pub(crate) wasm: Vec<u8>,
    pub(crate) signature: Option<Vec<u8>>,
}

/// The field of the entry that is wrong, and what is wrong with it.
pub(crate) type SourceError = (&'static str, String);

impl Sourced {
    /// Finds an entry's module, checks its digest and, where keys are trusted, its signature.
    ///
    /// # Errors
    ///
    /// The field that is wrong.
    pub(crate) fn find(places: &Places<'_>, entry: &PolicyConfig) -> Result<Self, SourceError> {
        let module = entry.module.as_str();
        if let Some(name) = module.strip_prefix(bundle::PREFIX) {
            return built_in(name).map(|wasm| Self { wasm, signature: None });
        }
        let mut found = if let Some(reference) = module.strip_prefix(OCI) {
            from_registry(places, entry, reference)?
        } else if module.starts_with(HTTPS) {
            from_web(places, entry)?
        } else if module.contains("://") {
            return Err(("module", format!("{module}: modules come from files, oci:// and https://")));
        } else {
            from_file(places, entry)?
        };
        if let Some(signature) = &entry.signature {
            let signature =
                STANDARD.decode(signature.trim()).map_err(|_| ("signature", "must be base64".to_owned()))?;
            found.signature = Some(signature);
        }
        found.check_signature(places)?;
        Ok(found)
    }

    /// Finds an entry's module among those that are kept, and checks its signature. One that a host brings along has none: the
    /// host that has made the generation vouches for it.
    ///
    /// # Errors
    ///
    /// The field that is wrong.
    pub(crate) fn find_given(
        places: &Places<'_>,
        modules: &[ModuleBytes],
        entry: &PolicyConfig,
    ) -> Result<Self, SourceError> {
        let found = modules.iter().find(|module| entry.sha256.as_ref() == Some(&module.sha256));
        let found = found.filter(|module| hex::encode(Sha256::digest(&module.wasm)) == module.sha256);
        let Some(ModuleBytes { wasm, signature, .. }) = found else {
            return Err(("module", format!("{}: the database does not have it as it was loaded", entry.module)));
        };
        let own = entry.signature.as_ref().and_then(|signature| STANDARD.decode(signature.trim()).ok());
        let found = Self { wasm: wasm.clone(), signature: own.or_else(|| signature.clone()) };
        if !entry.module.starts_with(bundle::PREFIX) {
            found.check_signature(places)?;
        }
        Ok(found)
    }

    fn check_signature(&self, places: &Places<'_>) -> Result<(), SourceError> {
        let Some(trusted) = &places.origins.trusted else { return Ok(()) };
        match &self.signature {
            Some(signature) if trusted.verify(&self.wasm, signature) => Ok(()),
            Some(_) => Err((
                "signature",
                "no key in policies.trusted_keys has made it for this module; load the module that was signed, or sign \
                 this one"
                    .into(),
            )),
            None => Err((
                "signature",
                "is missing, and policies.trusted_keys asks for one; `culvert policy sign` makes the file .sig beside the \
                 module"
                    .into(),
            )),
        }
    }
}

fn built_in(name: &str) -> Result<Vec<u8>, SourceError> {
    let shipped = bundle::find(name).ok_or_else(|| {
        let names: Vec<_> = bundle::NAMES.iter().map(|name| format!("{}{name}", bundle::PREFIX)).collect();
        ("module", format!("there is no `{}{name}`; shipped are {}", bundle::PREFIX, names.join(", ")))
    })?;
    Ok(shipped.into())
}

fn from_file(places: &Places<'_>, entry: &PolicyConfig) -> Result<Sourced, SourceError> {
    let path = places.folder.join(&entry.module);
    let fail = |path: &Path, problem: ReadError| ("module", format!("{}: {problem}", path.display()));
    let wasm = read_whole(&path).map_err(|problem| fail(&path, problem))?;
    check_digest(places, entry, &path.display().to_string(), &wasm)?;
    if places.origins.trusted.is_none() {
        return Ok(Sourced { wasm, signature: None });
    }
    let beside = signature_file(&path);
    let signature = match read_whole(&beside) {
        Ok(signature) => Some(signature),
        Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
        Err(problem) => return Err(fail(&beside, problem)),
    };
    Ok(Sourced { wasm, signature })
}

/// The file of a module's signature.
pub fn signature_file(module: &Path) -> PathBuf {
    let mut beside = module.as_os_str().to_owned();
    beside.push(".sig");
    beside.into()
}

fn from_web(places: &Places<'_>, entry: &PolicyConfig) -> Result<Sourced, SourceError> {
    let url = entry.module.as_str();
    let known = entry.sha256.as_ref().map(|digest| digest.to_ascii_lowercase());
    if let Some((digest, wasm)) = known.and_then(|digest| Some((digest.clone(), places.modules.find(&digest)?))) {
        let signature = places.modules.signature(&digest);
        // One that is not accepted any more may have been made anew there.
        let is_accepted = |trusted: &Arc<dyn TrustedKeys>| signature.as_ref().is_some_and(|s| trusted.verify(&wasm, s));
        if entry.signature.is_some() || places.origins.trusted.as_ref().is_none_or(is_accepted) {
            return Ok(Sourced { wasm, signature });
        }
    }
    let remote = remote(places)?;
    let fail = |problem: String| ("module", format!("{url}: {problem}"));
    let wasm = remote.download(url, SIZE_LIMIT).map_err(fail)?;
    check_digest(places, entry, url, &wasm)?;
    let wants_signature = places.origins.trusted.is_some() && entry.signature.is_none();
    let signature = wants_signature.then(|| remote.download(&format!("{url}.sig"), SIGNATURE_LIMIT));
    Ok(Sourced {
        wasm,
        signature: signature.transpose().map_err(|problem| ("signature", format!("{url}.sig: {problem}")))?,
    })
}

/// Most bytes of a signature.
const SIGNATURE_LIMIT: usize = 4096;

fn from_registry(places: &Places<'_>, entry: &PolicyConfig, reference: &str) -> Result<Sourced, SourceError> {
    let fail = |problem: String| ("module", format!("{OCI}{reference}: {problem}"));
    let digest = reference.split_once("@sha256:").map(|(_, digest)| digest);
    if digest.is_some_and(|digest| digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit())) {
        return Err(fail("a digest is 64 hexadecimal digits".into()));
    }
    let stored = digest.and_then(|digest| places.modules.manifest(digest));
    let (bytes, is_stored) = match stored {
        Some(bytes) => (bytes, true),
        None => (remote(places)?.manifest(reference).map_err(fail)?, false),
    };
    let actual = hex::encode(Sha256::digest(&bytes));
    match digest {
        Some(digest) if digest != actual => {
            return Err(fail(format!("the registry's manifest has the digest {actual}; load what was meant")));
        }
        None if places.trust == Trust::Digest => {
            let problem =
                format!("must end in the digest of its manifest, which now is `{OCI}{reference}@sha256:{actual}`");
            return Err(("module", problem));
        }
        _ => {}
    }
    let OciManifest { layer, size, signature } = OciManifest::parse(&bytes).map_err(fail)?;
    if let Some(expected) = entry.sha256.as_ref().filter(|expected| !expected.eq_ignore_ascii_case(&layer)) {
        let problem = format!("{OCI}{reference} has the digest {layer}, not {expected}; leave it out, or change it");
        return Err(("sha256", problem));
    }
    if size > SIZE_LIMIT {
        return Err(fail(format!("the module is larger than {} MiB", SIZE_LIMIT >> 20)));
    }
    let wasm = if let Some(wasm) = places.modules.find(&layer) {
        wasm
    } else {
        let wasm = remote(places)?.blob(reference, &format!("sha256:{layer}"), size).map_err(fail)?;
        if hex::encode(Sha256::digest(&wasm)) != layer {
            return Err(fail("the registry's module has another digest than its manifest says".into()));
        }
        wasm
    };
    if !is_stored {
        places.modules.keep_manifest(&actual, &bytes);
    }
    Ok(Sourced { wasm, signature: signature.map(String::into_bytes) })
}

fn remote<'a>(places: &Places<'a>) -> Result<&'a dyn RemoteModules, SourceError> {
    places.origins.remote.as_deref().ok_or_else(|| ("module", "this program loads modules from files only".to_owned()))
}

fn check_digest(places: &Places<'_>, entry: &PolicyConfig, name: &str, wasm: &[u8]) -> Result<(), SourceError> {
    let digest = hex::encode(Sha256::digest(wasm));
    match &entry.sha256 {
        Some(expected) if expected.eq_ignore_ascii_case(&digest) => Ok(()),
        Some(expected) => Err((
            "sha256",
            format!(
                "{name} has the digest {digest}, not {expected}; load the file that was meant, or change the digest"
            ),
        )),
        None if places.trust == Trust::Path => Ok(()),
        None => Err(("sha256", format!("is required for a module that is not built in; this one's is {digest}"))),
    }
}

/// Why a module's file cannot be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is no file")]
    NoFile,
    #[error("it changed while it was read; write the new one aside, rename it into place, and reload")]
    Changed,
}

/// Reads a file, and fails if it changes while it is read.
fn read_whole(path: &Path) -> Result<Vec<u8>, ReadError> {
    // Checked before the file is opened, because opening a pipe would wait for a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(ReadError::NoFile);
    }
    let file = fs::File::open(path)?;
    let before = file.metadata()?;
    let mut wasm = Vec::new();
    (&file).take(SIZE_LIMIT as u64 + 1).read_to_end(&mut wasm)?;
    // The path may name another file by now. That is allowed, because the file that was opened is
    // complete. It is not complete if it was written to while it was read.
    let after = file.metadata()?;
    let version = |metadata: &Metadata| (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
    if version(&before) == version(&after) {
        return Ok(wasm);
    }
    Err(ReadError::Changed)
}
