//! An authenticator that keeps one passkey (Web Authentication, level 3), as a telephone would.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::tab::{SITE, Shown};

/// Bits of the authenticator data (section 6.1): the person is there, and was verified; a credential follows.
const PRESENT: u8 = 0x01;
const VERIFIED: u8 = 0x04;
const HAS_CREDENTIAL: u8 = 0x40;

pub struct Authenticator {
    /// Of P-256.
    key: KeyPair,
    id: Vec<u8>,
    /// Whom the passkey is of.
    user: String,
    pub counter: u32,
    /// Where the browser says that it is.
    pub origin: String,
    /// Whether the person is verified.
    pub verifies: bool,
}

/// The options with which a page asks it.
pub struct Asked(Value);

impl Asked {
    /// By the form of a page that leads to a path.
    pub fn of(page: &Shown, path: &str) -> Self {
        let form = page.text.split(&format!("action=\"{path}\"")).nth(1).expect("the page asks for a passkey");
        let options = form.split("data-options=\"").nth(1).unwrap().split('"').next().unwrap();
        Self(serde_json::from_str(&options.replace("&quot;", "\"").replace("&amp;", "&")).unwrap())
    }
}

impl Authenticator {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let id = Sha256::digest(key.der_bytes()).to_vec();
        Self { key, id, user: String::new(), counter: 0, origin: SITE.into(), verifies: true }
    }

    /// Makes its passkey, and tells the public key.
    pub fn create(&mut self, asked: &Asked) -> String {
        assert_eq!(asked.0["authenticatorSelection"]["residentKey"], "required");
        assert_eq!(asked.0["authenticatorSelection"]["userVerification"], "required");
        asked.0["user"]["id"].as_str().unwrap().clone_into(&mut self.user);
        let party = asked.0["rp"]["id"].as_str().unwrap();
        let mut data = self.authenticator_data(party, HAS_CREDENTIAL);
        data.extend([0; 16]);
        data.extend(u16::try_from(self.id.len()).unwrap().to_be_bytes());
        data.extend(&self.id);
        data.extend(self.public_key());
        // CBOR (RFC 8949): {"fmt": "none", "attStmt": {}, "authData": bytes}.
        let mut object = vec![0xa3, 0x63];
        object.extend(b"fmt");
        object.push(0x64);
        object.extend(b"none");
        object.push(0x67);
        object.extend(b"attStmt");
        object.extend([0xa0, 0x68]);
        object.extend(b"authData");
        object.push(0x59);
        object.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        object.extend(&data);
        let response = json!({
            "clientDataJSON": encode(&self.client_data("webauthn.create", &asked.0)),
            "attestationObject": encode(&object),
        });
        self.answer(&response)
    }

    /// Signs a challenge.
    pub fn get(&mut self, asked: &Asked) -> String {
        self.counter += 1;
        let data = self.authenticator_data(asked.0["rpId"].as_str().unwrap(), 0);
        let client_data = self.client_data("webauthn.get", &asked.0);
        let signed = [&data[..], &Sha256::digest(&client_data)].concat();
        let signature = self.key.sign(&signed).unwrap();
        let response = json!({
            "clientDataJSON": encode(&client_data),
            "authenticatorData": encode(&data),
            "signature": encode(&signature),
            "userHandle": self.user,
        });
        self.answer(&response)
    }

    fn answer(&self, response: &Value) -> String {
        let id = encode(&self.id);
        json!({"id": id, "rawId": id, "type": "public-key", "response": response, "clientExtensionResults": {}})
            .to_string()
    }

    fn authenticator_data(&self, party: &str, flags: u8) -> Vec<u8> {
        let flags = flags | PRESENT | if self.verifies { VERIFIED } else { 0 };
        [&Sha256::digest(party)[..], &[flags], &self.counter.to_be_bytes()].concat()
    }

    fn client_data(&self, kind: &str, options: &Value) -> Vec<u8> {
        json!({"type": kind, "challenge": options["challenge"], "origin": self.origin}).to_string().into_bytes()
    }

    /// The public key as a map (RFC 9053, section 7.1.1): EC2, ES256, P-256, x, y.
    fn public_key(&self) -> Vec<u8> {
        let point = self.key.der_bytes();
        let mut key = vec![0xa5, 0x01, 0x02, 0x03, 0x26, 0x20, 0x01, 0x21, 0x58, 0x20];
        key.extend(&point[1..33]);
        key.extend([0x22, 0x58, 0x20]);
        key.extend(&point[33..]);
        key
    }
}

fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
