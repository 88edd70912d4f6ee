//! The stored responses of Idempotency-Keys, written in the transaction of their effect or not at all; see
//! `docs/develop/decisions/0008-idempotency.md`.

use uuid::Uuid;

use super::db::{Read, Row, args};
use super::{Store, Write};
use crate::secret::{Purpose, Secrets};
use culvert_domain::error::{Code, Error, Result};

/// How long a stored response is kept and replayed.
const RESPONSE_RETENTION: chrono::TimeDelta = chrono::TimeDelta::hours(24);

/// The idempotency key of a request, which takes effect once, however often it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub api_key_id: Uuid,
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
        [self.api_key_id.as_bytes(), self.key.as_bytes()].concat()
    }

    /// Decrypts the stored response of a row. Fails if the key was used for a different request.
    fn answer(&self, row: &Row, secrets: &Secrets) -> Result<StoredResponse> {
        if !secrets.verify_mac(Purpose::Fingerprints, &self.request, &row.bytes("fingerprint")?) {
            return Err(Error::of(Code::IdempotencyConflict));
        }
        let body = secrets.open_sealed(Purpose::Answers, &self.context(), &row.bytes("answer")?);
        let body =
            body.ok_or_else(|| Error::internal("a stored answer cannot be opened with the keys in secret_key_file"))?;
        Ok(StoredResponse { status: row.number("status")?, body })
    }
}

const FIND: &str =
    "SELECT fingerprint, status, answer FROM idempotency WHERE api_key_id = $1 AND key = $2 AND expires_at > $3";

impl Store {
    /// The stored response of an earlier request with this key, if there is one.
    pub async fn find_response(&self, claim: &IdempotencyKey) -> Result<Option<StoredResponse>> {
        let args = args![claim.api_key_id, &claim.key, self.clock.now()];
        let row = (&self.db).optional(FIND, args).await?;
        row.map(|row| claim.answer(&row, &self.secrets)).transpose()
    }
}

impl Write {
    /// As [`Store::find_response`]. A key belongs to one scope, whose row is locked. So another request with
    /// the same key has either finished before this transaction or runs after it.
    pub async fn find_response(&mut self, claim: &IdempotencyKey, secrets: &Secrets) -> Result<Option<StoredResponse>> {
        let now = self.now;
        let row = self.optional(FIND, args![claim.api_key_id, &claim.key, now]).await?;
        row.map(|row| claim.answer(&row, secrets)).transpose()
    }

    /// Stores the response that is replayed for this key from now on.
    pub async fn store_response(
        &mut self,
        claim: &IdempotencyKey,
        secrets: &Secrets,
        answer: &StoredResponse,
    ) -> Result<()> {
        let fingerprint = secrets.mac(Purpose::Fingerprints, &claim.request);
        let sealed = secrets.seal(Purpose::Answers, &claim.context(), &answer.body);
        let expires_at = self.now + RESPONSE_RETENTION;
        let sql = "INSERT INTO idempotency (api_key_id, key, fingerprint, status, answer, expires_at) \
                   VALUES ($1, $2, $3, $4, $5, $6) \
                   ON CONFLICT (api_key_id, key) DO UPDATE SET fingerprint = excluded.fingerprint, \
                       status = excluded.status, answer = excluded.answer, expires_at = excluded.expires_at";
        let args = args![claim.api_key_id, &claim.key, &fingerprint[..], answer.status, &sealed[..], expires_at];
        self.execute(sql, args).await?;
        Ok(())
    }
}
