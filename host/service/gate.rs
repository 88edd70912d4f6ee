//! Admission: decides what a request may do. It reads the facts, asks the three policies and issues a permit.
//!
//! Only this file creates a [`Permit`], and nothing is written on behalf of a caller without one.
//! The checks are steps 9 to 12 of `docs/develop/decisions/0001-order-of-checks.md`, in that order.

mod access;
mod devices;
mod domains;
mod examine;
mod local_service;
mod plan;
mod policy_facts;
mod preview;
mod tunnels;
mod webhooks;
pub mod wit_input;

use std::sync::{Arc, PoisonError, RwLock};

use uuid::Uuid;

use crate::Service;
use culvert_api_types::read::{Body, NoBody};
use culvert_api_types::requests::Input;
use culvert_domain::action::Action;
use culvert_domain::audit_log::Actor;
use culvert_domain::caller::Caller;
use culvert_domain::device::Device;
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::facts::{DecisionInputs, Resource, ResourceFacts, WantedInputs};
use culvert_domain::plan::Entitlement;
use culvert_domain::refused_by::{RefusedBy, Stage};
use culvert_domain::text;
use culvert_policy::engine::sandbox::Failed;
use culvert_policy::serve::pinned::{DecidedBy, Denied, Pinned};
use culvert_store::Store;
use culvert_webhook::guard::Guard;

pub use examine::Refusal;
pub(crate) use examine::examine;
use policy_facts::FactSources;
pub use policy_facts::RequestContext;
pub use preview::Preview;
pub use tunnels::{StartChoice, TunnelChange, TunnelDefinition};
pub use webhooks::{WebhookChange, WebhookDefinition};

/// One set of policies, which a request keeps to its end, and what is known of the request. All clones have the same set.
#[derive(Clone)]
pub struct PinnedPolicies {
    pinned: Arc<RwLock<Pinned>>,
    context: RequestContext,
}

impl PinnedPolicies {
    pub(crate) fn new(pinned: Pinned, context: RequestContext) -> Self {
        Self { pinned: Arc::new(RwLock::new(pinned)), context }
    }

    fn pinned(&self) -> Pinned {
        self.pinned.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has the request be decided anew, by another set.
    pub(crate) fn pin_anew(&self, pinned: Pinned) {
        let pinned = pinned.for_request(self.request_id());
        *self.pinned.write().unwrap_or_else(PoisonError::into_inner) = pinned;
    }

    /// The number of the set.
    pub fn generation(&self) -> u64 {
        self.pinned().generation()
    }

    /// The id of the request that they decide on; none where no request asks.
    pub fn request_id(&self) -> Option<Uuid> {
        self.context.request_id
    }

    /// Who a caller is, for the audit log.
    pub(crate) fn actor(&self, caller: &Caller) -> Actor {
        Actor::of(caller, self.context.request_id, self.context.client)
    }

    /// The same set, of whose decisions nothing is recorded.
    fn unrecorded(&self) -> Self {
        Self::new(self.pinned().unrecorded(), self.context.clone())
    }
}

/// A code by which a loaded policy refuses requests.
#[derive(Clone, Debug)]
pub struct PolicyCode {
    pub code: String,
    /// What it means.
    pub text: String,
    /// The policy's name and version.
    pub policy: String,
}

impl Service {
    /// The number of the policies that decide now.
    pub fn policy_generation(&self) -> u64 {
        self.policies.generations.number()
    }

    /// The codes of the policies that decide now.
    pub fn policy_codes(&self) -> Vec<PolicyCode> {
        let policies = self.policies.generations.current();
        let described = policies.modules().iter().map(|loaded| &loaded.module.description);
        let codes = described.flat_map(|described| described.codes.iter().map(move |code| (described, code)));
        codes
            .map(|(described, code)| PolicyCode {
                code: code.code.clone(),
                text: code.text.clone(),
                policy: format!("{} {}", described.name, described.version),
            })
            .collect()
    }
}

pub struct Gate {
    store: Arc<Store>,
    guard: Arc<Guard>,
}

/// The permission for one action of a caller on one resource, with the facts behind the decision.
#[derive(Debug)]
pub struct Permit {
    caller: Caller,
    /// Who it is, for the audit log.
    actor: Actor,
    action: Action,
    subject: Resource,
    facts: ResourceFacts,
    wanted: WantedInputs,
    decision_inputs: DecisionInputs,
    entitlement: Entitlement,
}

impl Permit {
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(crate) fn actor(&self) -> &Actor {
        &self.actor
    }

