//! Enrolment: a machine becomes a device, with a one-time code.

use culvert_domain::error::Result;
use uuid::Uuid;

use super::Service;
use culvert_domain::device::NewDevice;

/// Creates a device for a valid enrolment code; `None` if the code is used up, too old or wrong.
///
/// # Errors
///
/// If the database fails.
pub async fn redeem(service: &Service, code_hash: [u8; 32], new: NewDevice) -> Result<Option<Uuid>> {
    // Check first without a write transaction, so that wrong codes do not delay other writers.
    if !service.store.has_device_code(&code_hash).await? {
        return Ok(None);
    }
    service
        .store
        .write(None, move |write| {
            Box::pin(async move {
                match write.take_device_code(&code_hash).await? {
                    Some((account_id, scope_id)) => Ok(Some(write.create_device(scope_id, account_id, &new).await?)),
                    None => Ok(None),
                }
            })
        })
        .await
}
