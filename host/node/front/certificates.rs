//! The certificates by which public names are proved to visitors.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use culvert_wire::node::{Certificate, Challenge, TlsIdentity};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Challenges, by their names in ACME.
const HTTP_01: &str = "http-01";
const TLS_ALPN_01: &str = "tls-alpn-01";

#[derive(Debug, Default)]
pub(crate) struct Certificates(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    by_owner: HashMap<Uuid, (Vec<Arc<Held>>, Vec<Challenge>)>,
    /// A wildcard stands here with its `*.`.
    by_name: HashMap<String, Arc<Held>>,
    /// What an authority looks for: by name, the certificate of a TLS-ALPN-01 challenge (RFC 8737).
    alpn: HashMap<String, Arc<CertifiedKey>>,
    /// By name and token, the answer of an HTTP-01 challenge (RFC 8555, section 8.3).
    http: HashMap<(String, String), String>,
}

/// A certificate with its key.
#[derive(Debug)]
pub(crate) struct Held {
    names: Vec<String>,
    key: Arc<CertifiedKey>,
}

impl Held {
    /// Whether the certificate proves a name (RFC 6125, section 6.4).
    pub(super) fn covers(&self, name: &str) -> bool {
        let wildcard = wildcard_of(name);
        self.names.iter().any(|known| known == name || Some(known) == wildcard.as_ref())
    }
}

impl Certificates {
    pub(super) fn find(&self, name: &str) -> Option<Arc<Held>> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.by_name.get(name).or_else(|| table.by_name.get(&wildcard_of(name)?)).cloned()
    }

    /// The certificate that answers the challenge of a name.
    pub(super) fn challenge_certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).alpn.get(name).cloned()
    }

    /// The answer to the challenge of a name.
    pub(super) fn challenge_answer(&self, name: &str, token: &str) -> Option<String> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if table.http.is_empty() { None } else { table.http.get(&(name.to_owned(), token.to_owned())).cloned() }
    }

    /// Replaces all certificates.
    pub(crate) fn replace(&self, identities: Vec<TlsIdentity>) {
        let mut table = Table::default();
        identities.into_iter().for_each(|identity| table.put(identity));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = table;
    }

    pub(crate) fn change(&self, put: Vec<TlsIdentity>, drop: &[Uuid]) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // A name may go from one owner to another in one change.
        let gone: HashSet<Uuid> = drop.iter().copied().chain(put.iter().map(|identity| identity.owner_id)).collect();
        gone.iter().for_each(|owner_id| table.remove(*owner_id));
        put.into_iter().for_each(|identity| table.put(identity));
    }
}

impl Table {
    fn put(&mut self, identity: TlsIdentity) {
        let TlsIdentity { owner_id, certificates, challenges } = identity;
        let mut served = Vec::new();
        for certificate in certificates {
            match held(&certificate) {
                Ok(held) => {
                    let held = Arc::new(held);
                    held.names.iter().for_each(|name| drop(self.by_name.insert(name.clone(), held.clone())));
                    served.push(held);
                }
                Err(error) => tracing::error!(%error, names = ?certificate.names, "a certificate cannot be used"),
            }
        }
        for challenge in &challenges {
            let Challenge { name, kind, token, key_authorization } = challenge;
            if kind == HTTP_01 {
                self.http.insert((name.clone(), token.clone()), key_authorization.clone());
            } else if kind == TLS_ALPN_01 {
                match answering(name, key_authorization) {
                    Ok(key) => drop(self.alpn.insert(name.clone(), Arc::new(key))),
                    Err(error) => tracing::error!(%error, name, "a challenge cannot be answered"),
                }
            }
        }
        self.by_owner.insert(owner_id, (served, challenges));
    }

    fn remove(&mut self, owner_id: Uuid) {
        let Some((served, challenges)) = self.by_owner.remove(&owner_id) else { return };
        for held in served {
            held.names.iter().for_each(|name| drop(self.by_name.remove(name)));
        }
        for Challenge { name, token, .. } in challenges {
            self.alpn.remove(&name);
            self.http.remove(&(name, token));
        }
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.find(hello.server_name()?).map(|held| held.key.clone())
    }
}

fn wildcard_of(name: &str) -> Option<String> {
    name.split_once('.').map(|(_, parent)| format!("*.{parent}"))
}

fn held(certificate: &Certificate) -> Result<Held, Box<dyn std::error::Error>> {
    let chain = CertificateDer::pem_slice_iter(certificate.chain.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certificate.key.0.clone()));
    let key = CertifiedKey::new(chain, any_supported_type(&key)?);
    key.keys_match()?;
    Ok(Held { names: certificate.names.clone(), key: Arc::new(key) })
}

/// The certificate that answers a TLS-ALPN-01 challenge (RFC 8737, section 3).
fn answering(name: &str, key_authorization: &str) -> Result<CertifiedKey, Box<dyn std::error::Error>> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(&Sha256::digest(key_authorization))];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Ok(CertifiedKey::new(vec![certificate.der().clone()], any_supported_type(&key)?))
}
