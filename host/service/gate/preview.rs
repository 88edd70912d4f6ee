//! What a caller may do, asked before it is tried: for buttons that say beforehand why they cannot be used.

use super::{FactSources, Gate, PinnedPolicies, allowed, known_entitlement, plan, wit_input};
use culvert_api_types::read::NoBody;
use culvert_domain::action::Action;
use culvert_domain::caller::Caller;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::facts::{Resource, ResourceFacts};
use culvert_domain::plan::Entitlement;
use culvert_domain::port;
use culvert_domain::refused_by::Stage;
use culvert_domain::usage::Counters;
use culvert_domain::webhook;

use super::UsageRequest;
use crate::Service;

/// Actions of one preview, at most.
const MOST: usize = 12;

/// Which actions are refused, and why.
pub struct Preview(Vec<(Action, Error)>);

impl Preview {
    /// Why an action is refused. None where it is allowed, as far as can be told before it is asked for.
    pub fn refusal(&self, action: Action) -> Option<&Error> {
        self.0.iter().find(|(refused, _)| *refused == action).map(|(_, error)| error)
    }
}

impl Service {
    /// Asks whether a caller may do these things to a resource, and whether there is room for what they make. Nothing is
    /// recorded of it, and what depends on the body of a request is not looked at.
    ///
    /// # Errors
    ///
    /// `not_found` if the scope has no such resource; if the database fails. A policy that fails refuses.
    pub async fn preview(
        &self,
        policies: &PinnedPolicies,
        caller: &Caller,
        subject: Resource,
        actions: &[Action],
    ) -> Result<Preview> {
        self.gate.preview(policies, caller, subject, actions).await
    }
}

impl Gate {
    async fn preview(
        &self,
        policies: &PinnedPolicies,
        caller: &Caller,
        subject: Resource,
        actions: &[Action],
    ) -> Result<Preview> {
        let policies = policies.unrecorded();
        let facts = self.store.facts(caller, subject, policies.pinned().wanted()).await?;
        let entitlement = known_entitlement(&policies, &caller.scope.plan).await;
        let mut refused = Vec::new();
        for action in actions.iter().take(MOST) {
            let asked = match &entitlement {
                Ok(Some(entitlement)) => self.foresee(&policies, caller, *action, &facts, entitlement).await,
                Ok(None) => Err(Error::of(Code::FeatureNotAvailable)),
                Err(_) => Err(Error::of(Code::PolicyUnavailable)),
            };
            match asked {
                Err(error) if error.source.is_some() => return Err(error),
                Err(error) => refused.push((*action, error)),
                Ok(()) => {}
            }
        }
        Ok(Preview(refused))
    }

    async fn foresee(
        &self,
        policies: &PinnedPolicies,
        caller: &Caller,
        action: Action,
        facts: &ResourceFacts,
        entitlement: &Entitlement,
    ) -> Result<()> {
        let devices = self.involved(caller, action, facts, &NoBody).await?;
        let (context, involved) = (&policies.context, devices.as_slice());
        let sources = FactSources { context, caller, action, facts, devices: involved, input: None };
        let asked = policies.pinned().with_facts(sources.values(policies.pinned().wanted()));
        let wants = UsageRequest::default();
        if !action.only_takes_away() {
            let ask = wit_input::plan_ask(caller, action, facts.counters, wants.clone());
            allowed(asked.plan_access(ask).await, Stage::PlanAccess, policies)?;
        }
        plan::check(entitlement, action, facts.counters, &wants)?;
        let ask = wit_input::role_ask(caller, action, facts, involved);
        allowed(asked.team_role(ask).await, Stage::TeamRole, policies)?;
        check_room(action, facts.counters)
    }
}

/// The host's own limits, beside those of a plan.
fn check_room(action: Action, counters: Counters) -> Result<()> {
    match action {
        Action::TunnelsCreateExtraPort => port::check_room(counters.extra_ports),
        Action::WebhooksCreate => webhook::check_room(counters.webhook_endpoints),
        _ => Ok(()),
    }
}
