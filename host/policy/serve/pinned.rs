//! One generation of the policies, pinned for one request: all decisions of a request are made by the
//! same set, even if the policies are replaced in the meantime.

use std::sync::Arc;

use serde_json::Value;
use uuid::Uuid;

use crate::engine::bindings::types::{Denial, Verdict, Violation};
use crate::engine::bindings::{inputs, plans, roles};
use crate::engine::facts::FactValues;
use crate::engine::kind::Kind;
use crate::engine::request::{PolicyRequest, PolicyResponse};
use crate::engine::sandbox::Failed;
use crate::engine::sandbox::Failure;
use crate::serve::live::{Chain, ModuleInstance, PolicySet};
use crate::serve::long_decision;
use crate::serve::observer::DecisionObserver;
use culvert_domain::policy_fact::PolicyFacts;
use culvert_domain::refused_by::PolicyModule;

/// Bytes of a question that are kept for an explanation, and items of each list in it.
const QUESTION: usize = 16 * 1024;
const ITEMS: usize = 20;

/// Which modules have decided, and on what.
#[derive(Clone, Debug, Default)]
pub struct DecidedBy {
    pub modules: Vec<PolicyModule>,
    /// What the first of them was asked, as JSON, without secrets. Empty if it is too long.
    pub question: String,
    /// The secrets of the question, which a module may repeat in what it says.
    pub secrets: Vec<String>,
}

impl DecidedBy {
    fn add(&mut self, decider: &ModuleInstance, request: &PolicyRequest) {
        if self.modules.is_empty() {
            let (request, secrets) = request.clone().redacted();
            self.secrets = secrets.iter().map(|secret| secret.text().to_owned()).collect();
            self.question = kept(&request);
        }
        let (description, sha256) = (&decider.module.description, decider.module.digest.clone());
        let (name, version) = (description.name.clone(), description.version.clone());
        self.modules.push(PolicyModule { name, version, sha256 });
    }
}

/// A question as it is kept. Of a long list, its first items and how many there are.
fn kept(request: &PolicyRequest) -> String {
    let mut question = serde_json::to_value(request).unwrap_or_default();
    shorten(&mut question);
    let question = question.to_string();
    if question.len() > QUESTION { String::new() } else { question }
}

fn shorten(value: &mut Value) {
    match value {
        Value::Array(items) => {
            let all = items.len();
            items.truncate(ITEMS);
            items.iter_mut().for_each(shorten);
            if all > ITEMS {
                items.push(Value::String(format!("{all} in all")));
            }
        }
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        _ => {}
    }
}

/// A denial, and the module that denies.
#[derive(Debug)]
pub struct Denied {
    pub denial: Denial,
    pub by: DecidedBy,
}

#[derive(Clone)]
pub struct Pinned {
    set: Arc<PolicySet>,
    observer: Arc<DecisionObserver>,
    request_id: Option<Uuid>,
    facts: Arc<FactValues>,
    is_recorded: bool,
}

impl Pinned {
    pub fn new(set: Arc<PolicySet>, observer: Arc<DecisionObserver>, request_id: Option<Uuid>) -> Self {
        Self { set, observer, request_id, facts: Arc::default(), is_recorded: true }
    }

    pub fn generation(&self) -> u64 {
        self.set.generation.number
    }

    /// The plan of accounts and Teams that nobody gives another one.
    pub fn default_plan(&self) -> &str {
        &self.set.default_plan
    }

    /// The facts that at least one module wants.
    pub fn wanted(&self) -> PolicyFacts {
        self.set.wanted
    }

    /// The same set, for the request with this id.
    #[must_use]
    pub fn for_request(self, request_id: Option<Uuid>) -> Self {
        Self { request_id, ..self }
    }

    /// The same set, of whose decisions there are no records, metrics or shadows.
    #[must_use]
    pub fn unrecorded(&self) -> Self {
        Self { is_recorded: false, ..self.clone() }
    }

    pub fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// The same set, with facts about the request.
    #[must_use]
    pub fn with_facts(&self, facts: FactValues) -> Self {
        Self { facts: Arc::new(facts), ..self.clone() }
    }

    /// What a plan includes. The result is cached, because it depends only on the plan's name.
    ///
    /// # Errors
    ///
    /// If a module gives no valid response, or no module of the kind decides.
    pub async fn entitlement(&self, plan: &str) -> Result<Option<plans::Entitlement>, Failed> {
        if let Some(known) = self.set.entitlements.read().ok().and_then(|known| known.get(plan).cloned()) {
            return Ok(known);
        }
        let entitlement = self.entitlements(plan).await?;
        if let Ok(mut known) = self.set.entitlements.write() {
            known.insert(plan.into(), entitlement.clone());
        }
        Ok(entitlement)
    }

    /// What a plan includes, according to the first module of the chain that knows it.
    async fn entitlements(&self, plan: &str) -> Result<Option<plans::Entitlement>, Failed> {
        let request = PolicyRequest::Entitlements(plan.into());
        let known = |response: &PolicyResponse| matches!(response, PolicyResponse::Entitlement(Some(_)));
        let (response, _) = self.first(request, known, PolicyResponse::Entitlement(None)).await?;
        Ok(if let PolicyResponse::Entitlement(entitlement) = response { entitlement } else { None })
    }

