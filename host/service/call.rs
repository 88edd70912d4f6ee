//! A request that takes effect once, however often it is sent: the API's, and those of commands at a device.

use std::time::Duration;

use culvert_domain::error::{Code, Error, Result};
use culvert_store::Write;
use futures_util::future::BoxFuture;
use serde::Serialize;
use uuid::Uuid;

use crate::Service;
use crate::idempotency::{self, IdempotencyKey, StoredResponse};
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

    /// Changes something that takes no permit, and stores what becomes of it as the response, in one transaction. The
    /// row of `scope_id` is locked meanwhile.
    pub(crate) async fn store_once<T: Serialize + Send + 'static>(
        &self,
        scope_id: Uuid,
        key: &IdempotencyKey,
        change: impl for<'w> FnOnce(&'w mut Write) -> BoxFuture<'w, Result<T>> + Send + 'static,
    ) -> Result<Answered> {
        let (secrets, key) = (self.secrets.clone(), key.clone());
        let stored = self.store.write(Some(scope_id), move |write| {
            Box::pin(async move {
                // Another host may have carried it out before the row was locked here.
                if let Some(stored) = write.sealed_response(key.credential_id, &key.key).await? {
                    return key.open(&stored, &secrets).map(Answered::Replayed);
                }
                let body = serde_json::to_vec(&change(write).await?).map_err(Error::internal)?;
                let response = StoredResponse { status: 200, body };
                idempotency::store(write, &secrets, &key, &response).await?;
                Ok(Answered::Fresh(response))
            })
        });
        stored.await
    }

    /// One request with a key at a time: the others get what it got.
    async fn wait_for_first(&self, key: &IdempotencyKey) -> Result<KeyedMutexGuard> {
        let turn = self.locks.idempotency.lock((key.credential_id, key.key.clone()));
        let waited = self.clock().timeout(IN_PROGRESS_WAIT, turn).await;
        waited.map_err(|_| Error::of(Code::IdempotencyInProgress).after(Duration::from_secs(1)))
    }
}
