//! `culvert policy push`, `pull` and `sign`: modules in registries, and their signatures.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use culvert_wire::clock::Clock;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{Progress, Tool, build};
use crate::cli::Output;
use crate::cli::{CliError, print, refused};
use culvert_policy::load::SIZE_LIMIT;
use culvert_policy::load::module_source::{OCI, signature_file};
use culvert_policy::load::oci_manifest::OciManifest;
use culvert_registry::registry::{Artefact, RegistryError};
use culvert_registry::signing_key::SigningKey;
use culvert_registry::trusted_keys;

#[derive(Args)]
pub(crate) struct Push {
    /// The component; its signature is the file .sig beside it, if there is one
    module: PathBuf,
    /// Where it goes: oci://registry/repository:tag
    #[arg(value_parser = reference)]
    to: String,
}

#[derive(Args)]
pub(crate) struct Pull {
    /// What is pulled: oci://registry/repository:tag or oci://registry/repository@sha256:…
    #[arg(value_parser = reference)]
    from: String,
    /// The component's file [default: the repository's last part and .wasm]
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Sign {
    /// The component
    module: PathBuf,
    /// A private key for ECDSA P-256 or Ed25519, as PEM in PKCS #8
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
}

/// How long a registry may take for one module.
const TIME_LIMIT: Duration = Duration::from_mins(10);

/// Waits for a registry, but not for ever.
async fn limited<T>(answer: impl Future<Output = Result<T, RegistryError>>) -> Result<T, String> {
    let answer = Clock::system().timeout(TIME_LIMIT, answer).await;
    let answer = answer.map_err(|_| format!("it took longer than {} minutes", TIME_LIMIT.as_secs() / 60))?;
    answer.map_err(|error| error.to_string())
}

/// A name without `oci://`.
fn reference(text: &str) -> Result<String, String> {
    let name = text.strip_prefix(OCI).ok_or("must begin with oci://")?;
    Ok(name.into())
}

impl Push {
    pub(crate) async fn run(self, output: Output) -> Result<(), CliError> {
        // What is no module is not pushed.
        let Tool { module, .. } = Tool::open(&self.module)?;
        let beside = signature_file(&self.module);
        let signature = match std::fs::read(&beside) {
            Ok(signature) => Some(trusted_keys::in_base64(&signature)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(refused(format!("{}: {error}", beside.display()))),
        };
        let _shown = Progress::of("pushing");
        let fail = |problem: &dyn std::fmt::Display| refused(format!("{OCI}{}: {problem}", self.to));
        let is_signed = signature.is_some();
        let artefact = Artefact::open(&self.to).map_err(|e| fail(&e))?;
        let manifest = limited(artefact.push(module.wasm.clone(), signature)).await.map_err(|e| fail(&e))?;
        let name = format!("{OCI}{}@sha256:{manifest}", self.to);
        let value = json!({"module": name, "sha256": module.digest, "signed": is_signed});
        let signed = if is_signed { ", with its signature" } else { "" };
        print(output, &value, || format!("{name}\npushed {}, sha256 {}{signed}", self.module.display(), module.digest));
        Ok(())
    }
}

impl Pull {
    pub(crate) async fn run(self, output: Output) -> Result<(), CliError> {
        let fail = |problem: &dyn std::fmt::Display| refused(format!("{OCI}{}: {problem}", self.from));
        let _shown = Progress::of("pulling");
        let artefact = Artefact::open(&self.from).map_err(|e| fail(&e))?;
        let bytes = limited(artefact.manifest()).await.map_err(|e| fail(&e))?;
        let digest = hex::encode(Sha256::digest(&bytes));
        if self.from.split_once("@sha256:").is_some_and(|(_, wanted)| wanted != digest) {
            return Err(fail(&format!("the registry's manifest has the digest {digest}")));
        }
        let manifest = OciManifest::parse(&bytes).map_err(|e| fail(&e))?;
        if manifest.size > SIZE_LIMIT {
            return Err(fail(&format!("the module is larger than {} MiB", SIZE_LIMIT >> 20)));
        }
        let layer = format!("sha256:{}", manifest.layer);
        let wasm = limited(artefact.blob(&layer, manifest.size)).await.map_err(|e| fail(&e))?;
        let path = self.out.clone().unwrap_or_else(|| default_file(&self.from));
        build::write_whole(&path, &wasm)?;
        let beside = signature_file(&path);
        match &manifest.signature {
            Some(signature) => build::write_whole(&beside, signature.as_bytes())?,
            // That of another module does not stay beside this one.
            None => match std::fs::remove_file(&beside) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(refused(format!("{}: {error}", beside.display())));
                }
                _ => {}
            },
        }
        let name = match self.from.split_once('@') {
            Some(_) => format!("{OCI}{}", self.from),
            None => format!("{OCI}{}@sha256:{digest}", self.from),
        };
        let value = json!({
            "module": name,
            "path": path,
            "sha256": manifest.layer,
            "signed": manifest.signature.is_some(),
        });
        let signed = if manifest.signature.is_some() { ", with its signature" } else { "" };
        print(output, &value, || format!("{name}\npulled {}, sha256 {}{signed}", path.display(), manifest.layer));
        Ok(())
    }
}

/// The last part of the repository's name.
fn default_file(reference: &str) -> PathBuf {
    let repository = reference.split('@').next().unwrap_or(reference);
    let last = repository.rsplit('/').next().unwrap_or(repository);
    format!("{}.wasm", last.split(':').next().unwrap_or(last)).into()
}

impl Sign {
    pub(crate) fn run(self, output: Output) -> Result<(), CliError> {
        let read = |path: &Path| std::fs::read(path).map_err(|e| refused(format!("{}: {e}", path.display())));
        let (wasm, pem) = (read(&self.module)?, read(&self.key)?);
        let fail = |problem: &dyn std::fmt::Display| refused(format!("{}: {problem}", self.key.display()));
        let signature = SigningKey::parse(&pem).map_err(|e| fail(&e))?.sign(&wasm).map_err(|e| fail(&e))?;
        let path = signature_file(&self.module);
        build::write_whole(&path, format!("{signature}\n").as_bytes())?;
        let value = json!({"path": path, "sha256": hex::encode(Sha256::digest(&wasm)), "signature": signature});
        print(output, &value, || format!("{}: signed {}", path.display(), self.module.display()));
        Ok(())
    }
}
