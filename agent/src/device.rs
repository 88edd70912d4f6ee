//! The device's identity: its id, its key, and the host that it belongs to.

use std::io;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::state_dir::StateDir;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::clock::Clock;

const FILE: &str = "device.json";

/// A key pair that is created on the device. The host knows only its public key.
pub struct DeviceKey {
    seed: Base64Bytes,
    pair: Ed25519KeyPair,
}

impl DeviceKey {
    pub fn generate(clock: &Clock) -> Self {
        Self::from_seed(Base64Bytes(clock.random::<32>().into())).expect("any 32 bytes are a seed")
    }

    fn from_seed(seed: Base64Bytes) -> io::Result<Self> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed.0).map_err(io::Error::other)?;
        Ok(Self { seed, pair })
    }

    pub fn public(&self) -> Base64Bytes {
        Base64Bytes(self.pair.public_key().as_ref().into())
    }

    pub fn sign(&self, statement: &[u8]) -> Base64Bytes {
        Base64Bytes(self.pair.sign(statement).as_ref().into())
    }
}

/// An enrolled device.
pub struct Device {
    pub id: Uuid,
    pub name: Option<String>,
    /// The host's base URL.
    pub server: String,
    pub key: DeviceKey,
}

#[derive(Serialize, Deserialize)]
struct Record {
    id: Uuid,
    name: Option<String>,
    server: String,
    key: Base64Bytes,
}

impl Device {
    /// The device of a state folder; `None` if it was never enrolled.
    ///
    /// # Errors
    ///
    /// If the record exists but cannot be read.
    pub fn load(state: &StateDir) -> io::Result<Option<Self>> {
        let Some(Record { id, name, server, key }) = state.read(FILE)? else { return Ok(None) };
        Ok(Some(Self { id, name, server, key: DeviceKey::from_seed(key)? }))
    }

    /// # Errors
    ///
    /// If the record cannot be written.
    pub fn save(&self, state: &StateDir) -> io::Result<()> {
        let Self { id, name, server, key } = self;
        let record = Record { id: *id, name: name.clone(), server: server.clone(), key: key.seed.clone() };
        state.write(FILE, &record)
    }
}
