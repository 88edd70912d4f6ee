//! Consent of a device to remote control, signed by its key; see
//! `docs/develop/decisions/0004-consent-and-remote-control.md`.

use culvert_domain::audit_log::{Actor, AuditAction, NewEntry};
use culvert_domain::device::Device;
use culvert_domain::error::{Error, Result};
use culvert_wire::allowed_target::{MAX_ENTRIES, MAX_LENGTH};
use culvert_wire::control::{ConsentState, SignedConsent, SignedTargets, consent_statement, targets_statement};
use culvert_wire::signature::verify;

use super::devices;
use culvert_store::Write;
use serde_json::json;

/// Applies a consent decision that the device has signed. A decision on another revision than the host's has
/// no effect.
///
/// # Errors
///
/// If the database fails.
pub(crate) async fn apply_consent(
    write: &mut Write,
    device: &Device,
    public_key: &[u8],
    signed: &SignedConsent,
) -> Result<()> {
    let SignedConsent { enabled, revision, nonce, signature, targets } = signed;
    let statement = consent_statement(device.id, *enabled, *revision, &nonce.0);
    let current = write.device(device.scope_id, device.id).await?;
    let current = current.is_some_and(|device| device.consent_revision == *revision);
    if !current || !verify(public_key, &statement, &signature.0) {
        return Ok(());
    }
    let entry =
        NewEntry::new(device.scope_id, Actor::device(device.id, device.owner_id), AuditAction::DevicesSetRemoteControl);
    write.audit(entry.about(device.id).with(&json!({"enabled": enabled})));
    if !enabled {
        return devices::turn_remote_control_off(write, device.id).await;
    }
    let holds = |signed: &SignedTargets| {
        let statement = targets_statement(device.id, *revision, &nonce.0, &signed.targets);
        // A character has at most four bytes. The host may not be able to parse entries of a newer agent.
        let fits = |target: &String| target.len() <= 4 * MAX_LENGTH;
        signed.targets.len() <= MAX_ENTRIES
            && signed.targets.iter().all(fits)
            && verify(public_key, &statement, &signed.signature.0)
    };
    match targets {
        Some(signed) if holds(signed) => write.set_allowed_targets(device.id, Some(&signed.targets)).await?,
        // The list is too long, or its signature does not match: the stored list is kept.
        Some(_) => {}
        // An agent that sends no list allows every target.
        None => write.set_allowed_targets(device.id, None).await?,
    }
    write.turn_remote_control_on(device.id).await
}

/// The consent of a device as it is now.
///
/// # Errors
///
/// `Code::NotFound` if there is no such device any longer; if the database fails.
pub(crate) async fn consent_of(write: &mut Write, device: &Device) -> Result<ConsentState> {
    let device = write.device(device.scope_id, device.id).await?.ok_or_else(Error::not_found)?;
    Ok(ConsentState { enabled: device.remote_control, revision: device.consent_revision })
}
