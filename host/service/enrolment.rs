//! Enrolment: a machine becomes a device, with a one-time code.

use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::action::Action;
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry};
use culvert_domain::error::Result;
use culvert_domain::key::EnrolmentCode;
use culvert_store::keys::DeviceCode;
use culvert_store::{Store, Write};
use serde_json::json;
use uuid::Uuid;

use super::Service;
use crate::commit::Change;
use crate::gate::Permit;
use culvert_domain::device::NewDevice;

/// How long an enrolment code can be used.
const CODE_LIFETIME: TimeDelta = TimeDelta::minutes(10);
/// Codes that somebody has in a scope. One more ends the oldest.
const CODES_PER_ACCOUNT: u32 = 5;

/// Creates a code by which a device enrols. Returns when it expires, as well.
///
/// # Errors
///
/// If the database fails.
pub async fn create_code(store: &Store, stands_for: DeviceCode) -> Result<(EnrolmentCode, DateTime<Utc>)> {
    let code = EnrolmentCode::generate(store.clock());
    let DeviceCode { account_id, scope_id, may_create } = stands_for;
    store
        .write(Some(scope_id), move |write| {
            Box::pin(async move {
                let expires_at = write.now + CODE_LIFETIME;
                let hash = EnrolmentCode::hash(code.reveal());
                write.create_device_code(&hash, stands_for, expires_at).await?;
                let entry = NewEntry::new(scope_id, Actor::CLI, Action::DevicesCreateCode);
                write.audit(entry.with(&json!({"account_id": account_id, "may_create": may_create})));
                Ok((code, expires_at))
            })
        })
        .await
}

/// Makes a code for a device of the caller, in the caller's scope.
pub struct CreateCode {
    pub code: EnrolmentCode,
}

impl Change for CreateCode {
    type Done = DateTime<Utc>;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<DateTime<Utc>> {
        let caller = permit.caller();
        let stands_for = DeviceCode { account_id: caller.account_id, scope_id: caller.scope.id, may_create: false };
        let expires_at = write.now + CODE_LIFETIME;
        write.delete_older_device_codes(caller.account_id, caller.scope.id, CODES_PER_ACCOUNT - 1).await?;
        write.create_device_code(&EnrolmentCode::hash(self.code.reveal()), stands_for, expires_at).await?;
        Ok(expires_at)
    }
}

/// Creates a device for a valid enrolment code; `None` if the code is used up, too old or wrong.
///
/// # Errors
///
/// If the database fails.
pub async fn redeem(service: &Service, code_hash: [u8; 32], new: NewDevice) -> Result<Option<Uuid>> {
    // Check first without a write transaction, so that wrong codes do not delay other writers.
    let Some(scope_id) = service.store.scope_of_device_code(&code_hash).await? else { return Ok(None) };
    service
        .store
        .write(Some(scope_id), move |write| {
            Box::pin(async move {
                let Some(code) = write.take_device_code(&code_hash).await? else { return Ok(None) };
                let owner_id = code.account_id;
                let device_id = write.create_device(code, &new).await?;
                let actor = Actor::device(device_id, owner_id);
                write.audit(NewEntry::new(scope_id, actor, AuditAction::DevicesEnrol).about(device_id));
                Ok(Some(device_id))
            })
        })
        .await
}
