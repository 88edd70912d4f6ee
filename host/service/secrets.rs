//! The host's secret keys: they encrypt stored values, and make message authentication codes (MACs).
//!
//! One file holds the master keys, one per line, `v1:<base64 of 32 bytes>`. The current key encrypts and makes MACs: the one
//! that the database names, or the last one of a new database. Older keys still decrypt stored values, but their MACs are not
//! accepted (except those of fingerprints, of the audit log and of generations of policies): whoever has stolen an older key can
//! forge no cursor, lease or compiled policy. Newer ones decrypt and are accepted: another host may use them already. Every
//! purpose has its own key, derived from the master key and the purpose.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use culvert_policy::load::artefact::ArtefactKey;
use culvert_wire::clock::Clock;
use culvert_wire::lease_token::{SigningKey, VerifyingKey};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// What a derived key is for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// Stored answers of idempotent requests.
    Answers,
    /// Fingerprints of idempotent requests.
    Fingerprints,
    /// Page cursors.
    Cursors,
    /// The key pair that signs the tokens with which agents prove their leases to nodes.
    LeaseTokens,
    /// The secrets that webhook deliveries are signed with.
    Webhooks,
    /// The keys of certificates.
    Certificates,
    /// Compiled policies.
    Artefacts,
    /// The keys of forms.
    Forms,
    /// The secrets of authenticator apps.
    Totp,
    /// Entries of the audit log.
    Audit,
    /// Mails that are to be sent.
    Mails,
    /// The state of a challenge for a passkey.
    Ceremonies,
    /// What stands for a password that was right, until the code comes.
    Tickets,
    /// The value by which a database recognises its host's keys.
    KeyCheck,
    /// Generations of policies.
    Policies,
    /// The keys of the local authority.
    LocalRoots,
}

impl Purpose {
    fn label(self) -> &'static [u8] {
        match self {
            Purpose::Answers => b"answers",
            Purpose::Fingerprints => b"fingerprints",
            Purpose::Cursors => b"cursors",
            Purpose::LeaseTokens => b"lease tokens",
            Purpose::Webhooks => b"webhooks",
            Purpose::Certificates => b"certificates",
            Purpose::Artefacts => b"artefacts",
            Purpose::Forms => b"forms",
            Purpose::Totp => b"totp",
            Purpose::Mails => b"mails",
            Purpose::Audit => b"audit",
            Purpose::Ceremonies => b"ceremonies",
            Purpose::Tickets => b"tickets",
            Purpose::KeyCheck => b"key check",
            Purpose::Policies => b"policies",
            Purpose::LocalRoots => b"local roots",
        }
    }

    /// Whether a MAC of an older key is still accepted. Those of fingerprints are, for a day at most: they
    /// only say that a repeated request is the same. Those of the audit log and of policies are as well: they are not made anew.
    fn outlives_its_key(self) -> bool {
        matches!(self, Purpose::Fingerprints | Purpose::Audit | Purpose::Policies)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("{}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{}:{line}: a key is `v<number from 1 to 255>:<base64 of 32 bytes>`, each number once", .path.display())]
    Line { path: PathBuf, line: usize },
    #[error(
        "{}: it is not there, and the database holds what was sealed with it; bring it back, or copy that of another host",
        .0.display()
    )]
    Missing(PathBuf),
    #[error(
        "{}: none of its keys opens what the database holds; bring back the file that belongs to it, or copy that of another \
         host",
        .0.display()
    )]
    Other(PathBuf),
    #[error("{}: it has no key v{version}, which the database's hosts use; copy the file of one that has it", .path.display())]
    Lacks { path: PathBuf, version: u8 },
    #[error("{}: there is no key in it; delete it, and a new one is made", .0.display())]
    Empty(PathBuf),
    #[error(
        "{}: there is no key in it, and the database holds what was sealed with one; bring it back, or copy that of another host",
        .0.display()
    )]
    Emptied(PathBuf),
}

struct Key {
    version: u8,
    bytes: [u8; 32],
    /// The key pair for [`Purpose::LeaseTokens`].
    leases: SigningKey,
}

