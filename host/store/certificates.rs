//! Certificates of public names: which are wanted, how far each is, and what is served.

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use culvert_domain::certificate::{Certificate, CertificateStatus, ChallengeKind, NameOwner};
use culvert_domain::custom_domain::CustomDomainStatus;
use culvert_domain::error::Result;
use culvert_domain::port::extra_subdomain;
use culvert_domain::string_enum::StringEnum;
use uuid::Uuid;

use super::acme::StoredChallenge;
use super::arg::{StringArg, args};
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, readable, row};
use super::sql::sql;
use super::{Hint, Store, Write};

/// Most certificates that are worked on in one go.
const BATCH: u32 = 16;
/// Most tunnels whose names are looked at in one transaction.
const TUNNELS: u32 = 500;

/// Which names of tunnels get certificates of their own.
#[derive(Clone, Debug)]
pub struct OwnCertificates {
    /// The directory that is asked.
    pub issuer: Arc<str>,
    /// Not only custom domains: there is no wildcard.
    pub with_subdomains: bool,
}

/// What nodes need of a certificate; the key is sealed.
#[derive(Clone, Debug)]
pub struct ServedCertificate {
    pub id: Uuid,
    pub owner_id: Uuid,
    pub name: String,
    /// PEM, and the sealed key.
    pub issued: Option<(String, Vec<u8>)>,
    pub challenge: Option<StoredChallenge>,
}

/// The keys of a certificate, sealed.
#[derive(Clone, Debug)]
pub struct SealedKeys {
    pub id: Uuid,
    pub key: Option<Vec<u8>>,
    pub new_key: Option<Vec<u8>>,
}

/// A certificate that was issued.
#[derive(Clone, Debug)]
pub struct NewCertificate {
    pub chain: String,
    pub sealed_key: Vec<u8>,
}

macro_rules! select_certificate {
    ($rest:literal) => {
        sql!(concat!(
            "SELECT id, domain_id, tunnel_id, name, status, issuer, not_after, due_at, order_url, ordered_at, challenge, \
                    new_key, failures, error FROM certificates ",
            $rest
        ))
    };
}

macro_rules! select_served {
    (sqlite: $sqlite:literal, postgres: $postgres:literal) => {
        sql!(
            sqlite: concat!(select_served!(), $sqlite),
            postgres: concat!(select_served!(), $postgres)
        )
    };
    ($both:literal) => {
        sql!(concat!(select_served!(), $both))
    };
    () => {
        "SELECT c.id, c.domain_id, c.tunnel_id, c.name, c.chain, c.key, a.name AS challenged, a.kind, a.token, a.value \
         FROM certificates c LEFT JOIN acme_challenges a ON a.certificate_id = c.id AND a.kind <> 'dns-01' "
    };
}

impl Store {
    /// Says which names of tunnels get certificates of their own from now on.
    pub fn order_certificates(&self, own: OwnCertificates) {
        // It is said once, at the start.
        let _ = self.own_certificates.set(own);
    }

    /// Everything that a node serves: of its domain, and of the tunnels that are placed on it.
    pub async fn served_certificates(&self, node_id: Uuid) -> Result<Vec<ServedCertificate>> {
        let of_domain = select_served!("JOIN nodes n ON n.domain_id = c.domain_id WHERE n.id = $1");
        let of_tunnels =
            select_served!("JOIN tunnels t ON t.id = c.tunnel_id WHERE t.node_id = $1 AND t.protocol = 'http'");
        let mut rows = (&self.db).all(of_domain, args![node_id]).await?;
        rows.extend((&self.db).all(of_tunnels, args![node_id]).await?);
        Ok(rows.iter().map(served).collect::<DbResult<_>>()?)
    }

