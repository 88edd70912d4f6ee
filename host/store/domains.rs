//! Custom domains.

use chrono::TimeDelta;
use uuid::Uuid;

use super::arg::{StringArg, args};
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::certificate::{CertificateStatus, ShownStatus};
use culvert_domain::custom_domain::{CHECK_EVERY, CustomDomain, DomainCertificate, LookupError};
use culvert_domain::error::Result;

macro_rules! select_domain {
    ($rest:literal) => {
        sql!(concat!(
            "SELECT u.tunnel_id, u.domain, u.status, u.assigned, u.verified_at, u.last_checked_at, u.missed, u.error_code, \
                    u.error_detail, c.status AS certificate_status, c.not_after, c.error AS certificate_error \
             FROM custom_domains u LEFT JOIN certificates c ON c.name = u.domain AND c.tunnel_id = u.tunnel_id ",
            $rest
        ))
    };
}

macro_rules! insert_domain {
    ($rest:literal) => {
        sql!(concat!(
            "INSERT INTO custom_domains (tunnel_id, domain, status, assigned, verified_at, last_checked_at, missed, \
                 error_code, error_detail, updated_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ",
            $rest
        ))
    };
}

/// The values of [`insert_domain`].
macro_rules! columns {
    ($tunnel_id:expr, $domain:expr, $now:expr) => {
        args![
            $tunnel_id,
            &$domain.domain,
            StringArg($domain.status),
            $domain.assigned,
            $domain.verified_at,
            $domain.last_checked_at,
            $domain.missed,
            $domain.error.as_ref().map(|error| error.code.as_str()),
            $domain.error.as_ref().map(|error| error.detail.as_str()),
            $now,
        ]
    };
}

impl Store {
    /// Whether this custom domain is assigned to a tunnel.
    pub async fn has_custom_domain(&self, domain: &str) -> Result<bool> {
        let sql = sql!("SELECT 1 AS one FROM custom_domains WHERE domain = $1 AND assigned = TRUE");
        Ok((&self.db).optional(sql, args![domain]).await?.is_some())
    }
}

/// A custom domain whose DNS check is due.
#[derive(Clone, Debug)]
pub struct DueDomain {
    pub scope_id: Uuid,
    pub tunnel_id: Uuid,
    pub domain: String,
}

impl Store {
    /// The custom domain of a tunnel that was verified or assigned last.
    pub async fn custom_domain(&self, tunnel_id: Uuid) -> Result<Option<CustomDomain>> {
        let sql = select_domain!("WHERE u.tunnel_id = $1 ORDER BY u.updated_at DESC, u.assigned LIMIT 1");
        let row = (&self.db).optional(sql, args![tunnel_id]).await?;
        let has_authority = self.own_certificates.get().is_some();
        Ok(row.as_ref().map(|row| custom_domain(row, has_authority)).transpose()?)
    }

    /// Custom domains that were verified before and were last checked a day ago or earlier.
    pub async fn due_domains(&self) -> Result<Vec<DueDomain>> {
        let sql = sql!(
            "SELECT t.scope_id, c.tunnel_id, c.domain FROM custom_domains c JOIN tunnels t ON t.id = c.tunnel_id \
             WHERE c.status <> 'pending' AND c.last_checked_at <= $1 ORDER BY c.last_checked_at LIMIT 64"
        );
        let every: TimeDelta = CHECK_EVERY;
        let rows = (&self.db).all(sql, args![self.clock.now() - every]).await?;
        let due = |row: &Row| {
            Ok(row!(row => DueDomain {
                scope_id: id, tunnel_id: id, domain: text,
            }))
        };
        Ok(rows.iter().map(due).collect::<DbResult<_>>()?)
    }
}

impl Write {
    /// The custom domain that is assigned to a tunnel, or else the one that was looked up last.
    pub async fn custom_domain_of_tunnel(&mut self, tunnel_id: Uuid) -> Result<Option<CustomDomain>> {
        let sql = select_domain!("WHERE u.tunnel_id = $1 ORDER BY u.assigned DESC, u.updated_at DESC LIMIT 1");
        let row = self.optional(sql, args![tunnel_id]).await?;
        let has_authority = self.own_certificates.is_some();
        Ok(row.as_ref().map(|row| custom_domain(row, has_authority)).transpose()?)
    }