#[derive(Clone)]
pub struct Secrets {
    clock: Clock,
    /// Never empty; the newest one is the last.
    keys: Arc<[Key]>,
    /// The position of the current key.
    current: Arc<AtomicUsize>,
}

const NONCE_BYTES: usize = 24;
/// The plaintext of a database's check value.
const CHECK: &[u8] = b"culvert";

impl Secrets {
    /// Reads the key file, or creates it.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or created, has a line that is no key or repeats a version, or has no key.
    pub fn open(path: &Path, clock: &Clock) -> Result<Self, SecretError> {
        let file = |error| SecretError::File { path: path.into(), error };
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(path, clock).map_err(file)?,
            read => read.map_err(file)?,
        };
        Self::parse(path, &text, clock)
    }

    /// Reads the key file of an existing database. The sealed value `check` shows whether the file belongs to
    /// it.
    ///
    /// # Errors
    ///
    /// [`SecretError::Missing`] if there is no file; [`SecretError::Other`] if it does not belong to the database; if
    /// it cannot be read, has a line that is no key or repeats a version, or has no key.
    pub fn of_database(path: &Path, clock: &Clock, check: &[u8]) -> Result<Self, SecretError> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(SecretError::Missing(path.into())),
            read => read.map_err(|error| SecretError::File { path: path.into(), error })?,
        };
        let secrets = Self::parse(path, &text, clock).map_err(|error| match error {
            SecretError::Empty(path) => SecretError::Emptied(path),
            other => other,
        })?;
        if secrets.follow(check).is_some() { Ok(secrets) } else { Err(secrets.refusal(path, check)) }
    }

    /// Why the keys of this file do not do for a database with this check value.
    pub fn refusal(&self, path: &Path, check: &[u8]) -> SecretError {
        match check.first() {
            Some(&version) if !self.has_key(version) => SecretError::Lacks { path: path.into(), version },
            _ => SecretError::Other(path.into()),
        }
    }

    /// Makes the key current that has sealed a database's check value. Returns whether it was another one; none if the file
    /// does not have it.
    pub fn follow(&self, check: &[u8]) -> Option<bool> {
        let opened = self.open_sealed(Purpose::KeyCheck, CHECK, check)?;
        let position = self.keys.iter().position(|key| check.first() == Some(&key.version))?;
        (opened == CHECK).then(|| self.current.swap(position, Ordering::Relaxed) != position)
    }

    /// Makes the newest key the current one.
    pub fn use_newest(&self) {
        self.current.store(self.keys.len() - 1, Ordering::Relaxed);
    }

    /// The number of the newest key.
    pub fn newest(&self) -> u8 {
        self.keys[self.keys.len() - 1].version
    }

    /// The number of the current key.
    pub fn current_number(&self) -> u8 {
        self.current().version
    }

    /// Whether the file has keys that were in use before.
    pub fn has_older(&self) -> bool {
        self.current.load(Ordering::Relaxed) > 0
    }

    /// The keys of the file by number and the id of their public part, to compare those of several hosts.
    pub fn listed(&self) -> Vec<String> {
        let listed = |key: &Key| format!("v{}:{}", key.version, hex::encode(key.leases.verifying_key().key_id.0));
        self.keys.iter().map(listed).collect()
    }

    /// A value that is sealed with the newest key, by which a database recognises these keys.
    pub fn check(&self) -> Vec<u8> {
        self.seal_with(&self.keys[self.keys.len() - 1], Purpose::KeyCheck, CHECK, CHECK)
    }

    /// Whether the file has the key of this number.
    pub fn has_key(&self, version: u8) -> bool {
        self.keys.iter().any(|key| key.version == version)
    }

    /// Whether a value was sealed with the current key.
    pub fn is_current(&self, sealed: &[u8]) -> bool {
        sealed.first() == Some(&self.current().version)
    }

    fn parse(path: &Path, text: &str, clock: &Clock) -> Result<Self, SecretError> {
        let mut keys: Vec<Key> = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            match parse(line.trim()).filter(|key| keys.iter().all(|known| known.version != key.version)) {
                Some(key) => keys.push(key),
                None => return Err(SecretError::Line { path: path.into(), line: index + 1 }),
            }
        }
        let Some(last) = keys.len().checked_sub(1) else { return Err(SecretError::Empty(path.into())) };
        Ok(Self { clock: clock.clone(), keys: keys.into(), current: Arc::new(AtomicUsize::new(last)) })
    }

    /// Encrypts a value for a purpose. It can be decrypted only with the same context, such as the row that
    /// it is for.
    pub fn seal(&self, purpose: Purpose, context: &[u8], plain: &[u8]) -> Vec<u8> {
        self.seal_with(self.current(), purpose, context, plain)
    }

    fn seal_with(&self, key: &Key, purpose: Purpose, context: &[u8], plain: &[u8]) -> Vec<u8> {
        let nonce: [u8; NONCE_BYTES] = self.clock.random();
        let sealed = cipher(key, purpose)
            .encrypt(&XNonce::from(nonce), Payload { msg: plain, aad: context })
            .expect("less than 256 GiB is sealed at once");
        [&[key.version], &nonce[..], &sealed].concat()
    }

    /// Decrypts a value; `None` if it was not sealed here, for this purpose and in this context.
    pub fn open_sealed(&self, purpose: Purpose, context: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (version, rest) = sealed.split_first()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>()?;
        let key = self.keys.iter().find(|key| key.version == *version)?;
        cipher(key, purpose).decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: context }).ok()
    }

    /// A MAC that only this host can make: the key's version, followed by the HMAC-SHA256.
    pub fn mac(&self, purpose: Purpose, data: &[u8]) -> Vec<u8> {
        mac_by(self.current(), purpose, data)
    }

    pub fn verify_mac(&self, purpose: Purpose, data: &[u8], tag: &[u8]) -> bool {
        let accepted = if purpose.outlives_its_key() { &self.keys[..] } else { self.current_and_newer() };
        let key = tag.first().and_then(|version| accepted.iter().find(|key| key.version == *version));
        key.is_some_and(|key| mac_by(key, purpose, data).ct_eq(tag).into())
    }

    /// The key that lease tokens are signed with. Every host with the same key file has the same.
    pub fn lease_key(&self) -> &SigningKey {
        &self.current().leases
    }

    /// The keys that verify lease tokens.
    pub fn lease_verifying_keys(&self) -> Vec<VerifyingKey> {
        self.current_and_newer().iter().map(|key| key.leases.verifying_key()).collect()
    }

    fn current(&self) -> &Key {
        &self.keys[self.current.load(Ordering::Relaxed)]
    }

    /// Never empty.
    fn current_and_newer(&self) -> &[Key] {
        &self.keys[self.current.load(Ordering::Relaxed)..]
    }
}

