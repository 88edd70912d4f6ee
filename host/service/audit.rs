//! What exists, held against the policies of today: tunnels, domains and webhook endpoints, as if their creators made
//! them now.
//!
//! Passwords are not kept, so they are not judged. Facts of the key are those of a key with every permission, made now.

use culvert_api_types::requests::{AssignDomain, NewExtraPort, NewTunnel, NewWebhook};
use culvert_domain::action::Action;
use culvert_domain::caller::{Caller, Credential, Role, Scope, ScopeKind};
use culvert_domain::error::{Code, Result};
use culvert_domain::facts::{Resource, ResourceFacts};
use culvert_domain::page::{CursorPosition, Page, PageRows};
use culvert_domain::permission::{Permission, Permissions};
use culvert_domain::string_enum::StringEnum;
use culvert_domain::team::Member;
use culvert_domain::tunnel::{Tunnel, TunnelStatus};
use culvert_domain::webhook::Webhook;
use culvert_policy::serve::pinned::Pinned;
use culvert_store::Store;
use culvert_wire::clock::Clock;
use uuid::Uuid;

use crate::gate::{self, PinnedPolicies, Refusal, RequestContext};

/// Rows of one query.
const PAGE: u32 = 100;
/// Stands for a password that is set.
const PASSWORD: &str = "unknown-password";
const PASSWORD_FIELD: &str = "http_basic_auth_password";

/// What is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tunnel,
    Domain,
    Webhook,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Domain => "domain",
            Self::Webhook => "webhook",
        }
    }
}

/// Something that would be refused today.
#[derive(Clone, Debug)]
pub struct Finding {
    pub kind: Kind,
    /// The tunnel's id, or the webhook endpoint's.
    pub id: Uuid,
    /// The tunnel's name, the domain, or the webhook's URL.
    pub name: String,
    pub scope: Scope,
    /// As whom it was judged.
    pub account_id: Uuid,
    pub refusal: Refusal,
}

#[derive(Debug, Default)]
pub struct AuditReport {
    pub tunnels: usize,
    pub domains: usize,
    pub webhooks: usize,
    pub findings: Vec<Finding>,
    /// Tunnels whose creator is no member of the Team any more. Nobody could make them as that account.
    pub without_creator: Vec<Uuid>,
}

struct Audit<'a> {
    store: &'a Store,
    policies: PinnedPolicies,
    clock: &'a Clock,
    report: AuditReport,
}

/// Judges everything that exists.
///
/// # Errors
///
/// If a policy or the database fails.
pub async fn run(store: &Store, policies: Pinned, clock: &Clock) -> Result<AuditReport> {
    let context = RequestContext { now: clock.now(), ..RequestContext::default() };
    let policies = PinnedPolicies::new(policies, context);
    let mut audit = Audit { store, policies, clock, report: AuditReport::default() };
    let mut after = Uuid::nil();
    loop {
        let scopes = store.scopes_after(after, PAGE).await?;
        let Some(last) = scopes.last().map(|scope| scope.id) else { return Ok(audit.report) };
        for scope in scopes {
            audit.scope(&scope).await?;
        }
        after = last;
    }
}