    /// The same, of these tunnels and domains.
    pub async fn served_certificates_of(&self, node_id: Uuid, item_ids: &[Uuid]) -> Result<Vec<ServedCertificate>> {
        let of_domains = select_served!(
            sqlite: "JOIN nodes n ON n.domain_id = c.domain_id \
                     WHERE n.id = $2 AND c.domain_id IN (SELECT unhex(value) FROM json_each($1))",
            postgres: "JOIN nodes n ON n.domain_id = c.domain_id WHERE n.id = $2 AND c.domain_id = ANY($1)"
        );
        let of_tunnels = select_served!(
            sqlite: "JOIN tunnels t ON t.id = c.tunnel_id \
                     WHERE +t.node_id = $2 AND c.tunnel_id IN (SELECT unhex(value) FROM json_each($1))",
            postgres: "JOIN tunnels t ON t.id = c.tunnel_id WHERE t.node_id = $2 AND c.tunnel_id = ANY($1)"
        );
        let mut all = Vec::new();
        for batch in item_ids.chunks(TUNNELS as usize) {
            for sql in [of_domains, of_tunnels] {
                let rows = (&self.db).all(sql, args![batch, node_id]).await?;
                all.extend(rows.iter().map(served).collect::<DbResult<Vec<_>>>()?);
            }
        }
        Ok(all)
    }

    /// The certificates that something has to be done for.
    pub async fn due_certificates(&self) -> Result<Vec<Certificate>> {
        let sql = select_certificate!("WHERE due_at <= $1 ORDER BY due_at LIMIT $2");
        let rows = (&self.db).all(sql, args![self.clock.now(), BATCH]).await?;
        Ok(rows.iter().map(certificate).collect::<DbResult<_>>()?)
    }

    /// When the next certificate is due.
    pub async fn next_certificate(&self) -> Result<Option<DateTime<Utc>>> {
        let sql = sql!("SELECT MIN(due_at) AS due_at FROM certificates");
        Ok((&self.db).one(sql, args![]).await?.optional_time("due_at")?)
    }

    /// The chain that is served for a certificate.
    pub async fn served_chain(&self, id: Uuid) -> Result<Option<String>> {
        let row = (&self.db).optional(sql!("SELECT chain FROM certificates WHERE id = $1"), args![id]).await?;
        Ok(row.map(|row| row.optional_text("chain")).transpose()?.flatten())
    }

    /// How many certificates have each status.
    pub async fn certificate_counts(&self) -> Result<Vec<(CertificateStatus, i64)>> {
        let sql =
            sql!("SELECT status, CAST(SUM(certificates) AS BIGINT) AS count FROM certificate_counts GROUP BY status");
        let rows = (&self.db).all(sql, args![]).await?;
        Ok(readable(&rows, "certificate", |row| Ok((row.string_enum("status")?, row.int("count")?))))
    }

    /// When the first certificate that is served ends.
    pub async fn first_certificate_end(&self) -> Result<Option<DateTime<Utc>>> {
        let sql = sql!("SELECT MIN(not_after) AS ends FROM certificates");
        Ok((&self.db).one(sql, args![]).await?.optional_time("ends")?)
    }

    /// Notes which names of all tunnels need certificates. After the start, each change of a tunnel does so for it.
    pub async fn want_certificates_of_tunnels(&self) -> Result<()> {
        let mut after = Uuid::nil();
        loop {
            // SQLite would otherwise read all of another index for each part.
            let sql = sql!(
                sqlite: "SELECT id FROM tunnels INDEXED BY sqlite_autoindex_tunnels_1 \
                         WHERE protocol = 'http' AND id > $1 ORDER BY id LIMIT $2",
                postgres: "SELECT id FROM tunnels WHERE protocol = 'http' AND id > $1 ORDER BY id LIMIT $2"
            );
            let rows = (&self.db).all(sql, args![after, TUNNELS]).await?;
            let tunnel_ids = rows.iter().map(|row| row.id("id")).collect::<DbResult<Vec<_>>>()?;
            let Some(last) = tunnel_ids.last() else { return Ok(()) };
            after = *last;
            self.write(None, move |write| {
                Box::pin(async move {
                    write.renamed.extend(tunnel_ids);
                    Ok(())
                })
            })
            .await?;
        }
    }
}

fn certificate(row: &Row) -> DbResult<Certificate> {
    let domain = row.optional_id("domain_id")?.map(NameOwner::Domain);
    let tunnel = row.optional_id("tunnel_id")?.map(NameOwner::Tunnel);
    Ok(row!(row => Certificate {
        id: id, name: text, status: string_enum, issuer: text, not_after: optional_time, due_at: time,
        order_url: optional_text, ordered_at: optional_time, challenge: optional_string_enum, new_key: optional_bytes,
        failures: number, error: optional_text;
        owner: domain.or(tunnel).ok_or_else(|| row.unreadable("domain_id"))?,
    }))
}

