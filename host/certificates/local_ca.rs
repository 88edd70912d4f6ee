//! The local authority: it signs the certificates of the platform's own domains where no public authority does.
//!
//! Each domain has a root certificate of its own, which is good for names below this domain alone (RFC 5280, section
//! 4.2.1.10): trusting it endangers no other site.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use culvert_wire::clock::Clock;
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

/// Why a certificate could not be signed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", .path.display())]
pub struct LocalCaError {
    path: PathBuf,
    problem: String,
}

/// The roots of all domains, each in a folder named like it.
#[derive(Clone, Debug)]
pub struct LocalCa {
    folder: PathBuf,
    clock: Clock,
}

/// The root certificate of one domain.
pub struct Root {
    /// Where it is.
    pub path: PathBuf,
    pub pem: String,
    /// SHA-256 of the certificate, in hexadecimal.
    pub fingerprint: String,
    pub not_after: DateTime<Utc>,
    key: KeyPair,
}

impl LocalCa {
    pub fn new(folder: PathBuf, clock: Clock) -> Self {
        Self { folder, clock }
    }

    /// The root certificate of a domain. It is made on first use.
    ///
    /// # Errors
    ///
    /// If its files cannot be read or written.
    pub fn root(&self, domain: &str) -> Result<Root, LocalCaError> {
        let folder = self.folder.join(domain);
        let fail =
            |problem: &dyn std::fmt::Display| LocalCaError { path: folder.clone(), problem: problem.to_string() };
        private_dir::open(&self.folder).map_err(|e| fail(&e))?;
        private_dir::open(&folder).map_err(|e| fail(&e))?;
        let known = if folder.join(ROOT).exists() { Some(Root::read(&folder).map_err(|e| fail(&e))?) } else { None };
        if let Some(known) = known.filter(|root| root.not_after > self.clock.now() + ROOT_REST) {
            return Ok(known);
        }
        self.create(&folder, domain).map_err(|e| fail(&e))?;
        Root::read(&folder).map_err(|e| fail(&e))
    }

    /// Signs a certificate for a domain and all names one label below it.
    ///
    /// # Errors
    ///
    /// If the root's files cannot be read or written.
    pub fn issue(&self, domain: &str) -> Result<Issued, LocalCaError> {
        let root = self.root(domain)?;
        let not_after = self.clock.now() + LEAF_LIFE;
        let fail = |error: rcgen::Error| LocalCaError { path: root.path.clone(), problem: error.to_string() };
        let key = KeyPair::generate().map_err(fail)?;
        let names = vec![domain.to_owned(), format!("*.{domain}")];
        let mut params = CertificateParams::new(names).map_err(fail)?;
        params.distinguished_name.push(DnType::CommonName, domain);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (at(self.clock.now() - BEFORE), at(not_after));
        let issuer = Issuer::new(root_params(domain), &root.key);
        let certificate = params.signed_by(&key, &issuer).map_err(fail)?;
        Ok(Issued { issuer: root.issuer(), chain: certificate.pem(), key: key.serialize_der(), not_after })
    }

    /// Makes a root. A former one goes first: where the certificate's file is, its key is there too.
    fn create(&self, folder: &Path, domain: &str) -> io::Result<()> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let now = self.clock.now();
        let mut params = root_params(domain);
        (params.not_before, params.not_after) = (at(now - BEFORE), at(now + ROOT_LIFE));
        let certificate = params.self_signed(&key).map_err(io::Error::other)?;
        match fs::remove_file(folder.join(ROOT)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        private_dir::replace(&folder.join(KEY), key.serialize_pem().as_bytes())?;
        private_dir::replace(&folder.join(ROOT), certificate.pem().as_bytes())
    }
}

impl Root {
    fn read(folder: &Path) -> io::Result<Self> {
        let invalid = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
        let path = folder.join(ROOT);
        let pem = fs::read_to_string(&path)?;
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| invalid(format!("{ROOT}: {e}")))?;
        let key = fs::read_to_string(folder.join(KEY))?;
        let key = KeyPair::from_pem(&key).map_err(|e| invalid(format!("{KEY}: {e}")))?;
        let not_after = not_after(&der).ok_or_else(|| invalid(format!("{ROOT}: it is no certificate")))?;
        Ok(Self { path, fingerprint: hex::encode(tls::fingerprint(&der)), pem, not_after, key })
    }

    /// The name of this root as an issuer.
    pub fn issuer(&self) -> String {
        format!("local:{}", self.fingerprint)
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

fn not_after(der: &[u8]) -> Option<DateTime<Utc>> {
    let (_, certificate) = parse_x509_certificate(der).ok()?;
    DateTime::from_timestamp(certificate.validity().not_after.timestamp(), 0)
}

fn at(time: DateTime<Utc>) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(time.timestamp()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_kept_until_its_life_is_nearly_over() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::manual(DateTime::from_timestamp(1_800_000_000, 0).unwrap());
        let ca = LocalCa::new(folder.path().join("ca"), clock.clone());
        let first = ca.root("tunnels.example.com").unwrap();
        assert!(first.not_after > clock.now() + TimeDelta::days(3600));
        assert_eq!(ca.root("tunnels.example.com").unwrap().fingerprint, first.fingerprint);
        assert_ne!(ca.root("other.example.com").unwrap().fingerprint, first.fingerprint, "each domain has its own");
        assert_eq!(ca.issue("tunnels.example.com").unwrap().issuer, first.issuer());

        clock.advance(std::time::Duration::from_hours(24 * 3600));
        assert_ne!(ca.root("tunnels.example.com").unwrap().fingerprint, first.fingerprint);
    }

    #[test]
    fn unreadable_root_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let ca = LocalCa::new(folder.path().into(), Clock::system());
        let path = ca.root("a.example").unwrap().path;
        fs::write(&path, "nothing").unwrap();
        let error = ca.issue("a.example").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("a.example: root.pem: "), "{error}");
    }
}
