//! The manifest of a module in a registry: the parts of an OCI image manifest that a host reads
//! (OCI image specification 1.1, "Image Manifest"; CNCF TAG Runtime, "Wasm OCI Artifact layout").

use serde::Deserialize;
use std::collections::BTreeMap;

/// Media types of a layer that is a module: the artefact layout's, and the one before it.
const LAYERS: [&str; 2] = ["application/wasm", "application/vnd.wasm.content.layer.v1+wasm"];
/// The annotation of the layer that holds a signature over its bytes, in base64.
pub const SIGNATURE: &str = "culvert.policy.signature";

pub struct OciManifest {
    /// SHA-256 of the module, in hexadecimal.
    pub layer: String,
    /// Bytes of the module.
    pub size: usize,
    pub signature: Option<String>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
    size: usize,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl OciManifest {
    /// Reads a manifest with one module.
    ///
    /// # Errors
    ///
    /// If it is no manifest, or has no or several modules.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|error| format!("its manifest cannot be read: {error}"))?;
        let mut modules = manifest.layers.into_iter().filter(|layer| LAYERS.contains(&layer.media_type.as_str()));
        let (Some(mut layer), None) = (modules.next(), modules.next()) else {
            return Err(format!("its manifest must have one layer of the type {}", LAYERS[0]));
        };
        let digest = layer.digest.strip_prefix("sha256:").filter(|hex| hex.len() == 64);
        let digest = digest.filter(|hex| hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')));
        let digest = digest.ok_or("the digest of its layer must be sha256")?.to_owned();
        Ok(Self { layer: digest, size: layer.size, signature: layer.annotations.remove(SIGNATURE) })
    }
}
