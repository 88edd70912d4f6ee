//! The handshake of a device: it proves its identity, and host and device exchange their state.

use culvert_wire::allowed_target::{MAX_ENTRIES, MAX_LENGTH};
use culvert_wire::control::{
    ConsentState, Hello, SignedConsent, SignedTargets, connect_statement, consent_statement, targets_statement,
};
use culvert_wire::signature::verify;
use uuid::Uuid;

use super::Control;
use super::connection::MORE_IDS;
use super::local;
use crate::store::Write;
use crate::store::devices::EnrolledDevice;
use crate::store::presence::Connection;
use culvert_domain::device::{Description, Device};
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::session::{EndReason, Target};
use culvert_domain::tunnel::{Protocol, Tunnel};

/// A device that has completed the handshake.
pub struct AcceptedConnection {
    pub connection: Connection,
    pub scope_id: Uuid,
    pub boot_id: Uuid,
    pub consent: ConsentState,
    /// The leases that this agent process holds.
    pub held: Vec<Uuid>,
}

/// The device that a hello names, if the signature over the nonce is by the device's key.
pub async fn identify(control: &Control, hello: &Hello, nonce: &[u8]) -> Result<EnrolledDevice> {
    let unknown = || Error::new(Code::NotFound, "This device is not enrolled here, or was removed.");
    let enrolled = control.service.store.enrolled_device(hello.device_id).await?.ok_or_else(unknown)?;
    let statement = connect_statement(hello.device_id, nonce);
    if !verify(&enrolled.public_key, &statement, &hello.signature.0) {
        return Err(unknown());
    }
    if !enrolled.device.owner_active {
        return Err(Error::new(Code::DeviceNotAllowed, "The device's owner is no longer a member of its Team."));
    }
    Ok(enrolled)
}

/// Accepts a device. From here on, this connection is the device's current one.
pub async fn accept(control: &Control, enrolled: EnrolledDevice, hello: Hello) -> Result<AcceptedConnection> {
    let host_id = control.host_id;
    let scope_id = enrolled.device.scope_id;
    let (boot_id, held) = (hello.boot_id, hello.lease_ids.clone());
    let resumes = local::plan_is_known(control, scope_id).await?;
    let _turn = control.service.scope_locks.lock(scope_id).await;
    let (connection, consent) = control
        .service
        .store
        .write(Some(scope_id), move |write| {
            Box::pin(async move {
                let EnrolledDevice { device, public_key } = enrolled;
                check_lists(write, &device, &hello).await?;
                let description = Description::cleaned(&hello.platform, &hello.version, &hello.capabilities);
                write.describe_device(device.id, &description).await?;
                if let Some(signed) = &hello.signed_consent {
                    apply_consent(write, &device, &public_key, signed).await?;
                }
                // This comes after the updates above, so that the device is reported in its present state.
                let connection = write.connect_device(device.id, host_id, boot_id).await?;
                local::stop(write, &device, &hello.stopped).await?;
                end_lost_leases(write, device.id, &hello).await?;
                if resumes {
                    resume_tunnels(write, &device, boot_id).await?;
                }
                Ok((connection, consent_of(write, &device).await?))
            })
        })
        .await?;
    Ok(AcceptedConnection { connection, scope_id, boot_id, consent, held })
}

/// Checks the length of a hello's lists. An agent holds one lease for each tunnel that it runs, and has few
/// commands that are not settled.
async fn check_lists(write: &mut Write, device: &Device, hello: &Hello) -> Result<()> {
    let longest = [&hello.lease_ids, &hello.stopped, &hello.operation_ids].map(Vec::len).into_iter().max();
    let longest = longest.unwrap_or_default();
    if longest <= MORE_IDS || longest <= write.open_sessions(device.id).await? + MORE_IDS {
        return Ok(());
    }
    Err(Error::new(Code::ValidationFailed, "A hello must not list more ids than the device has sessions, and 256."))
}

/// Applies a consent decision that the device has signed. A decision on another revision than the host's has
/// no effect.
pub async fn apply_consent(
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
    if !enabled {
        return write.turn_remote_control_off(device.id).await;
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

pub async fn consent_of(write: &mut Write, device: &Device) -> Result<ConsentState> {
    let device = write.device(device.scope_id, device.id).await?.ok_or_else(Error::not_found)?;
    Ok(ConsentState { enabled: device.remote_control, revision: device.consent_revision })
}

/// Ends the leases that nobody holds any longer: those of a former agent process, and those that this process
/// has given up.
async fn end_lost_leases(write: &mut Write, device_id: Uuid, hello: &Hello) -> Result<()> {
    for lease in write.leases_of_device(device_id).await? {
        if lease.boot_id != hello.boot_id {
            write.end_session(lease.session_id, EndReason::AgentRestart).await?;
        } else if lease.ready && !hello.lease_ids.contains(&lease.session_id) {
            write.end_session(lease.session_id, EndReason::LeaseExpired).await?;
        }
    }
    Ok(())
}

/// Opens sessions for the tunnels that the device should run and that nobody runs: after a restart, after a
/// long absence, or at the end of a suspension.
pub async fn resume_tunnels(write: &mut Write, device: &Device, boot_id: Uuid) -> Result<()> {
    for tunnel in write.pending_resumes(device.scope_id, device.id).await? {
        if tunnel.suspended || !tunnel.allows(device.id) || tunnel.protocol != Protocol::Tcp {
            continue;
        }
        let target = target(write, device, &tunnel).await?;
        write.open_session(&tunnel, device.id, boot_id, &target).await?;
    }
    Ok(())
}

/// The target of a resumed tunnel. Without remote control, it is the one that somebody at the device last
/// agreed to.
async fn target(write: &mut Write, device: &Device, tunnel: &Tunnel) -> Result<Target> {
    let now = write.current_target(tunnel).await?;
    let device = write.device(device.scope_id, device.id).await?;
    if device.is_some_and(|device| device.remote_control) {
        return Ok(now);
    }
    let last = match tunnel.desired_device_id {
        Some(device_id) => write.last_target(tunnel.id, device_id).await?,
        None => None,
    };
    Ok(last.unwrap_or(now))
}
