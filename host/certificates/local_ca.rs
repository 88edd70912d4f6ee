//! The local authority: it signs the certificates of the platform's own domains where no public authority does.
//!
//! Each domain has a root certificate of its own, which is good for names below this domain alone (RFC 5280, section
//! 4.2.1.10): trusting it endangers no other site.

use std::fs;
use std::io;
use std::path::PathBuf;

use chrono::{DateTime, TimeDelta, Utc};
use culvert_wire::{private_dir, tls};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, NameConstraints,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use time::OffsetDateTime;
use x509_parser::parse_x509_certificate;

use super::Issued;

const ROOT: &str = "root.pem";
const KEY: &str = "root.key";

const ROOT_LIFE: TimeDelta = TimeDelta::days(3650);
/// A root with less of its life left is replaced.
const ROOT_REST: TimeDelta = TimeDelta::days(90);
const LEAF_LIFE: TimeDelta = TimeDelta::days(30);
/// Clocks of visitors may be slow.
const BEFORE: TimeDelta = TimeDelta::days(1);

/// The root certificate of one domain, with its key.
pub struct Root {
    /// The certificate.
    pub pem: String,
    /// SHA-256 of the certificate, in hexadecimal.
    pub fingerprint: String,
    pub not_after: DateTime<Utc>,
    key: KeyPair,
}

impl Root {
    /// Makes a root for a domain.
    ///
    /// # Errors
    ///
    /// If no key can be made, or the domain is no name of the DNS.
    pub fn create(domain: &str, now: DateTime<Utc>) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = root_params(domain);
        (params.not_before, params.not_after) = (at(now - BEFORE), at(now + ROOT_LIFE));
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            fingerprint: hex::encode(tls::fingerprint(certificate.der())),
            pem: certificate.pem(),
            not_after: now + ROOT_LIFE,
            key,
        })
    }

    /// Reads a certificate, and its key as [`Root::key`] gives it. None if they are not that.
    pub fn read(pem: &str, key: &[u8]) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        let key = KeyPair::from_pem(str::from_utf8(key).ok()?).ok()?;
        let (_, certificate) = parse_x509_certificate(&der).ok()?;
        let not_after = DateTime::from_timestamp(certificate.validity().not_after.timestamp(), 0)?;
        Some(Self { pem: pem.into(), fingerprint: hex::encode(tls::fingerprint(&der)), not_after, key })
    }

    /// Its key (PKCS #8 as PEM, RFC 7468).
    pub fn key(&self) -> String {
        self.key.serialize_pem()
    }

    /// Whether certificates are still signed with it.
    pub fn is_good(&self, now: DateTime<Utc>) -> bool {
        self.not_after > now + ROOT_REST
    }

    /// The name of this root as an issuer.
    pub fn issuer(&self) -> String {
        format!("local:{}", self.fingerprint)
    }

    /// Signs a certificate for its domain and all names one label below it.
    ///
    /// # Errors
    ///
    /// If no key can be made, or the domain is no name of the DNS.
    pub fn issue(&self, domain: &str, now: DateTime<Utc>) -> Result<Issued, rcgen::Error> {
        let (key, not_after) = (KeyPair::generate()?, now + LEAF_LIFE);
        let mut params = CertificateParams::new(vec![domain.to_owned(), format!("*.{domain}")])?;
        params.distinguished_name.push(DnType::CommonName, domain);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (at(now - BEFORE), at(not_after));
        let certificate = params.signed_by(&key, &Issuer::new(root_params(domain), &self.key))?;
        Ok(Issued { issuer: self.issuer(), chain: certificate.pem(), key: key.serialize_der(), not_after })
    }
}

/// Where the root certificates are for whoever is to trust them: `<domain>/root.pem`.
#[derive(Clone, Debug)]
pub struct RootFolder(pub PathBuf);

impl RootFolder {
    pub fn path(&self, domain: &str) -> PathBuf {
        self.0.join(domain).join(ROOT)
    }

    /// The root that an earlier version has kept here, with its key.
    pub fn former(&self, domain: &str) -> Option<Root> {
        let pem = fs::read_to_string(self.path(domain)).ok()?;
        Root::read(&pem, &fs::read(self.0.join(domain).join(KEY)).ok()?)
    }

    /// Writes a certificate. The key that an earlier version has kept beside it is removed; with another certificate, both
    /// are kept under other names.
    ///
    /// # Errors
    ///
    /// If the files cannot be changed.
    pub fn keep(&self, domain: &str, pem: &str) -> io::Result<()> {
        let folder = self.0.join(domain);
        if fs::read_to_string(folder.join(ROOT)).is_ok_and(|known| known == pem) && !folder.join(KEY).exists() {
            return Ok(());
        }
        private_dir::open(&self.0)?;
        private_dir::open(&folder)?;
        let former = fs::read_to_string(folder.join(ROOT)).ok().filter(|former| former != pem);
        if folder.join(KEY).exists() {
            match &former {
                Some(former) => {
                    private_dir::replace(&folder.join("former-root.pem"), former.as_bytes())?;
                    fs::rename(folder.join(KEY), folder.join("former-root.key"))?;
                }
                None => fs::remove_file(folder.join(KEY))?,
            }
        }
        private_dir::replace(&folder.join(ROOT), pem.as_bytes())
    }
}

/// What each root of a domain has in common. Its certificates name it by this.
fn root_params(domain: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("Culvert local CA for {domain}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName(domain.into())],
        // A constraint on names alone says nothing of addresses.
        excluded_subtrees: vec![
            GeneralSubtree::IpAddress(CidrSubnet::V4([0; 4], [0; 4])),
            GeneralSubtree::IpAddress(CidrSubnet::V6([0; 16], [0; 16])),
        ],
    });
    params
}

fn at(time: DateTime<Utc>) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(time.timestamp()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_signs_until_its_life_is_nearly_over_and_is_read_back() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let root = Root::create("tunnels.example.com", now).unwrap();
        assert!(root.is_good(now + TimeDelta::days(3559)) && !root.is_good(now + TimeDelta::days(3560)));
        let read = Root::read(&root.pem, root.key().as_bytes()).unwrap();
        assert_eq!((&read.fingerprint, read.not_after), (&root.fingerprint, root.not_after));
        assert_eq!(read.issue("tunnels.example.com", now).unwrap().issuer, root.issuer());
        assert!(Root::read(&root.pem, b"nothing").is_none() && Root::read("nothing", root.key().as_bytes()).is_none());
    }
}
