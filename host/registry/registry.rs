//! Modules in a registry (OCI distribution specification 1.1), as the layout of the CNCF for WebAssembly artefacts has
//! them: a manifest with one layer, the component.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use culvert_policy::load::oci_manifest::{OciManifest, SIGNATURE};
use oci_client::client::{ClientConfig, ClientProtocol, Config, ImageLayer};
use oci_client::errors::OciDistributionError;
use oci_client::manifest::{OCI_IMAGE_MEDIA_TYPE, OciDescriptor, OciImageManifest};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};
use reqwest::StatusCode;
use reqwest::header::ACCEPT;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWrite;

use crate::download::{self, CONNECT, SILENCE, USER_AGENT};
use crate::{credentials, token};

const CONFIG_TYPE: &str = "application/vnd.wasm.config.v0+json";
const LAYER_TYPE: &str = "application/wasm";
/// Most bytes of a manifest. That of a module has less than 1 KiB.
const MANIFEST_LIMIT: usize = 256 * 1024;

/// An artefact in a registry.
pub struct Artefact {
    client: Client,
    /// For what `client` would read without a limit.
    http: reqwest::Client,
    reference: Reference,
    auth: RegistryAuth,
}

/// Why a registry did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("must be oci://registry/repository:tag or oci://registry/repository@sha256:…")]
    Reference,
    #[error("{0}")]
    Credentials(String),
    #[error("the registry does not let us in; log in with `docker login`")]
    Refused,
    #[error("the registry has no such artefact")]
    Missing,
    #[error("its token: {0}")]
    Token(String),
    #[error("its manifest: {0}")]
    Manifest(String),
    #[error("{}", one_line(.0))]
    Registry(#[from] OciDistributionError),
    #[error("the registry has another module under this name now; push it once more")]
    Other,
    #[error("a module is pushed to a tag, not to a digest")]
    Digest,
}

