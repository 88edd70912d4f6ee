//! Decision inputs: read before the decision, and again in the transaction that applies its change.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::idempotency::{self, SealedResponse};
use super::read::Read;
use super::row::row;
use super::sql::sql;
use super::{Store, Write, devices, keys, tunnels, webhooks};
use culvert_domain::caller::{Caller, Credential, ScopeKind};
use culvert_domain::error::{Error, Result};
use culvert_domain::facts::{DecisionInputs, DeviceInputs, Resource, ResourceFacts, TunnelRules, WantedInputs};
use culvert_domain::fleet;
use culvert_domain::policy_fact::{PolicyFact, PolicyFacts};
use culvert_domain::usage::{Counters, RunningUsage, day_number, month_start};

impl Store {
    /// Reads the facts about a subject. Not found if the scope has no such resource.
    pub async fn facts(&self, caller: &Caller, subject: Resource, wanted: PolicyFacts) -> Result<ResourceFacts> {
        let db = &mut &self.db;
        let (scope_id, now) = (caller.scope.id, self.clock.now());
        let mut facts = ResourceFacts { counters: counters(db, scope_id, now).await?, ..ResourceFacts::default() };
        match subject {
            Resource::Scope => {}
            Resource::Tunnel(id) => {
                let tunnel = tunnels::find(db, scope_id, id, now).await?.ok_or_else(Error::not_found)?;
                facts.counters.extra_ports = u32::try_from(tunnel.extra_ports.len()).unwrap_or(u32::MAX);
                facts.tunnel = Some(tunnel);
            }
            Resource::Device(id) => {
                let device = devices::find(db, scope_id, id).await?;
                facts.device = Some(device.ok_or_else(Error::not_found)?);
            }
            Resource::Webhook(id) => {
                let webhook = webhooks::find(db, scope_id, id).await?;
                facts.webhook = Some(webhook.ok_or_else(Error::not_found)?);
            }
        }
        if wanted.intersects(PolicyFact::RUNNING_USAGE) {
            facts.running = Some(running_usage(db, caller).await?);
        }
        if let (Some(tunnel), true) = (&facts.tunnel, wanted.contains(PolicyFact::TunnelRules)) {
            let (firewall, countries) = (self.firewall(tunnel.id).await?, self.country_rules(tunnel.id).await?);
            facts.rules = Some(TunnelRules { firewall, countries });
        }
        Ok(facts)
    }
}

/// Selects the inputs of a decision about the tunnel `$3`, or about no tunnel, if the caller's credential is valid; and the
/// stored response of the Idempotency-Key `$5` of the credential `$4` at the time `$6`; and whether the process `$8` is the host
/// `$7` still.
macro_rules! select_inputs {
    ($credential:literal) => {
        sql!(concat!(
            "SELECT s.name, s.plan, m.role, \
                 (SELECT COUNT(*) FROM tunnels WHERE scope_id = $1) AS tunnels, \
                 (SELECT COUNT(*) FROM webhooks WHERE scope_id = $1) AS webhook_endpoints, \
                 (SELECT COUNT(*) FROM extra_ports WHERE tunnel_id = $3) AS extra_ports, \
                 t.updated_at, t.desired_device_id, r.id AS session_id, o.id AS operation_id, \
                 i.fingerprint, i.status, i.answer, \
                 (SELECT COUNT(*) FROM hosts h WHERE h.id = $7 AND h.process_id = $8 AND h.ended_at IS NULL) AS alive, \
                 (SELECT policy_generation FROM cluster WHERE id = 1) AS policy_generation \
             FROM scopes s ",
            $credential,
            " LEFT JOIN team_members m ON m.team_id = s.id AND m.account_id = $2 \
              LEFT JOIN tunnels t ON t.id = $3 \
              LEFT JOIN sessions r ON r.tunnel_id = t.id AND r.ended_at IS NULL \
              LEFT JOIN operations o ON o.tunnel_id = t.id AND o.status IN ('queued', 'claimed', 'running') \
              LEFT JOIN idempotency i ON i.credential_id = $4 AND i.key = $5 AND i.expires_at > $6 \
              WHERE s.id = $1"
        ))
    };
}

/// What a transaction finds before it applies a change.
pub struct CurrentInputs {
    pub inputs: DecisionInputs,
    /// The response that an earlier request with the same Idempotency-Key got.
    pub answered: Option<SealedResponse>,
}

