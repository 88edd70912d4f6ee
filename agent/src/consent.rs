//! The device's consent to remote control. Only the device can turn it on, with a signature by its key. The
//! host can turn it off.

use std::io;

use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::state_dir::StateDir;
use culvert_wire::allowed_target::AllowedTarget;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::clock::Clock;
use culvert_wire::control::{ConsentState, SignedConsent, SignedTargets, consent_statement, targets_statement};

const FILE: &str = "consent.json";

pub struct Consent {
    state: StateDir,
    record: Record,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Record {
    enabled: bool,
    revision: i64,
    /// A decision of the device that the host has not confirmed yet.
    pending: Option<SignedConsent>,
}

impl Consent {
    /// # Errors
    ///
    /// If the record exists but cannot be read.
    pub fn load(state: &StateDir) -> io::Result<Self> {
        let record = state.read(FILE)?.unwrap_or(Record { enabled: false, revision: 0, pending: None });
        Ok(Self { state: state.clone(), record })
    }

    pub fn state(&self) -> ConsentState {
        ConsentState { enabled: self.record.enabled, revision: self.record.revision }
    }

    pub fn enabled(&self) -> bool {
        self.record.enabled
    }

    pub fn pending(&self) -> Option<SignedConsent> {
        self.record.pending.clone()
    }

    /// Records a decision. It holds at once, whether or not the host is connected. A consent includes the
    /// list of allowed targets.
    ///
    /// # Errors
    ///
    /// If the record cannot be written. Then nothing has changed.
    pub fn decide(
        &mut self,
        enabled: bool,
        targets: &[AllowedTarget],
        device: &Device,
        clock: &Clock,
    ) -> io::Result<SignedConsent> {
        let revision = self.record.revision;
        let nonce = Base64Bytes(clock.random::<16>().into());
        let signature = device.key.sign(&consent_statement(device.id, enabled, revision, &nonce.0));
        let targets = enabled.then(|| sign_targets(targets, revision, &nonce, device));
        let signed = SignedConsent { enabled, revision, nonce, signature, targets };
        self.save(Record { enabled, revision, pending: Some(signed.clone()) })?;
        Ok(signed)
    }

    /// Takes over the host's state. The host has received every pending decision; one on an older revision is
    /// void. The host can turn remote control off, but not on.
    ///
    /// # Errors
    ///
    /// If the record cannot be written.
    pub fn settle(&mut self, known: ConsentState) -> io::Result<()> {
        let enabled = self.record.enabled && known.enabled;
        let settled = Record { enabled, revision: known.revision, pending: None };
        if settled == self.record { Ok(()) } else { self.save(settled) }
    }

    fn save(&mut self, record: Record) -> io::Result<()> {
        self.state.write(FILE, &record)?;
        self.record = record;
        Ok(())
    }
}

fn sign_targets(targets: &[AllowedTarget], revision: i64, nonce: &Base64Bytes, device: &Device) -> SignedTargets {
    let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
    let signature = device.key.sign(&targets_statement(device.id, revision, &nonce.0, &targets));
    SignedTargets { targets, signature }
}