impl Audit<'_> {
    async fn scope(&mut self, scope: &Scope) -> Result<()> {
        let members = match scope.kind {
            ScopeKind::Personal => Vec::new(),
            ScopeKind::Team => self.store.members(scope.id).await?,
        };
        let mut after = CursorPosition::START;
        loop {
            let PageRows { rows, next, .. } = self.store.tunnels(scope.id, Page { limit: PAGE, after }).await?;
            for tunnel in &rows {
                self.tunnel(scope, &members, tunnel).await?;
            }
            let Some(next) = next else { break };
            after = next;
        }
        let mut after = CursorPosition::START;
        loop {
            let PageRows { rows, next, .. } = self.store.webhooks(scope.id, Page { limit: PAGE, after }).await?;
            for webhook in &rows {
                self.webhook(scope, &members, webhook).await?;
            }
            let Some(next) = next else { break };
            after = next;
        }
        Ok(())
    }

    async fn tunnel(&mut self, scope: &Scope, members: &[Member], tunnel: &Tunnel) -> Result<()> {
        self.report.tunnels += 1;
        self.report.domains += usize::from(tunnel.custom_domain.is_some());
        let Some(caller) = self.caller(scope, members, tunnel.created_by) else {
            self.report.without_creator.push(tunnel.id);
            return Ok(());
        };
        let draft = Self::draft(tunnel);
        let named = (Kind::Tunnel, tunnel.id, tunnel.spec.name.as_str());
        let refusals = self.examine(&caller, Action::TunnelsCreate, Resource::Scope, &draft, |facts| {
            without_tunnel(facts, tunnel);
        });
        let refusals = refusals.await?;
        self.keep(named, &caller, refusals.into_iter().filter(|r| r.field.as_deref() != Some(PASSWORD_FIELD)));
        if let Some(domain) = &tunnel.custom_domain {
            let draft = AssignDomain { domain: Some(domain.clone()) };
            let subject = Resource::Tunnel(tunnel.id);
            let refusals = self.examine(&caller, Action::TunnelsAssignDomain, subject, &draft, |_| ()).await?;
            self.keep((Kind::Domain, tunnel.id, domain), &caller, refusals.into_iter());
        }
        Ok(())
    }

    /// The request by which the tunnel would be made as it is.
    fn draft(tunnel: &Tunnel) -> NewTunnel {
        let spec = tunnel.spec.clone();
        let ports = tunnel.extra_ports.iter().map(|port| NewExtraPort {
            local_port: Some(port.local_port.into()),
            label: port.label.clone(),
            protocol: Some(port.protocol),
        });
        NewTunnel {
            local_port: Some(spec.local_port.into()),
            name: Some(spec.name),
            protocol: Some(spec.protocol),
            local_host: Some(spec.local_host),
            region: spec.region,
            country: spec.country,
            game_preset_id: spec.preset_id,
            // The client may have left it to the host to choose one.
            subdomain: spec.subdomain,
            http_ssl_enabled: Some(spec.https),
            http_basic_auth_enabled: Some(spec.basic_auth),
            http_basic_auth_username: spec.basic_auth_user,
            http_basic_auth_password: tunnel.basic_auth_password_set.then(|| PASSWORD.into()),
            pro_network: Some(spec.pro_network),
            device_ids: Some(tunnel.device_ids.clone()),
            extra_ports: Some(ports.collect()),
            host_header: spec.service.host_header,
            local_scheme: Some(spec.service.scheme),
            local_tls_verify: spec.service.tls_verify,
            proxy_protocol: Some(spec.service.proxy_protocol),
            tls_passthrough: Some(spec.service.tls_passthrough),
            // No policy sees the rest.
            ..NewTunnel::default()
        }
    }

    /// No record says who made an endpoint, so it is judged as the owner's.
    async fn webhook(&mut self, scope: &Scope, members: &[Member], webhook: &Webhook) -> Result<()> {
        self.report.webhooks += 1;
        let owner = members.iter().find(|member| member.role == Role::Owner).map_or(scope.id, |owner| owner.account_id);
        let Some(caller) = self.caller(scope, members, owner) else { return Ok(()) };
        let draft = NewWebhook {
            url: Some(webhook.url.clone()),
            events: Some(webhook.events.iter().map(|event| event.as_str().to_owned()).collect()),
            description: webhook.description.clone(),
        };
        let less = |facts: &mut ResourceFacts| {
            facts.counters.webhook_endpoints = facts.counters.webhook_endpoints.saturating_sub(1);
        };
        let refusals = self.examine(&caller, Action::WebhooksCreate, Resource::Scope, &draft, less).await?;
        self.keep((Kind::Webhook, webhook.id, &webhook.url), &caller, refusals.into_iter());
        Ok(())
    }

    async fn examine<D: gate::RequestDraft>(
        &self,
        caller: &Caller,
        action: Action,
        subject: Resource,
        draft: &D,
        change: impl FnOnce(&mut ResourceFacts),
    ) -> Result<Vec<Refusal>> {
        match gate::examine(self.store, &self.policies, caller, action, subject, draft, change).await {
            // It was deleted meanwhile.
            Err(error) if error.code == Code::NotFound => Ok(Vec::new()),
            // One that cannot be judged would be refused as well, and the others are judged all the same.
            Err(error) if error.code == Code::PolicyUnavailable => {
                let (code, rule) = (Some(error.code.as_str().to_owned()), String::new());
                Ok(vec![Refusal { code, field: None, rule, message: "A policy failed; the log says which.".into() }])
            }
            examined => examined,
        }
    }

    fn keep(&mut self, named: (Kind, Uuid, &str), caller: &Caller, refusals: impl Iterator<Item = Refusal>) {
        let (kind, id, name) = named;
        self.report.findings.extend(refusals.map(|refusal| Finding {
            kind,
            id,
            name: name.into(),
            scope: caller.scope.clone(),
            account_id: caller.account_id,
            refusal,
        }));
    }

    /// An account as it would ask; none if it is not in the Team.
    fn caller(&self, scope: &Scope, members: &[Member], account_id: Uuid) -> Option<Caller> {
        let role = match scope.kind {
            ScopeKind::Personal => None,
            ScopeKind::Team => Some(members.iter().find(|member| member.account_id == account_id)?.role),
        };
        let credential = Credential::Key { id: Uuid::nil(), created_at: self.clock.now() };
        let permissions = Permissions::of(Permission::ALL);
        Some(Caller { credential, account_id, scope: scope.clone(), role, permissions })
    }
}

/// The counts before the tunnel was made.
fn without_tunnel(facts: &mut ResourceFacts, tunnel: &Tunnel) {
    facts.counters.tunnels = facts.counters.tunnels.saturating_sub(1);
    let Some(running) = &mut facts.running else { return };
    running.callers_tunnels = running.callers_tunnels.saturating_sub(1);
    let runs = matches!(tunnel.status(), TunnelStatus::Running | TunnelStatus::Starting | TunnelStatus::Degraded);
    if runs {
        running.running_tunnels = running.running_tunnels.saturating_sub(1);
        running.callers_running_tunnels = running.callers_running_tunnels.saturating_sub(1);
    }
}