    pub fn action(&self) -> Action {
        self.action
    }

    pub fn subject(&self) -> Resource {
        self.subject
    }

    pub fn wanted(&self) -> &WantedInputs {
        &self.wanted
    }

    pub fn decision_inputs(&self) -> &DecisionInputs {
        &self.decision_inputs
    }

    pub fn facts(&self) -> &ResourceFacts {
        &self.facts
    }

    pub fn entitlement(&self) -> &Entitlement {
        &self.entitlement
    }
}

/// What a request would add to the scope's use of its plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageRequest {
    pub premium_network: bool,
    pub extra_ports: u32,
    /// As the client wrote it.
    pub subdomain: Option<String>,
    /// As the client wrote it.
    pub domain: Option<String>,
}

/// The devices that a change of a tunnel's target redirects, so that the caller needs permission on them.
///
/// They are the device that runs the tunnel, the one that is to resume it, the one of an unfinished
/// operation, and the one that gets the tunnel back if a handoff fails.
fn led(facts: &ResourceFacts) -> Vec<(Uuid, DeviceRole)> {
    let Some(tunnel) = &facts.tunnel else { return Vec::new() };
    let running = tunnel.run.as_ref().map(|run| run.device_id);
    let asked =
        tunnel.operation.iter().flat_map(|operation| [Some(operation.device_id), operation.handoff_from_device_id]);
    let mut devices: Vec<Uuid> = running.into_iter().chain(tunnel.desired_device_id).chain(asked.flatten()).collect();
    devices.sort_unstable();
    devices.dedup();
    devices.into_iter().map(|id| (id, DeviceRole::Target)).collect()
}

/// Adds a fault if a text that other people will read is not acceptable.
fn check_text(text: Option<&str>, field: &str, faults: &mut Vec<Fault>) {
    if let Some(message) = text.and_then(text::fault) {
        faults.push(Fault::new(field, message));
    }
}

/// The part that a device has in an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceRole {
    /// The action applies to the device, or the device is to run the tunnel.
    Target,
    /// A handoff takes the tunnel from it.
    Source,
}

/// A request body that was parsed but is not yet validated.
pub trait RequestDraft: Clone + Send + Sync + 'static {
    /// The validated form of the body.
    type Valid: Send;

    /// Looks up what the body refers to in the store. A missing resource is a fault of its field.
    fn resolve(&mut self, store: &Store, caller: &Caller) -> impl Future<Output = Result<Vec<Fault>>> + Send {
        let _ = (store, caller);
        async { Ok(Vec::new()) }
    }

    /// Checks references that the store cannot resolve, which are names in the DNS.
    fn check_external(&self, guard: &Guard) -> impl Future<Output = Vec<Fault>> + Send {
        let _ = guard;
        async { Vec::new() }
    }

    /// The input of the validation policy. `None` if the policy is not asked.
    fn input(&self) -> Option<Input<'_>>;

    fn wants(&self) -> UsageRequest {
        UsageRequest::default()
    }

    /// The devices that the request concerns, and the role of each. They may include the device that
    /// runs the tunnel now.
    fn devices(&self, facts: &ResourceFacts) -> Vec<(Uuid, DeviceRole)> {
        let _ = facts;
        Vec::new()
    }

    /// Converts the body to the host's own types, which enforce their limits whatever a policy allows.
    ///
    /// # Errors
    ///
    /// The fields that are not valid.
    fn validate(self, facts: &ResourceFacts, entitlement: &Entitlement) -> Result<Self::Valid, Vec<Fault>>;
}

impl RequestDraft for NoBody {
    type Valid = ();

    fn input(&self) -> Option<Input<'_>> {
        None
    }

    fn validate(self, _: &ResourceFacts, _: &Entitlement) -> Result<(), Vec<Fault>> {
        Ok(())
    }
}

impl Gate {
    pub fn new(store: Arc<Store>, guard: Arc<Guard>) -> Self {
        Self { store, guard }
    }

    /// What looks up DNS names, and checks their addresses.
    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Decides on a request that changes something, and returns its permit and validated body.
    ///
    /// # Errors
    ///
    /// [`Code::NotFound`] if the scope has no such resource; the policies' refusal, or [`Code::PolicyUnavailable`] if
    /// one fails; [`Code::ValidationFailed`] if the body is not valid; if the database fails.
    pub async fn admit<D: RequestDraft>(
        &self,
        policies: &PinnedPolicies,
        caller: &Caller,
        action: Action,
        subject: Resource,
        body: Body<D>,
    ) -> Result<(Permit, D::Valid)> {
        self.decide(policies, caller, action, subject, body, Some(&self.guard)).await
    }