    /// Evaluates the chain for access by plan. The first module that denies decides.
    ///
    /// # Errors
    ///
    /// If a module gives no valid response, or no module of the kind decides.
    pub async fn plan_access(&self, ask: plans::Ask) -> Result<Option<Denied>, Failed> {
        self.verdict(PolicyRequest::PlanAccess(ask)).await
    }

    /// Evaluates the chain for access by team role. The first module that denies decides.
    ///
    /// # Errors
    ///
    /// If a module gives no valid response, or no module of the kind decides.
    pub async fn team_role(&self, ask: roles::Ask) -> Result<Option<Denied>, Failed> {
        self.verdict(PolicyRequest::TeamRole(ask)).await
    }

    async fn verdict(&self, request: PolicyRequest) -> Result<Option<Denied>, Failed> {
        let denies = |response: &PolicyResponse| matches!(response, PolicyResponse::Verdict(Verdict::Deny(_)));
        match self.first(request, denies, PolicyResponse::Verdict(Verdict::Allow)).await? {
            (PolicyResponse::Verdict(Verdict::Deny(denial)), by) => Ok(Some(Denied { denial, by })),
            (PolicyResponse::Verdict(Verdict::Allow), _) => Ok(None),
            _ => Err(self.another_answer()),
        }
    }

    /// The violations that all modules of the chain find, and which modules have found some.
    ///
    /// # Errors
    ///
    /// If a module gives no valid response, or no module of the kind decides.
    pub async fn validation(
        &self,
        input: inputs::Input,
        facts: inputs::Facts,
    ) -> Result<(Vec<Violation>, DecidedBy), Failed> {
        let mut request = PolicyRequest::Validation(Box::new((input, facts)));
        let chain = self.chain(Kind::Validation)?;
        let (mut all, mut by) = (Vec::new(), DecidedBy::default());
        for index in 0..chain.enforced.len() {
            match self.ask(chain, index, &mut request).await? {
                PolicyResponse::Violations(violations) if violations.is_empty() => {}
                PolicyResponse::Violations(violations) => {
                    by.add(&chain.enforced[index], &request);
                    all.extend(violations);
                }
                _ => return Err(self.another_answer()),
            }
        }
        self.shadow(chain, request, || (String::new(), PolicyResponse::Violations(all.clone())));
        Ok((all, by))
    }

    /// The first response that decides and whose it is, or `otherwise` if none does.
    async fn first(
        &self,
        mut request: PolicyRequest,
        decides: fn(&PolicyResponse) -> bool,
        otherwise: PolicyResponse,
    ) -> Result<(PolicyResponse, DecidedBy), Failed> {
        let chain = self.chain(request.kind())?;
        let (mut response, mut by) = (otherwise, DecidedBy::default());
        for index in 0..chain.enforced.len() {
            let given = self.ask(chain, index, &mut request).await?;
            if decides(&given) {
                by.add(&chain.enforced[index], &request);
                response = given;
                break;
            }
        }
        let name = || by.modules.first().map(|module| module.name.clone()).unwrap_or_default();
        self.shadow(chain, request, || (name(), response.clone()));
        Ok((response, by))
    }

    /// The failure for a response of the wrong type. It never allows the request.
    fn another_answer(&self) -> Failed {
        Failed { module: "(chain)".into(), failure: Failure::Contract("the answer is none to the question".into()) }
    }

    fn chain(&self, kind: Kind) -> Result<&Chain, Failed> {
        let chain = self.set.chain(kind);
        let missing = || Failure::Sandbox("no module of this kind is loaded".into());
        if chain.enforced.is_empty() {
            return Err(Failed { module: format!("({kind})"), failure: missing() });
        }
        Ok(chain)
    }

    /// Asks a module, which gets the facts that it wants. A decision that takes long is made on another thread.
    async fn ask(&self, chain: &Chain, index: usize, request: &mut PolicyRequest) -> Result<PolicyResponse, Failed> {
        let decider = &chain.enforced[index];
        if !self.set.wanted.is_empty() {
            request.set_attributes(self.facts.attributes(decider.module.facts));
        }
        let started = self.observer.clock.moment();
        let response = if let Some(response) = decider.ask_briefly(request) {
            decider.guard.note(false, started);
            decider.guard.note_long(false);
            response
        } else if decider.guard.may_try(started) {
            long_decision::ask(&self.set, index, request, &self.observer.clock).await
        } else {
            Err(decider.failed(Failure::Breaker))
        };
        let took = self.observer.clock.moment().since(started);
        if self.is_recorded {
            self.observer.note(&self.set, self.request_id, decider, request, &response, took);
        }
        response
    }

    fn shadow(&self, chain: &Chain, request: PolicyRequest, decided: impl FnOnce() -> (String, PolicyResponse)) {
        if self.is_recorded && !chain.shadows.is_empty() {
            self.observer.shadows.ask(self.set.clone(), self.request_id, request, self.facts.clone(), decided());
        }
    }
}
