//! Certificates as nodes get them, and their keys as they are stored.

use std::collections::BTreeMap;

use culvert_domain::certificate::Certificate;
use culvert_store::certificates::ServedCertificate;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::node::{self, Challenge, TlsIdentity};
use uuid::Uuid;

use crate::secrets::{Purpose, Secrets};

/// What the issuer of certificates of the local authority begins with.
pub(crate) const LOCAL: &str = "local:";

/// What nodes get, by owner. A certificate whose key cannot be opened is left out.
pub(crate) fn identities(secrets: &Secrets, served: Vec<ServedCertificate>) -> Vec<TlsIdentity> {
    let mut by_owner: BTreeMap<Uuid, TlsIdentity> = BTreeMap::new();
    for ServedCertificate { id, owner_id, name, issued, challenge } in served {
        let identity = by_owner.entry(owner_id).or_insert_with(|| TlsIdentity {
            owner_id,
            certificates: Vec::new(),
            challenges: Vec::new(),
        });
        if let Some((chain, sealed)) = issued
            && let Some(key) = open_key(secrets, id, &sealed)
        {
            let names = Certificate::names(&name);
            identity.certificates.push(node::Certificate { names, chain, key: Base64Bytes(key) });
        }
        if let Some(challenge) = challenge {
            identity.challenges.push(Challenge {
                name: challenge.name,
                kind: challenge.kind.to_string(),
                token: challenge.token,
                key_authorization: challenge.value,
            });
        }
    }
    by_owner.into_values().collect()
}

/// The key of a certificate; `None` if it was sealed with keys that this host does not have.
pub(crate) fn open_key(secrets: &Secrets, id: Uuid, sealed: &[u8]) -> Option<Vec<u8>> {
    let key = secrets.open_sealed(Purpose::Certificates, id.as_bytes(), sealed);
    if key.is_none() {
        tracing::error!(%id, "the key of a certificate cannot be opened; it is issued anew");
    }
    key
}

pub(crate) fn seal_key(secrets: &Secrets, id: Uuid, key: &[u8]) -> Vec<u8> {
    secrets.seal(Purpose::Certificates, id.as_bytes(), key)
}