impl ArtefactKey for Secrets {
    fn mac(&self, data: &[u8]) -> Vec<u8> {
        self.mac(Purpose::Artefacts, data)
    }

    fn verify_mac(&self, data: &[u8], mac: &[u8]) -> bool {
        self.verify_mac(Purpose::Artefacts, data, mac)
    }
}

fn mac_by(key: &Key, purpose: Purpose, data: &[u8]) -> Vec<u8> {
    let mut tag = vec![key.version];
    tag.extend(hmac(&derived(key, purpose), data));
    tag
}

fn cipher(key: &Key, purpose: Purpose) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&derived(key, purpose).into())
}

fn derived(key: &Key, purpose: Purpose) -> [u8; 32] {
    derive(&key.bytes, purpose)
}

fn derive(bytes: &[u8; 32], purpose: Purpose) -> [u8; 32] {
    hmac(bytes, &[b"culvert ", purpose.label()].concat())
}

fn hmac(key: &[u8; 32], data: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(data);
    mac.finalize().into_bytes().into()
}

fn parse(line: &str) -> Option<Key> {
    let (version, key) = line.strip_prefix('v')?.split_once(':')?;
    let version = version.parse().ok().filter(|version| *version != 0)?;
    let bytes = STANDARD.decode(key).ok()?.try_into().ok()?;
    Some(Key { version, leases: SigningKey::from_seed(&derive(&bytes, Purpose::LeaseTokens)), bytes })
}