impl Write {
    /// Reads the current decision inputs, and the response that is stored under an Idempotency-Key. Fails if the caller's
    /// credential is not valid any longer, or if the other hosts have taken this one for dead.
    pub async fn decision_inputs(
        &mut self,
        caller: &Caller,
        subject: Resource,
        wanted: &WantedInputs,
        key: Option<&str>,
    ) -> Result<CurrentInputs> {
        let (scope_id, now) = (caller.scope.id, self.now);
        let tunnel_id = match subject {
            Resource::Tunnel(id) => Some(id),
            _ => None,
        };
        let sql = match caller.credential {
            Credential::Key { .. } => select_inputs!(
                "JOIN api_keys k ON k.id = $4 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > $6) \
                 JOIN accounts a ON a.id = $2 AND a.locked_at IS NULL"
            ),
            Credential::Device(_) => {
                select_inputs!(
                    "JOIN devices d ON d.id = $4 AND d.scope_id = s.id AND d.owner_id = $2 \
                     JOIN accounts a ON a.id = $2 AND a.locked_at IS NULL"
                )
            }
            Credential::SignIn(_) => {
                select_inputs!("JOIN sign_ins k ON k.id = $4 AND k.account_id = $2 AND k.expires_at > $6")
            }
        };
        let (host_id, process_id) = (self.host_id, self.process_id);
        let args = args![scope_id, caller.account_id, tunnel_id, caller.credential.id(), key, now, host_id, process_id];
        let row = self.optional(sql, args).await?.ok_or_else(|| keys::not_valid(caller.credential))?;
        if host_id.is_some() && row.number::<u64>("alive")? == 0 {
            return Err(fleet::away());
        }
        let running = if wanted.running_usage() { Some(running_usage(&mut **self, caller).await?) } else { None };
        let mut devices = Vec::new();
        for id in &wanted.devices {
            devices.extend(self.device(scope_id, *id).await?.as_ref().map(DeviceInputs::of));
        }
        let inputs = row!(row => DecisionInputs {
            plan: text, tunnels: number, extra_ports: number, webhook_endpoints: number, session_id: optional_id,
            updated_at: optional_time, desired_device_id: optional_id, operation_id: optional_id;
            generation: row.number("policy_generation")?,
            role: match caller.scope.kind {
                ScopeKind::Personal => None,
                ScopeKind::Team => row.optional_string_enum("role")?,
            },
            scope_name: wanted.scope_name().then(|| row.text("name")).transpose()?,
            running,
            devices,
        });
        Ok(CurrentInputs { inputs, answered: idempotency::joined(&row)? })
    }
}

/// What a scope has and has used. The extra ports are those of a tunnel, which is read for itself.
async fn counters(db: &mut impl Read, scope_id: Uuid, now: DateTime<Utc>) -> DbResult<Counters> {
    let sql = sql!(
        "SELECT (SELECT COUNT(*) FROM tunnels WHERE scope_id = $1) AS tunnels, \
             (SELECT COUNT(*) FROM webhooks WHERE scope_id = $1) AS webhook_endpoints, \
             (SELECT CAST(COALESCE(SUM(bytes_in + bytes_out), 0) AS BIGINT) FROM usage_of_scopes \
                 WHERE scope_id = $1 AND day >= $2) AS bytes_this_month"
    );
    let row = db.one(sql, args![scope_id, day_number(month_start(now))]).await?;
    Ok(row!(row => Counters { tunnels: number, webhook_endpoints: number, bytes_this_month: number; extra_ports: 0 }))
}

/// Counts the tunnels of the scope that run or are being started, and the caller's own.
async fn running_usage(db: &mut impl Read, caller: &Caller) -> DbResult<RunningUsage> {
    let sql = sql!(
        "SELECT COUNT(CASE WHEN running THEN 1 END) AS running_tunnels, \
                COUNT(CASE WHEN created_by = $2 THEN 1 END) AS callers_tunnels, \
                COUNT(CASE WHEN running AND created_by = $2 THEN 1 END) AS callers_running_tunnels \
         FROM (SELECT t.created_by, \
                      (EXISTS (SELECT 1 FROM sessions s WHERE s.tunnel_id = t.id AND s.ended_at IS NULL) \
                       OR EXISTS (SELECT 1 FROM operations o WHERE o.tunnel_id = t.id \
                                  AND o.status IN ('queued', 'claimed', 'running') \
                                  AND o.action IN ('start', 'restart'))) AS running \
               FROM tunnels t WHERE t.scope_id = $1) AS of_scope"
    );
    let row = db.one(sql, args![caller.scope.id, caller.account_id]).await?;
    Ok(row!(row => RunningUsage { running_tunnels: number, callers_tunnels: number, callers_running_tunnels: number }))
}