fn served(row: &Row) -> DbResult<ServedCertificate> {
    let owner_id = row.optional_id("domain_id")?.or(row.optional_id("tunnel_id")?);
    let challenge = match row.optional_text("challenged")? {
        Some(name) => Some(StoredChallenge {
            name,
            kind: row.string_enum("kind")?,
            token: row.text("token")?,
            value: row.text("value")?,
        }),
        None => None,
    };
    Ok(ServedCertificate {
        id: row.id("id")?,
        owner_id: owner_id.ok_or_else(|| row.unreadable("domain_id"))?,
        name: row.text("name")?,
        issued: row.optional_text("chain")?.zip(row.optional_bytes("key")?),
        challenge,
    })
}

impl Write {
    /// Notes that a node's domain needs a certificate of an issuer. One of another issuer, or one whose key `is_usable`
    /// denies, is replaced; until then it is served.
    pub async fn want_domain_certificate(
        &mut self,
        node_id: Uuid,
        issuer: &str,
        challenge: Option<ChallengeKind>,
        is_usable: impl Fn(Uuid, &[u8]) -> bool,
    ) -> Result<()> {
        let sql = sql!(
            "SELECT d.id AS domain_id, d.domain, c.id, c.name, c.issuer, c.key FROM nodes n \
             JOIN platform_domains d ON d.id = n.domain_id LEFT JOIN certificates c ON c.domain_id = d.id WHERE n.id = $1"
        );
        let Some(row) = self.optional(sql, args![node_id]).await? else { return Ok(()) };
        let name = format!("*.{}", row.text("domain")?);
        let now = self.now;
        let Some(known) = row.optional_id("id")? else {
            let owner = NameOwner::Domain(row.id("domain_id")?);
            return self.insert_certificate(owner, &name, issuer, challenge).await;
        };
        let key = row.optional_bytes("key")?;
        let is_good = row.text("name")? == name
            && row.text("issuer")? == issuer
            && key.is_some_and(|sealed| is_usable(known, &sealed));
        if !is_good {
            let sql = sql!(
                "UPDATE certificates SET name = $2, issuer = $3, challenge = $4, due_at = $5, status = 'wanted', \
                     order_url = NULL, new_key = NULL WHERE id = $1"
            );
            self.execute(sql, args![known, &name, issuer, challenge.map(StringEnum::as_str), now]).await?;
            self.notify(Hint::Certificates);
        }
        Ok(())
    }

    /// A domain gets no certificate any longer: the names below it have their own.
    pub async fn forget_domain_certificate(&mut self, node_id: Uuid) -> Result<()> {
        let sql = sql!(
            "DELETE FROM certificates WHERE domain_id = (SELECT domain_id FROM nodes WHERE id = $1) RETURNING domain_id"
        );
        for row in self.all(sql, args![node_id]).await? {
            self.touch(node_id, row.id("domain_id")?);
        }
        Ok(())
    }

    async fn insert_certificate(
        &mut self,
        owner: NameOwner,
        name: &str,
        issuer: &str,
        challenge: Option<ChallengeKind>,
    ) -> Result<()> {
        let (id, now) = (self.clock.id(), self.now);
        let (domain_id, tunnel_id) = match owner {
            NameOwner::Domain(id) => (Some(id), None),
            NameOwner::Tunnel(id) => (None, Some(id)),
        };
        // A custom domain may go from one tunnel to another.
        let sql = sql!(
            "INSERT INTO certificates (id, domain_id, tunnel_id, name, status, issuer, challenge, due_at, failures) \
             VALUES ($1, $2, $3, $4, 'wanted', $5, $6, $7, 0) \
             ON CONFLICT (name) DO UPDATE SET domain_id = excluded.domain_id, tunnel_id = excluded.tunnel_id, \
                 status = excluded.status, issuer = excluded.issuer, challenge = excluded.challenge, \
                 due_at = excluded.due_at, order_url = NULL, new_key = NULL"
        );
        self.execute(sql, args![id, domain_id, tunnel_id, name, issuer, challenge.map(StringEnum::as_str), now])
            .await?;
        self.notify(Hint::Certificates);
        Ok(())
    }