/// Creates the file with one key. The file appears with all of its content, and only if no other process has
/// created it meanwhile.
fn create(path: &Path, clock: &Clock) -> io::Result<String> {
    let text = format!("v1:{}\n", STANDARD.encode(clock.random::<32>()));
    let aside = path.with_extension(hex::encode(clock.random::<8>()));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    let linked =
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).and_then(|()| fs::hard_link(&aside, path));
    fs::remove_file(&aside)?;
    match linked {
        Ok(()) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs::read_to_string(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_rotation_keeps_sealed_data_readable_in_its_context() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let clock = Clock::system();
        let old = Secrets::open(&path, &clock).unwrap();
        let sealed = old.seal(Purpose::Answers, b"row 1", b"hello");
        let tag = old.mac(Purpose::Cursors, b"page");

        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        writeln!(file, "v2:{}", STANDARD.encode([7; 32])).unwrap();
        let new = Secrets::open(&path, &clock).unwrap();
        assert_eq!(new.open_sealed(Purpose::Answers, b"row 1", &sealed).as_deref(), Some(&b"hello"[..]));
        assert_eq!(new.open_sealed(Purpose::Answers, b"row 2", &sealed), None);
        assert_eq!(new.open_sealed(Purpose::LeaseTokens, b"row 1", &sealed), None);
        assert!(old.verify_mac(Purpose::Cursors, b"page", &tag) && !old.verify_mac(Purpose::Cursors, b"pagf", &tag));
        assert!(!new.verify_mac(Purpose::Cursors, b"page", &tag), "an older key vouches for nothing");
        let fingerprint = old.mac(Purpose::Fingerprints, b"request");
        assert!(new.verify_mac(Purpose::Fingerprints, b"request", &fingerprint), "but a repeated request is the same");
    }

    #[test]
    fn key_that_another_host_uses_already_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        fs::write(&path, format!("v1:{}\nv2:{}\n", STANDARD.encode([1; 32]), STANDARD.encode([2; 32]))).unwrap();
        let ahead = Secrets::open(&path, &Clock::system()).unwrap();
        let behind = Secrets::open(&path, &Clock::system()).unwrap();
        let older = folder.path().join("older");
        fs::write(&older, format!("v1:{}\n", STANDARD.encode([1; 32]))).unwrap();
        let check = Secrets::open(&older, &Clock::system()).unwrap().check();
        assert_eq!([behind.follow(&check), behind.follow(&check)], [Some(true), Some(false)]);
        fs::write(&older, format!("v1:{}\n", STANDARD.encode([3; 32]))).unwrap();
        let other = Secrets::open(&older, &Clock::system()).unwrap().check();
        assert_eq!(behind.follow(&other), None, "another key of the same number");
        let of_both = |purpose| [&ahead, &behind].map(|secrets| secrets.mac(purpose, b"page"));
        let [newer, older] = of_both(Purpose::Cursors);
        assert!(
            behind.verify_mac(Purpose::Cursors, b"page", &newer)
                && !ahead.verify_mac(Purpose::Cursors, b"page", &older)
        );
        assert_eq!(
            behind.open_sealed(Purpose::Answers, b"", &ahead.seal(Purpose::Answers, b"", b"hello")).unwrap(),
            b"hello"
        );
        assert_eq!((behind.lease_verifying_keys().len(), ahead.lease_verifying_keys().len()), (2, 1));
        assert_eq!(Secrets::of_database(&path, &Clock::system(), &check).unwrap().current_number(), 1);
    }

    #[test]
    fn invalid_key_file_error_names_faulty_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        for (text, said) in [("v1:abc\n", ":1: a key is"), ("\n", "no key"), ("v0:\n", ":1: a key is")] {
            fs::write(&path, text).unwrap();
            let error = Secrets::open(&path, &Clock::system()).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains(said), "{error}");
        }
    }
}
