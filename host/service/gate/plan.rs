//! What a plan includes is upheld by the host as well: a module that says what its plan includes need not check it.

use super::UsageRequest;
use culvert_domain::action::Action;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::plan::Entitlement;
use culvert_domain::string_enum::StringEnum;
use culvert_domain::usage::Counters;

/// Checks the features that a request needs, and the number of webhook endpoints. The numbers of tunnels and extra ports
/// are checked where they are created.
///
/// # Errors
///
/// [`Code::FeatureNotAvailable`] or [`Code::PlanLimitReached`].
pub(super) fn check(plan: &Entitlement, action: Action, counters: Counters, wants: &UsageRequest) -> Result<()> {
    let missing =
        |what: String| Err(Error::new(Code::FeatureNotAvailable, format!("The plan does not include {what}.")));
    if let Some(remote) = action.remote()
        && !plan.remote_actions.iter().any(|included| included == remote.as_str())
    {
        return missing(format!("the remote action `{remote}`"));
    }
    if wants.premium_network && !plan.premium_network {
        return missing("the premium network (`pro_network`)".into());
    }
    if matches!(action, Action::TunnelsAssignDomain | Action::TunnelsVerifyDomain) && !plan.custom_domains {
        return missing("custom domains".into());
    }
    let used = counters.webhook_endpoints;
    match plan.webhook_endpoints.filter(|limit| action == Action::WebhooksCreate && used >= *limit) {
        Some(limit) => {
            let detail = format!("The plan includes {limit} webhook endpoints; {used} exist.");
            Err(Error::new(Code::PlanLimitReached, detail))
        }
        None => Ok(()),
    }
}
