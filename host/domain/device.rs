//! A device: a machine that runs an agent.

use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert_wire::allowed_target::{self, AllowedTarget};
use uuid::Uuid;

use super::operation::RemoteAction;
use super::text;
use crate::error::{Code, Error, Result};

/// How long a device counts as online after it was last heard of.
pub const OFFLINE_AFTER: Duration = Duration::from_secs(45);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub id: Uuid,
    pub scope_id: Uuid,
    /// The account that enrolled it.
    pub owner_id: Uuid,
    /// Whether the owner is still a member of the scope.
    pub owner_active: bool,
    pub name: Option<String>,
    pub platform: Option<String>,
    pub version: Option<String>,
    pub capabilities: Vec<String>,
    pub online: bool,
    pub remote_control: bool,
    /// Whether commands at the device may create tunnels.
    pub may_create: bool,
    pub consent_revision: i64,
    /// Where its owner lets remote control lead; none where its agent has not told.
    pub allowed_targets: Option<Vec<AllowedTarget>>,
    pub last_seen_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
}

/// What an agent says of its device, as much of it as is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    pub platform: String,
    pub version: String,
    pub capabilities: Vec<String>,
}

impl Description {
    /// Short words, whatever the agent says.
    pub fn cleaned(platform: &str, version: &str, capabilities: &[String]) -> Self {
        let word = |word: &String| text::cleaned(word, 64).replace(' ', "");
        Self {
            platform: text::cleaned(platform, 100),
            version: text::cleaned(version, 100),
            capabilities: capabilities.iter().take(50).map(word).filter(|word| !word.is_empty()).collect(),
        }
    }
}

impl Device {
    /// Whether it would do what it is asked for: it must be online, consent, and be able to.
    ///
    /// # Errors
    ///
    /// If the device is offline, does not allow remote control, or its agent lacks a capability for the action.
    pub fn check_capabilities(&self, action: RemoteAction) -> Result<()> {
        if !self.online {
            return Err(Error::of(Code::DeviceOffline));
        }
        self.check_consent(action)
    }

    /// Consent and capabilities alone: what is checked once more when a command is claimed.
    ///
    /// # Errors
    ///
    /// If the device does not allow remote control, or its agent lacks a capability for the action.
    pub fn check_consent(&self, action: RemoteAction) -> Result<()> {
        if !self.remote_control {
            return Err(Error::of(Code::RemoteControlDisabled));
        }
        let missing = action.capabilities().iter().find(|needed| !self.capabilities.iter().any(|has| has == *needed));
        match missing {
            Some(missing) => {
                let detail = format!("The device's agent lacks the capability {missing}. Update it on the device.");
                Err(Error::new(Code::UpgradeRequired, detail))
            }
            None => Ok(()),
        }
    }

    /// Whether remote control may lead it to ports of a host, as far as its owner's list alone shows.
    ///
    /// # Errors
    ///
    /// If the owner's list forbids one of the ports. Without a list or remote control, no port is forbidden.
    pub fn may_be_led_to(&self, host: &str, ports: impl IntoIterator<Item = u16>) -> Result<()> {
        let Some(list) = self.allowed_targets.as_ref().filter(|_| self.remote_control) else { return Ok(()) };
        match ports.into_iter().find(|port| allowed_target::forbids(list, host, *port)) {
            Some(port) => Err(Error::new(Code::TargetNotAllowed, allowed_target::not_allowed(host, port))),
            None => Ok(()),
        }
    }
}

/// What a new device reports about itself.
#[derive(Clone, Debug)]
pub struct NewDevice {
    pub name: Option<String>,
    pub description: Description,
    pub public_key: Vec<u8>,
}

/// A device and the public key that authenticates it.
#[derive(Clone, Debug)]
pub struct EnrolledDevice {
    pub device: Device,
    pub public_key: Vec<u8>,
}