    /// `outside` looks up what the request names outside of this host, if that was not done for a decision before.
    async fn decide<D: RequestDraft>(
        &self,
        policies: &PinnedPolicies,
        caller: &Caller,
        action: Action,
        subject: Resource,
        body: Body<D>,
        outside: Option<&Guard>,
    ) -> Result<(Permit, D::Valid)> {
        let pinned = policies.pinned();
        let wanted = pinned.wanted();
        let facts = self.store.facts(caller, subject, wanted).await?;
        let entitlement = known_entitlement(policies, &caller.scope.plan)
            .await?
            .ok_or_else(|| Error::new(Code::FeatureNotAvailable, "The plan includes nothing: no policy knows it."))?;
        let Body { mut draft, mut faults, unknown, .. } = body;
        let unresolved = draft.resolve(&self.store, caller).await?;

        // If the body names an unknown device, the policy judges the tunnel alone.
        let names_none = faults.iter().chain(&unresolved).any(|fault| fault.field == "device_id");
        let devices = if names_none { Vec::new() } else { self.involved(caller, action, &facts, &draft).await? };
        let (context, involved) = (&policies.context, devices.as_slice());
        let sources = FactSources { context, caller, action, facts: &facts, devices: involved, input: draft.input() };
        let asked = pinned.with_facts(sources.values(wanted));
        let wants = draft.wants();
        if !action.only_takes_away() {
            let ask = wit_input::plan_ask(caller, action, facts.counters, wants.clone());
            allowed(asked.plan_access(ask).await, Stage::PlanAccess, policies)?;
        }
        plan::check(&entitlement, action, facts.counters, &wants)?;
        let ask = wit_input::role_ask(caller, action, &facts, involved);
        allowed(asked.team_role(ask).await, Stage::TeamRole, policies)?;

        let mut found_by = DecidedBy::default();
        if let Some(input) = draft.input() {
            let input = wit_input::input(input, &facts);
            let about = wit_input::input_facts(caller, &facts, &faults);
            let validated = asked.validation(input, about).await;
            let (violations, by) = validated.map_err(unavailable_at(Stage::Validation, policies))?;
            found_by = by;
            let violations = violations.into_iter().map(|v| Fault::by_rule(v.field, v.message, v.rule));
            merge(&mut faults, violations.collect());
        }
        merge(&mut faults, unresolved);
        if let Some(guard) = outside {
            merge(&mut faults, draft.check_external(guard).await);
        }
        let wanted = WantedInputs::new(wanted, devices.iter().map(|(device, _)| device.id));
        let involved = devices.iter().map(|(device, _)| device);
        let decision_inputs = DecisionInputs::of(pinned.generation(), caller, &facts, &wanted, involved);
        match draft.validate(&facts, &entitlement) {
            Ok(valid) if faults.is_empty() && unknown.is_empty() => {
                let actor = policies.actor(caller);
                let caller = caller.clone();
                let permit = Permit { caller, actor, action, subject, facts, wanted, decision_inputs, entitlement };
                return Ok((permit, valid));
            }
            Ok(_) => {}
            Err(mut own) => {
                // Drops a fault of a whole value if a part of it already has one.
                own.retain(|whole| !faults.iter().any(|known| lies_in(&known.field, &whole.field)));
                merge(&mut faults, own);
            }
        }
        if !unknown.is_empty() {
            faults.retain(|fault| fault.field != "body");
            faults.extend(unknown);
        }
        let by_policy = !found_by.modules.is_empty();
        let refused_by = by_policy.then(|| Box::new(refused_by(found_by, Stage::Validation, policies)));
        Err(Error { refused_by, ..Error::invalid(faults) })
    }

    /// Repeats a decision, because its inputs have changed.
    ///
    /// # Errors
    ///
    /// If the caller's credential is not valid any longer; otherwise as [`Gate::admit`].
    pub async fn readmit<D: RequestDraft>(
        &self,
        policies: &PinnedPolicies,
        permit: &Permit,
        body: Body<D>,
    ) -> Result<(Permit, D::Valid)> {
        let caller = self.store.caller_of(permit.caller.credential, permit.caller.scope.id).await?;
        // Nothing was wrong outside, or there were no permit.
        self.decide(policies, &caller, permit.action, permit.subject, body, None).await
    }