fn one_line(error: &OciDistributionError) -> String {
    let text = match error {
        OciDistributionError::UnauthorizedError { .. }
        | OciDistributionError::AuthenticationFailure(_)
        | OciDistributionError::ServerError { code: 401 | 403, .. } => RegistryError::Refused.to_string(),
        OciDistributionError::ImageManifestNotFoundError(_) => RegistryError::Missing.to_string(),
        OciDistributionError::RegistryError { envelope, .. } => {
            let messages = envelope.errors.iter().map(|error| error.message.as_str()).collect::<Vec<_>>();
            format!("the registry says: {}", messages.join(", "))
        }
        OciDistributionError::RequestError(error) => chain(error),
        error => error.to_string(),
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

impl Artefact {
    /// The artefact of this name, without `oci://`.
    ///
    /// # Errors
    ///
    /// If it is no name, or docker's configuration cannot be used.
    pub fn open(name: &str) -> Result<Self, RegistryError> {
        let reference: Reference = name.parse().map_err(|_| RegistryError::Reference)?;
        if reference.digest().is_some_and(|digest| !digest.starts_with("sha256:")) {
            return Err(RegistryError::Reference);
        }
        let registry = reference.resolve_registry().to_owned();
        let auth = credentials::of_registry(&registry).map_err(RegistryError::Credentials)?;
        let protocol =
            if is_local(&registry) { ClientProtocol::HttpsExcept(vec![registry]) } else { ClientProtocol::Https };
        let config = ClientConfig {
            protocol,
            connect_timeout: Some(CONNECT),
            read_timeout: Some(SILENCE),
            user_agent: USER_AGENT,
            ..ClientConfig::default()
        };
        let http = download::client().https_only(!is_local(reference.resolve_registry())).build();
        let http = http.map_err(OciDistributionError::RequestError)?;
        Ok(Self { client: Client::new(config), http, reference, auth })
    }

    /// The bytes of its manifest.
    ///
    /// # Errors
    ///
    /// If the registry does not give it.
    pub async fn manifest(&self) -> Result<Vec<u8>, RegistryError> {
        let auth = self.let_in("pull").await?;
        let name = self.reference.digest().or(self.reference.tag()).unwrap_or("latest");
        let request = self.http.get(format!("{}{}/manifests/{name}", self.url(), self.reference.repository()));
        let request = request.header(ACCEPT, OCI_IMAGE_MEDIA_TYPE);
        let request = match auth {
            RegistryAuth::Bearer(token) => request.bearer_auth(token),
            RegistryAuth::Basic(user, password) => request.basic_auth(user, Some(password)),
            RegistryAuth::Anonymous => request,
        };
        let answer = request.send().await.map_err(OciDistributionError::RequestError)?;
        match answer.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(RegistryError::Refused),
            StatusCode::NOT_FOUND => Err(RegistryError::Missing),
            status if !status.is_success() => Err(RegistryError::Manifest(format!("the registry answers {status}"))),
            _ => download::bounded(answer, MANIFEST_LIMIT).await.map_err(RegistryError::Manifest),
        }
    }

    /// Where the registry's interface begins.
    fn url(&self) -> String {
        let registry = self.reference.resolve_registry();
        format!("{}://{registry}/v2/", if is_local(registry) { "http" } else { "https" })
    }

    /// What to show the registry for these actions.
    async fn let_in(&self, actions: &str) -> Result<RegistryAuth, RegistryError> {
        token::of(&self.http, &self.url(), self.reference.repository(), actions, &self.auth).await
    }

    /// One of its layers, of at most this many bytes.
    ///
    /// # Errors
    ///
    /// If the registry does not give it, or more.
    pub async fn blob(&self, digest: &str, limit: usize) -> Result<Vec<u8>, RegistryError> {
        self.client.auth(&self.reference, &self.let_in("pull").await?, RegistryOperation::Pull).await?;
        let mut bytes = Bounded { bytes: Vec::new(), limit };
        let layer = OciDescriptor { digest: digest.into(), ..OciDescriptor::default() };
        self.client.pull_blob(&self.reference, &layer, &mut bytes).await?;
        Ok(bytes.bytes)
    }

    /// Pushes a module, and its signature in base64. Returns the digest of the manifest.
    ///
    /// # Errors
    ///
    /// If the name has a digest, or the registry does not take it.
    pub async fn push(&self, wasm: Vec<u8>, signature: Option<String>) -> Result<String, RegistryError> {
        if self.reference.digest().is_some() {
            return Err(RegistryError::Digest);
        }
        let digest = hex::encode(Sha256::digest(&wasm));
        let config = json!({
            "architecture": "wasm",
            "os": "wasip2",
            "layerDigests": [format!("sha256:{digest}")],
            "component": {"exports": [], "imports": []},
        });
        let config = Config::new(config.to_string().into_bytes(), CONFIG_TYPE.into(), None);
        let annotations = signature.map(|signature| BTreeMap::from([(SIGNATURE.to_owned(), signature)]));
        let layers = [ImageLayer::new(wasm, LAYER_TYPE.into(), annotations)];
        let mut manifest = OciImageManifest::build(&layers, &config, None);
        manifest.media_type = Some(OCI_IMAGE_MEDIA_TYPE.into());
        let auth = self.let_in("pull,push").await?;
        self.client.push(&self.reference, &layers, config, &auth, Some(manifest)).await?;
        // The name that is printed is that of what the registry keeps, so that must be what was sent.
        let kept = self.manifest().await?;
        match OciManifest::parse(&kept) {
            Ok(manifest) if manifest.layer == digest => Ok(hex::encode(Sha256::digest(kept))),
            _ => Err(RegistryError::Other),
        }
    }
}

/// Whether a registry runs on this machine: it needs no TLS then, as with docker.
fn is_local(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    culvert_wire::loopback::is_loopback(host)
}

/// Takes so many bytes, and fails with more.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Poll::Ready(Err(io::Error::other("the registry sends more bytes than its manifest says")));
        }
        self.bytes.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
