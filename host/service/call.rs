//! A request that takes effect once, however often it is sent: the API's, and those of commands at a device.

use std::time::Duration;

use culvert_domain::error::{Code, Error, Result};

use crate::Service;
use crate::idempotency::{IdempotencyKey, StoredResponse};
use crate::keyed_mutex::KeyedMutexGuard;

/// How long a request waits for the first one with its key.
const IN_PROGRESS_WAIT: Duration = Duration::from_secs(5);

/// The response to a request.
#[derive(Debug)]
pub enum Answered {
    /// Made by this request.
    Fresh(StoredResponse),
    /// Stored by an earlier request with the same idempotency key. Nothing was changed.
    Replayed(StoredResponse),
}

impl Service {
    /// Carries out a request: the stored response of an earlier one with its key, or what `run` makes of it. `run`
    /// decides and commits (steps 9 to 13 of `docs/develop/decisions/0001-order-of-checks.md`).
    ///
    /// # Errors
    ///
    /// `idempotency_in_progress` if an earlier request with the key has not ended within five seconds,
    /// `idempotency_conflict` if the key was used for another request; why `run` refuses.
    pub async fn carry_out(
        &self,
        key: Option<&IdempotencyKey>,
        run: impl Future<Output = Result<Answered>>,
    ) -> Result<Answered> {
        let Some(key) = key else { return run.await };
        let _turn = self.wait_for_first(key).await?;
        if let Some(response) = self.stored_response(key).await? {
            return Ok(Answered::Replayed(response));
        }
        match run.await {
            Ok(answered) => Ok(answered),
            // Another host may have carried out the same request meanwhile.
            Err(error) => match self.stored_response(key).await? {
                Some(response) => Ok(Answered::Replayed(response)),
                None => Err(error),
            },
        }
    }

    /// One request with a key at a time: the others get what it got.
    async fn wait_for_first(&self, key: &IdempotencyKey) -> Result<KeyedMutexGuard> {
        let turn = self.locks.idempotency.lock((key.credential_id, key.key.clone()));
        let waited = self.clock().timeout(IN_PROGRESS_WAIT, turn).await;
        waited.map_err(|_| Error::of(Code::IdempotencyInProgress).after(Duration::from_secs(1)))
    }
}