    /// The devices that an action concerns. A device that the scope does not have is left out: resolving the
    /// body reports it as a fault.
    async fn involved<D: RequestDraft>(
        &self,
        caller: &Caller,
        action: Action,
        facts: &ResourceFacts,
        draft: &D,
    ) -> Result<Vec<(Device, DeviceRole)>> {
        let run = facts.tunnel.as_ref().and_then(|tunnel| tunnel.run.as_ref());
        let concerned = match action {
            Action::TunnelsStop | Action::TunnelsRestart => {
                run.map(|run| (run.device_id, DeviceRole::Target)).into_iter().collect()
            }
            _ => draft.devices(facts),
        };
        let mut devices: Vec<_> = facts.device.iter().map(|device| (device.clone(), DeviceRole::Target)).collect();
        for (id, part) in concerned {
            if let Some(device) = self.store.device(caller.scope.id, id).await? {
                devices.push((device, part));
            }
        }
        Ok(devices)
    }
}

/// What a plan includes. `None` if no policy knows the plan.
///
/// # Errors
///
/// [`Code::PolicyUnavailable`] if a policy fails.
pub async fn known_entitlement(policies: &PinnedPolicies, plan: &str) -> Result<Option<Entitlement>> {
    Ok(policies.pinned().entitlement(plan).await.map_err(unavailable)?.map(wit_input::entitlement))
}

/// What a plan includes. A plan that no policy knows includes nothing.
///
/// # Errors
///
/// [`Code::PolicyUnavailable`] if a policy fails.
pub async fn entitlement(policies: &PinnedPolicies, plan: &str) -> Result<Entitlement> {
    Ok(known_entitlement(policies, plan).await?.unwrap_or_else(|| {
        tracing::warn!(plan, "no policy knows this plan; it includes nothing");
        Entitlement::default()
    }))
}

/// Adds faults, except those of a field that already has a fault or lies in one that has, and those that say the same
/// of the same field twice. A fault of the whole body is also left out if there is any other.
fn merge(faults: &mut Vec<Fault>, more: Vec<Fault>) {
    let known = faults.len();
    for fault in more {
        let covered = |known: &Fault| lies_in(&fault.field, &known.field) || fault.field == "body";
        let same = |other: &Fault| other.field == fault.field && other.message == fault.message;
        if !faults[..known].iter().any(covered) && !faults[known..].iter().any(same) {
            faults.push(fault);
        }
    }
}

/// Whether a field is the same as another one or a part of it.
fn lies_in(field: &str, whole: &str) -> bool {
    field.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn allowed(verdict: Result<Option<Denied>, Failed>, stage: Stage, policies: &PinnedPolicies) -> Result<()> {
    let Some(Denied { denial, by }) = verdict.map_err(unavailable_at(stage, policies))? else { return Ok(()) };
    if policies.pinned().is_recorded() {
        tracing::info!(code = denial.code, rule = denial.rule, "refused by a policy");
    }
    let refused_by = RefusedBy { rule: Some(denial.rule), ..refused_by(by, stage, policies) };
    let error = Error::new(Code::from_policy(denial.code), denial.detail);
    Err(Error { refused_by: Some(Box::new(refused_by)), ..error })
}

/// What is kept of a decision, so that people can look up why it was made.
fn refused_by(by: DecidedBy, stage: Stage, policies: &PinnedPolicies) -> RefusedBy {
    let DecidedBy { modules, question, secrets } = by;
    RefusedBy { stage, rule: None, generation: policies.generation(), modules, question, secrets }
}

/// As [`unavailable`], with the check that could not be made.
fn unavailable_at(stage: Stage, policies: &PinnedPolicies) -> impl FnOnce(Failed) -> Error + '_ {
    move |failed| {
        let refused_by = Some(Box::new(refused_by(DecidedBy::default(), stage, policies)));
        Error { refused_by, ..unavailable(failed) }
    }
}

/// The error for a policy that failed: the request is refused.
fn unavailable(failed: Failed) -> Error {
    tracing::error!(module = failed.module, cause = failed.failure.cause(), error = %failed.failure, "a policy failed");
    Error::of(Code::PolicyUnavailable).after(std::time::Duration::from_secs(1))
}
