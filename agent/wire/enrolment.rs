//! Enrolment of a device: one HTTP request with a one-time code, answered with the device's id.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::base64_bytes::Base64Bytes;

/// The path on the host where a device enrols ([`Enrol`] → [`Enrolled`]).
pub const ENROL_PATH: &str = "/agent/enroll";

/// A device asks to be enrolled: `POST` to [`ENROL_PATH`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Enrol {
    pub code: String,
    pub name: Option<String>,
    pub platform: String,
    pub version: String,
    pub capabilities: Vec<String>,
    /// An Ed25519 public key (RFC 8032).
    pub public_key: Base64Bytes,
}

/// The answer to [`Enrol`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Enrolled {
    pub device_id: Uuid,
    pub name: Option<String>,
}