    /// Brings the certificates of the tunnels whose names this transaction has changed in line with their names.
    pub async fn want_certificates(&mut self) -> Result<()> {
        let renamed = std::mem::take(&mut self.renamed);
        let Some(own) = self.own_certificates.clone() else { return Ok(()) };
        for tunnel_id in renamed {
            let wanted = self.names_to_certify(tunnel_id, own.with_subdomains).await?;
            let sql = sql!("SELECT id, name, issuer FROM certificates WHERE tunnel_id = $1");
            let known = self.all(sql, args![tunnel_id]).await?;
            let mut kept = BTreeSet::new();
            for row in &known {
                let name = row.text("name")?;
                if !wanted.contains(&name) {
                    self.execute(sql!("DELETE FROM certificates WHERE id = $1"), args![row.id("id")?]).await?;
                    self.touch_owner(NameOwner::Tunnel(tunnel_id)).await?;
                } else if row.text("issuer")? == *own.issuer {
                    kept.insert(name);
                }
            }
            // One of another authority is served until there is one of this.
            for name in wanted.difference(&kept) {
                let owner = NameOwner::Tunnel(tunnel_id);
                self.insert_certificate(owner, name, &own.issuer, Some(ChallengeKind::TlsAlpn01)).await?;
            }
        }
        Ok(())
    }

    /// No tunnel has a certificate of its own any longer: there is no authority that would renew it.
    pub async fn forget_tunnel_certificates(&mut self) -> Result<()> {
        self.execute(sql!("DELETE FROM certificates WHERE tunnel_id IS NOT NULL"), args![]).await?;
        Ok(())
    }

    /// Has what is under way looked at now: whoever had taken it may have been killed.
    pub async fn resume_orders(&mut self) -> Result<()> {
        let sql = sql!("UPDATE certificates SET due_at = $1 WHERE status NOT IN ('issued', 'failed') AND due_at > $1");
        let now = self.now;
        self.execute(sql, args![now]).await?;
        Ok(())
    }

    /// Forgets what a certificate is and what is under way for it.
    pub async fn begin_certificate_anew(&mut self, id: Uuid) -> Result<()> {
        let sql = sql!(
            "UPDATE certificates SET status = 'wanted', chain = NULL, key = NULL, not_after = NULL, order_url = NULL, \
                 new_key = NULL, due_at = $2 WHERE id = $1"
        );
        let now = self.now;
        self.execute(sql, args![id, now]).await?;
        self.notify(Hint::Certificates);
        Ok(())
    }

