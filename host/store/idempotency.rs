//! The rows of Idempotency-Keys: sealed responses, which only the host's keys open.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::error::Result;

/// A stored response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedResponse {
    /// A MAC of the request that it answers.
    pub fingerprint: Vec<u8>,
    pub status: u16,
    pub sealed: Vec<u8>,
}

macro_rules! select_response {
    () => {
        sql!(
            "SELECT fingerprint, status, answer FROM idempotency \
             WHERE credential_id = $1 AND key = $2 AND expires_at > $3"
        )
    };
}

impl Store {
    /// The response that is stored under an Idempotency-Key of this credential, if there is one.
    pub async fn sealed_response(&self, credential_id: Uuid, key: &str) -> Result<Option<SealedResponse>> {
        let row = (&self.db).optional(select_response!(), args![credential_id, key, self.clock.now()]).await?;
        Ok(row.as_ref().map(response).transpose()?)
    }
}

impl Write {
    /// As [`Store::sealed_response`].
    pub async fn sealed_response(&mut self, credential_id: Uuid, key: &str) -> Result<Option<SealedResponse>> {
        let now = self.now;
        let row = self.optional(select_response!(), args![credential_id, key, now]).await?;
        Ok(row.as_ref().map(response).transpose()?)
    }

    /// Stores a response until this time, in the place of an expired one.
    pub async fn store_sealed_response(
        &mut self,
        credential_id: Uuid,
        key: &str,
        response: &SealedResponse,
        expires_at: DateTime<Utc>,
    ) -> Result<()> {
        let SealedResponse { fingerprint, status, sealed } = response;
        let sql = sql!(
            "INSERT INTO idempotency (credential_id, key, fingerprint, status, answer, expires_at) \
             VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (credential_id, key) DO UPDATE SET fingerprint = excluded.fingerprint, \
                 status = excluded.status, answer = excluded.answer, expires_at = excluded.expires_at"
        );
        self.execute(sql, args![credential_id, key, &fingerprint[..], *status, &sealed[..], expires_at]).await?;
        Ok(())
    }
}

/// A response from columns that an outer join leaves empty where there is none.
pub(super) fn joined(row: &Row) -> DbResult<Option<SealedResponse>> {
    row.optional_bytes("fingerprint")?.map(|_| response(row)).transpose()
}

fn response(row: &Row) -> DbResult<SealedResponse> {
    Ok(row!(row => SealedResponse {
        fingerprint: bytes, status: number;
        sealed: row.bytes("answer")?,
    }))
}
