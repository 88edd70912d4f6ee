//! A node's identity: its id, and the certificate by which agents recognise it. Created at the first start.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use culvert_wire::clock::Clock;
use culvert_wire::{data, data2, quic, tls};
use quinn::EndpointConfig;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use uuid::Uuid;

const ID: &str = "id";
const KEY: &str = "key.pem";
const CERTIFICATE: &str = "certificate.pem";

#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", .path.display())]
pub struct IdentityError {
    path: PathBuf,
    problem: String,
}

pub struct Identity {
    pub id: Uuid,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Opens the identity in a folder, and creates one if there is none.
    ///
    /// # Errors
    ///
    /// If an existing identity cannot be read, or a new one cannot be created.
    pub fn open(folder: &Path, clock: &Clock) -> Result<Self, IdentityError> {
        let fail =
            |path: PathBuf| move |problem: &dyn std::fmt::Display| IdentityError { path, problem: problem.to_string() };
        if !folder.join(ID).exists() {
            create(folder, clock).map_err(|e| fail(folder.into())(&e))?;
        }
        let path = |name: &str| folder.join(name);
        let id = fs::read_to_string(path(ID)).map_err(|e| fail(path(ID))(&e))?;
        Ok(Self {
            id: Uuid::parse_str(id.trim()).map_err(|e| fail(path(ID))(&e))?,
            certificate: CertificateDer::from_pem_file(path(CERTIFICATE)).map_err(|e| fail(path(CERTIFICATE))(&e))?,
            key: PrivateKeyDer::from_pem_file(path(KEY)).map_err(|e| fail(path(KEY))(&e))?,
        })
    }

    pub fn fingerprint(&self) -> [u8; 32] {
        tls::fingerprint(&self.certificate)
    }

    /// The TLS configuration with which the node proves its identity to agents.
    ///
    /// # Errors
    ///
    /// If the key is unusable, or does not match the certificate.
    pub fn tls(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        tls::server(self.certificate.clone(), self.key.clone_key(), &[data2::ALPN, data::ALPN])
    }

    /// The same for connections of QUIC.
    ///
    /// # Errors
    ///
    /// If the key is unusable, or does not match the certificate.
    pub fn quic(&self, most_unproven: usize) -> Result<(EndpointConfig, quinn::ServerConfig), rustls::Error> {
        let server = quic::server(self.certificate.clone(), self.key.clone_key(), most_unproven)?;
        Ok((quic::endpoint(&self.key), server))
    }
}

/// Creates an identity. The id is written last: if its file exists, the other files are complete.
fn create(folder: &Path, clock: &Clock) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["node.culvert.invalid".into()]).map_err(io::Error::other)?;
    write(&folder.join(KEY), &signing_key.serialize_pem())?;
    write(&folder.join(CERTIFICATE), &cert.pem())?;
    write(&folder.join(ID), &clock.id().to_string())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
