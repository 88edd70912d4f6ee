//! The stored responses of Idempotency-Keys, written in the transaction of their effect or not at all; see
//! `docs/develop/decisions/0008-idempotency.md`.

use culvert_domain::error::{Code, Error, Result};
use uuid::Uuid;

use crate::Service;
use crate::secrets::{Purpose, Secrets};
use culvert_store::Write;
use culvert_store::idempotency::SealedResponse;

/// How long a stored response is kept and replayed.
const RESPONSE_RETENTION: chrono::TimeDelta = chrono::TimeDelta::hours(24);

/// The idempotency key of a request, which takes effect once, however often it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub credential_id: Uuid,
    pub key: String,
    /// The request in a canonical form: method, path, query and body.
    pub request: Vec<u8>,
}

/// A stored response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResponse {
    pub status: u16,
    pub body: Vec<u8>,
}

impl IdempotencyKey {
    /// Identifies the row for which the response is sealed.
    fn context(&self) -> Vec<u8> {
        [self.credential_id.as_bytes(), self.key.as_bytes()].concat()
    }

    /// Decrypts the stored response of a row. Fails if the key was used for a different request.
    pub(crate) fn open(&self, stored: &SealedResponse, secrets: &Secrets) -> Result<StoredResponse> {
        if !secrets.verify_mac(Purpose::Fingerprints, &self.request, &stored.fingerprint) {
            return Err(Error::of(Code::IdempotencyConflict));
        }
        let body = secrets.open_sealed(Purpose::Answers, &self.context(), &stored.sealed);
        let body =
            body.ok_or_else(|| Error::internal("a stored answer cannot be opened with the keys in secret_key_file"))?;
        Ok(StoredResponse { status: stored.status, body })
    }
}

impl Service {
    /// The stored response of an earlier request with this key, if there is one.
    ///
    /// # Errors
    ///
    /// `idempotency_conflict` if the key was used for another request.
    pub async fn stored_response(&self, key: &IdempotencyKey) -> Result<Option<StoredResponse>> {
        let stored = self.store.sealed_response(key.credential_id, &key.key).await?;
        stored.map(|stored| key.open(&stored, &self.secrets)).transpose()
    }
}

/// Stores the response that is replayed for this key from now on.
pub(crate) async fn store(
    write: &mut Write,
    secrets: &Secrets,
    key: &IdempotencyKey,
    answer: &StoredResponse,
) -> Result<()> {
    let response = SealedResponse {
        fingerprint: secrets.mac(Purpose::Fingerprints, &key.request),
        status: answer.status,
        sealed: secrets.seal(Purpose::Answers, &key.context(), &answer.body),
    };
    let expires_at = write.now + RESPONSE_RETENTION;
    write.store_sealed_response(key.credential_id, &key.key, &response, expires_at).await
}
