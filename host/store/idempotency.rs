//! The answers that Idempotency-Keys stand for (decisions §8): kept with their effect or not at all.

use uuid::Uuid;

use super::db::{Read, Row, args};
use super::{Store, Write};
use crate::error::{Code, Error, Result};
use crate::secret::{Purpose, Secrets};

/// How long an answer is repeated.
const KEEP: chrono::TimeDelta = chrono::TimeDelta::hours(24);

/// A request that is to have one effect, however often it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub api_key_id: Uuid,
    pub key: String,
    /// What the request is: method, path, query and body in one form.
    pub request: Vec<u8>,
}

/// A stored answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Claim {
    /// The row that the answer is sealed for.
    fn context(&self) -> Vec<u8> {
        [self.api_key_id.as_bytes(), self.key.as_bytes()].concat()
    }

    /// The answer of a stored row, if it is this request's.
    fn answer(&self, row: &Row, secrets: &Secrets) -> Result<Kept> {
        if !secrets.verify(Purpose::Fingerprints, &self.request, &row.bytes("fingerprint")?) {
            return Err(Error::of(Code::IdempotencyConflict));
        }
        let body = secrets.open_sealed(Purpose::Answers, &self.context(), &row.bytes("answer")?);
        let body =
            body.ok_or_else(|| Error::internal("a stored answer cannot be opened with the keys in secret_key_file"))?;
        Ok(Kept { status: row.number("status")?, body })
    }
}

const FIND: &str =
    "SELECT fingerprint, status, answer FROM idempotency WHERE api_key_id = $1 AND key = $2 AND expires_at > $3";

impl Store {
    /// The answer that was given to this request before, if it was.
    pub async fn kept_answer(&self, claim: &Claim) -> Result<Option<Kept>> {
        let args = args![claim.api_key_id, &claim.key, self.clock.now()];
        let row = (&self.db).optional(FIND, args).await?;
        row.map(|row| claim.answer(&row, &self.secrets)).transpose()
    }
}

impl Write {
    /// As [`Store::kept_answer`]. A key belongs to one scope, and that is locked: whatever another
    /// request with the same key does, it has done or will do after this transaction.
    pub async fn kept_answer(&mut self, claim: &Claim, secrets: &Secrets) -> Result<Option<Kept>> {
        let now = self.now;
        let row = self.optional(FIND, args![claim.api_key_id, &claim.key, now]).await?;
        row.map(|row| claim.answer(&row, secrets)).transpose()
    }

    /// Stores the answer that the key stands for from now on.
    pub async fn keep_answer(&mut self, claim: &Claim, secrets: &Secrets, answer: &Kept) -> Result<()> {
        let fingerprint = secrets.tag(Purpose::Fingerprints, &claim.request);
        let sealed = secrets.seal(Purpose::Answers, &claim.context(), &answer.body);
        let expires_at = self.now + KEEP;
        let sql = "INSERT INTO idempotency (api_key_id, key, fingerprint, status, answer, expires_at) \
                   VALUES ($1, $2, $3, $4, $5, $6) \
                   ON CONFLICT (api_key_id, key) DO UPDATE SET fingerprint = excluded.fingerprint, \
                       status = excluded.status, answer = excluded.answer, expires_at = excluded.expires_at";
        let args = args![claim.api_key_id, &claim.key, &fingerprint[..], answer.status, &sealed[..], expires_at];
        self.execute(sql, args).await?;
        Ok(())
    }
}
