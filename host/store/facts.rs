//! Decision inputs: read before the decision, and again in the transaction that applies its change.

use uuid::Uuid;

use super::arg::args;
use super::db::Read;
use super::error::DbResult;
use super::row::row;
use super::sql::sql;
use super::{Store, Write, devices, keys, tunnels, usage, webhooks};
use culvert_domain::caller::{Caller, Credential, ScopeKind};
use culvert_domain::error::{Error, Result};
use culvert_domain::facts::{DecisionInputs, DeviceInputs, Resource, ResourceFacts, TunnelRules, WantedInputs};
use culvert_domain::policy_fact::{PolicyFact, PolicyFacts};
use culvert_domain::usage::{Counters, RunningUsage};

impl Store {
    /// Reads the facts about a subject. Not found if the scope has no such resource.
    pub async fn facts(&self, caller: &Caller, subject: Resource, wanted: PolicyFacts) -> Result<ResourceFacts> {
        let db = &mut &self.db;
        let scope_id = caller.scope.id;
        let mut facts = ResourceFacts { counters: counters(db, scope_id, subject).await?, ..ResourceFacts::default() };
        let now = self.clock.now();
        match subject {
            Resource::Scope => {}
            Resource::Tunnel(id) => {
                let tunnel = tunnels::find(db, scope_id, id, now).await?;
                facts.tunnel = Some(tunnel.ok_or_else(Error::not_found)?);
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
        facts.counters.bytes_this_month = usage::scope_bandwidth(db, scope_id, now).await?.month.total();
        Ok(facts)
    }
}

/// What an account is in its scope, as long as its credential is valid.
macro_rules! select_standing {
    ($credential:literal) => {
        sql!(concat!(
            "SELECT s.name, s.plan, m.role FROM scopes s ",
            $credential,
            " LEFT JOIN team_members m ON m.team_id = s.id AND m.account_id = $2 WHERE s.id = $1"
        ))
    };
}

impl Write {
    /// Reads the current decision inputs. Fails if the caller's credential is not valid any longer.
    pub async fn decision_inputs(
        &mut self,
        caller: &Caller,
        subject: Resource,
        wanted: &WantedInputs,
    ) -> Result<DecisionInputs> {
        let (scope_id, now) = (caller.scope.id, self.now);
        let account_id = caller.account_id;
        let row = match caller.credential {
            Credential::Key { id, .. } => {
                let sql = select_standing!(
                    "JOIN api_keys k ON k.id = $3 AND k.revoked_at IS NULL \
                     AND (k.expires_at IS NULL OR k.expires_at > $4)"
                );
                self.optional(sql, args![scope_id, account_id, id, now]).await?
            }
            Credential::Device(id) => {
                let sql = select_standing!("JOIN devices d ON d.id = $3 AND d.scope_id = s.id AND d.owner_id = $2");
                self.optional(sql, args![scope_id, account_id, id]).await?
            }
        };
        let row = row.ok_or_else(|| keys::not_valid(caller.credential))?;
        let role = match caller.scope.kind {
            ScopeKind::Personal => None,
            ScopeKind::Team => row.optional_string_enum("role")?,
        };
        let Counters { tunnels, extra_ports, webhook_endpoints, .. } = counters(&mut **self, scope_id, subject).await?;
        let tunnel = match subject {
            Resource::Tunnel(id) => {
                let sql = sql!(
                    "SELECT t.updated_at, t.desired_device_id, s.id, o.id AS operation_id FROM tunnels t \
                     LEFT JOIN sessions s ON s.tunnel_id = t.id AND s.ended_at IS NULL \
                     LEFT JOIN operations o ON o.tunnel_id = t.id AND o.status IN ('queued', 'claimed', 'running') \
                     WHERE t.id = $1"
                );
                self.optional(sql, args![id]).await?
            }
            _ => None,
        };
        let session_id = tunnel.as_ref().map(|row| row.optional_id("id")).transpose()?.flatten();
        let updated_at = tunnel.as_ref().map(|row| row.time("updated_at")).transpose()?;
        let of_tunnel = |column| tunnel.as_ref().map(|row| row.optional_id(column)).transpose().map(Option::flatten);
        let running = if wanted.running_usage() { Some(running_usage(&mut **self, caller).await?) } else { None };
        let mut devices = Vec::new();
        for id in &wanted.devices {
            devices.extend(self.device(scope_id, *id).await?.as_ref().map(DeviceInputs::of));
        }
        Ok(DecisionInputs {
            plan: row.text("plan")?,
            role,
            tunnels,
            extra_ports,
            webhook_endpoints,
            session_id,
            updated_at,
            desired_device_id: of_tunnel("desired_device_id")?,
            operation_id: of_tunnel("operation_id")?,
            scope_name: wanted.scope_name().then(|| row.text("name")).transpose()?,
            running,
            devices,
        })
    }
}

async fn counters(db: &mut impl Read, scope_id: Uuid, subject: Resource) -> DbResult<Counters> {
    let tunnel_id = match subject {
        Resource::Tunnel(id) => Some(id),
        _ => None,
    };
    let sql = sql!(
        "SELECT (SELECT COUNT(*) FROM tunnels WHERE scope_id = $1) AS tunnels, \
         (SELECT COUNT(*) FROM webhooks WHERE scope_id = $1) AS webhook_endpoints, \
         (SELECT COUNT(*) FROM extra_ports WHERE tunnel_id = $2) AS extra_ports"
    );
    let row = db.one(sql, args![scope_id, tunnel_id]).await?;
    Ok(row!(row => Counters {
        tunnels: number, webhook_endpoints: number, extra_ports: number;
        bytes_this_month: 0,
    }))
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