    /// The names of a tunnel that is served by HTTPS, as far as they get certificates of their own.
    async fn names_to_certify(&mut self, tunnel_id: Uuid, with_subdomains: bool) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        let sql = sql!(
            "SELECT t.subdomain, d.domain, (SELECT u.domain FROM custom_domains u WHERE u.tunnel_id = t.id \
                                            AND u.assigned = TRUE AND u.status = $2) AS custom_domain \
             FROM tunnels t JOIN platform_domains d ON d.id = t.domain_id \
             WHERE t.id = $1 AND t.protocol = 'http' AND t.https = TRUE AND t.tls_passthrough = FALSE"
        );
        let verified = StringArg(CustomDomainStatus::Verified);
        let Some(row) = self.optional(sql, args![tunnel_id, verified]).await? else { return Ok(names) };
        names.extend(row.optional_text("custom_domain")?);
        let subdomain = row.optional_text("subdomain")?.filter(|_| with_subdomains);
        if let Some(subdomain) = subdomain {
            let name = format!("{subdomain}.{}", row.text("domain")?);
            let sql = sql!("SELECT local_port FROM extra_ports WHERE tunnel_id = $1 AND protocol = 'http'");
            for row in self.all(sql, args![tunnel_id]).await? {
                names.insert(extra_subdomain(row.number("local_port")?, &name));
            }
            names.insert(name);
        }
        Ok(names)
    }

    /// Takes a certificate that is due, until a time: another host, or this one, takes it again then. Returns false if
    /// another was first.
    pub async fn claim_certificate(&mut self, known: &Certificate, until: DateTime<Utc>) -> Result<bool> {
        let sql = sql!("UPDATE certificates SET due_at = $3 WHERE id = $1 AND due_at = $2");
        Ok(self.execute(sql, args![known.id, known.due_at, until]).await? == 1)
    }

    /// Stores how far a certificate is. Returns false if it is not wanted any longer.
    pub async fn save_certificate(&mut self, known: &Certificate) -> Result<bool> {
        let sql = sql!(
            "UPDATE certificates SET status = $2, not_after = $3, due_at = $4, order_url = $5, ordered_at = $6, \
                 challenge = $7, failures = $8, error = $9, new_key = $10 WHERE id = $1"
        );
        let args = args![
            known.id,
            StringArg(known.status),
            known.not_after,
            known.due_at,
            known.order_url.as_deref(),
            known.ordered_at,
            known.challenge.map(StringEnum::as_str),
            known.failures,
            known.error.as_deref(),
            known.new_key.as_deref(),
        ];
        self.notify(Hint::Installation);
        if let NameOwner::Tunnel(tunnel_id) = known.owner {
            let sql = sql!("SELECT scope_id FROM tunnels WHERE id = $1");
            if let Some(row) = self.optional(sql, args![tunnel_id]).await? {
                self.notify(Hint::Scope(row.id("scope_id")?));
            }
        }
        Ok(self.execute(sql, args).await? == 1)
    }

    /// Serves a new certificate. Its nodes hear of it after the commit.
    pub async fn serve_certificate(&mut self, known: &Certificate, new: &NewCertificate) -> Result<()> {
        let sql = sql!("UPDATE certificates SET chain = $2, key = $3 WHERE id = $1");
        self.execute(sql, args![known.id, &new.chain, &new.sealed_key[..]]).await?;
        self.touch_owner(known.owner).await
    }

    /// Replaces what proves the names of a certificate. Its nodes hear of it after the commit.
    pub async fn set_challenges(&mut self, known: &Certificate, challenges: &[StoredChallenge]) -> Result<()> {
        self.execute(sql!("DELETE FROM acme_challenges WHERE certificate_id = $1"), args![known.id]).await?;
        for challenge in challenges {
            let StoredChallenge { name, kind, token, value } = challenge;
            let sql = sql!(
                "INSERT INTO acme_challenges (certificate_id, name, kind, token, value) VALUES ($1, $2, $3, $4, $5) \
                 ON CONFLICT DO NOTHING"
            );
            self.execute(sql, args![known.id, name, StringArg(*kind), token, value]).await?;
        }
        self.touch_owner(known.owner).await
    }

    async fn touch_owner(&mut self, owner: NameOwner) -> Result<()> {
        let sql = match owner {
            NameOwner::Domain(_) => sql!("SELECT id AS node_id FROM nodes WHERE domain_id = $1"),
            NameOwner::Tunnel(_) => sql!("SELECT node_id FROM tunnels WHERE id = $1"),
        };
        for row in self.all(sql, args![owner.id()]).await? {
            self.touch(row.id("node_id")?, owner.id());
        }
        Ok(())
    }

    /// The sealed keys of certificates, by id.
    pub async fn certificate_keys(&mut self, after: Uuid, limit: u32) -> Result<Vec<SealedKeys>> {
        let sql = sql!("SELECT id, key, new_key FROM certificates WHERE id > $1 ORDER BY id LIMIT $2");
        let rows = self.all(sql, args![after, limit]).await?;
        let keys = |row: &Row| Ok(row!(row => SealedKeys { id: id, key: optional_bytes, new_key: optional_bytes, }));
        Ok(rows.iter().map(keys).collect::<DbResult<_>>()?)
    }

    /// Replaces the keys of a certificate, if they are still those that were read. Returns whether they were.
    pub async fn replace_certificate_keys(
        &mut self,
        known: &SealedKeys,
        key: Option<Vec<u8>>,
        new_key: Option<Vec<u8>>,
    ) -> Result<bool> {
        let sql = sql!(
            "UPDATE certificates SET key = COALESCE($2, key), new_key = COALESCE($3, new_key) \
             WHERE id = $1 AND key IS NOT DISTINCT FROM $4 AND new_key IS NOT DISTINCT FROM $5"
        );
        let args = args![known.id, key.as_deref(), new_key.as_deref(), known.key.as_deref(), known.new_key.as_deref(),];
        Ok(self.execute(sql, args).await? == 1)
    }
}