    pub async fn custom_domain_by_name(&mut self, tunnel_id: Uuid, domain: &str) -> Result<Option<CustomDomain>> {
        let sql = select_domain!("WHERE u.tunnel_id = $1 AND u.domain = $2");
        let row = self.optional(sql, args![tunnel_id, domain]).await?;
        let has_authority = self.own_certificates.is_some();
        Ok(row.as_ref().map(|row| custom_domain(row, has_authority)).transpose()?)
    }

    /// Assigns a custom domain to a tunnel and removes its others. Returns false if another tunnel has it.
    pub async fn assign_domain(&mut self, tunnel_id: Uuid, domain: &CustomDomain) -> Result<bool> {
        // This tells the node as well.
        self.forget_domains(tunnel_id).await?;
        let sql = insert_domain!("ON CONFLICT DO NOTHING");
        let now = self.now;
        Ok(self.execute(sql, columns!(tunnel_id, domain, now)).await? == 1)
    }

    /// Stores a custom domain as the one that was verified or assigned last. The tunnel's other domains are
    /// deleted unless they are assigned.
    pub async fn upsert_domain(&mut self, tunnel_id: Uuid, domain: &CustomDomain) -> Result<()> {
        let sql = sql!("DELETE FROM custom_domains WHERE tunnel_id = $1 AND domain <> $2 AND assigned = FALSE");
        self.execute(sql, args![tunnel_id, &domain.domain]).await?;
        let sql = insert_domain!(
            "ON CONFLICT (tunnel_id, domain) DO UPDATE SET status = excluded.status, assigned = excluded.assigned, \
                 verified_at = excluded.verified_at, last_checked_at = excluded.last_checked_at, \
                 missed = excluded.missed, error_code = excluded.error_code, \
                 error_detail = excluded.error_detail, updated_at = excluded.updated_at"
        );
        let now = self.now;
        self.execute(sql, columns!(tunnel_id, domain, now)).await?;
        Ok(())
    }

    /// Records the result of a daily check.
    pub async fn record_check(&mut self, tunnel_id: Uuid, domain: &CustomDomain) -> Result<()> {
        let sql = sql!(
            "UPDATE custom_domains SET status = $3, verified_at = $4, last_checked_at = $5, missed = $6, \
                 error_code = $7, error_detail = $8 \
             WHERE tunnel_id = $1 AND domain = $2"
        );
        let args = args![
            tunnel_id,
            &domain.domain,
            StringArg(domain.status),
            domain.verified_at,
            domain.last_checked_at,
            domain.missed,
            domain.error.as_ref().map(|error| error.code.as_str()),
            domain.error.as_ref().map(|error| error.detail.as_str()),
        ];
        self.execute(sql, args).await?;
        // A name that is no longer verified gets no certificate.
        self.renamed.insert(tunnel_id);
        Ok(())
    }

    /// Deletes all custom domains of a tunnel.
    pub async fn forget_domains(&mut self, tunnel_id: Uuid) -> Result<()> {
        self.execute(sql!("DELETE FROM custom_domains WHERE tunnel_id = $1"), args![tunnel_id]).await?;
        self.touch_route(tunnel_id).await
    }

    pub async fn set_updated_at(&mut self, tunnel_id: Uuid) -> Result<()> {
        let now = self.now;
        self.execute(sql!("UPDATE tunnels SET updated_at = $2 WHERE id = $1"), args![tunnel_id, now]).await?;
        Ok(())
    }
}

fn custom_domain(row: &Row, has_authority: bool) -> DbResult<CustomDomain> {
    let expires_at = row.optional_time("not_after")?;
    let certificate = match row.optional_string_enum::<CertificateStatus>("certificate_status")? {
        Some(status) => DomainCertificate {
            status: ShownStatus::of(status, expires_at.is_some()),
            expires_at,
            error: row.optional_text("certificate_error")?,
        },
        None => DomainCertificate {
            error: (!has_authority).then(|| "acme.directory is not set".into()),
            ..DomainCertificate::default()
        },
    };
    let code = row.optional_text("error_code")?;
    let detail = row.optional_text("error_detail")?;
    Ok(row!(row => CustomDomain {
        domain: text, status: string_enum, assigned: flag, verified_at: optional_time, last_checked_at: time,
        missed: number;
        certificate,
        error: code.zip(detail).map(|(code, detail)| LookupError { code: code.into(), detail }),
    }))
}
