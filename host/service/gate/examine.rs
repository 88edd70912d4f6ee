//! What policies say of a request that nobody makes: for an audit of what exists.

use super::{FactSources, PinnedPolicies, RequestDraft, unavailable, wit_input};
use culvert_domain::action::Action;
use culvert_domain::caller::Caller;
use culvert_domain::error::Result;
use culvert_domain::facts::{Resource, ResourceFacts};
use culvert_policy::engine::bindings::types::Violation;
use culvert_policy::serve::pinned::Denied;
use culvert_store::Store;

/// What would be refused.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The code of a denial; none for a violation.
    pub code: Option<String>,
    /// The field of a violation; none for a denial.
    pub field: Option<String>,
    pub rule: String,
    pub message: String,
}

/// Asks the validation and the Team role policies about a request, and nothing else. `change` makes the facts what they
/// would be.
///
/// # Errors
///
/// [`culvert_domain::error::Code::PolicyUnavailable`] if a policy fails; if the database fails.
pub(crate) async fn examine<D: RequestDraft>(
    store: &Store,
    policies: &PinnedPolicies,
    caller: &Caller,
    action: Action,
    subject: Resource,
    draft: &D,
    change: impl FnOnce(&mut ResourceFacts),
) -> Result<Vec<Refusal>> {
    let wanted = policies.pinned().wanted();
    let mut facts = store.facts(caller, subject, wanted).await?;
    change(&mut facts);
    let context = &policies.context;
    let sources = FactSources { context, caller, action, facts: &facts, devices: &[], input: draft.input() };
    let asked = policies.pinned().with_facts(sources.values(wanted));
    let mut refusals = Vec::new();
    let verdict = asked.team_role(wit_input::role_ask(caller, action, &facts, &[])).await.map_err(unavailable)?;
    if let Some(Denied { denial, .. }) = verdict {
        refusals.push(Refusal { code: Some(denial.code), field: None, rule: denial.rule, message: denial.detail });
    }
    if let Some(input) = draft.input() {
        let about = wit_input::input_facts(caller, &facts, &[]);
        let (violations, _) = asked.validation(wit_input::input(input, &facts), about).await.map_err(unavailable)?;
        refusals.extend(violations.into_iter().map(|Violation { field, message, rule }| Refusal {
            code: None,
            field: Some(field),
            rule,
            message,
        }));
    }
    Ok(refusals)
}
