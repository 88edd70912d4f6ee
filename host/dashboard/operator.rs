//! Pages of operators: accounts, Teams, nodes, policies and health.

pub(crate) mod accounts;
pub(crate) mod health;
pub(crate) mod nodes;
pub(crate) mod policies;
pub(crate) mod policy_plan;
pub(crate) mod shadows;
pub(crate) mod teams;

use culvert_domain::error::Result;
use culvert_service::operators::Operator;
use maud::{Markup, html};
use uuid::Uuid;

use crate::form::row_field;
use crate::view::field;
use crate::visit::Visit;

/// The field of a row that holds a plan.
const PLAN: &str = "plan";

/// The operator who is signed in; nobody else finds these pages.
fn operator(visit: &Visit) -> Result<Operator> {
    Operator::of(&visit.sign_in)
}

/// The plan of an account or a Team, to be changed.
fn plan(visit: &Visit, path: &str, id: Uuid, plan: &str, whose: &str) -> Markup {
    let name = row_field(PLAN, id);
    let (typed, fault) = (visit.typed(&name).unwrap_or(plan), visit.fault(&name));
    let control = html! {
        input id=(name) name=(name) value=(typed) size="12" required aria-label={ "Plan of " (whose) }
            aria-invalid=[fault.map(|_| "true")] aria-describedby=[fault.map(|_| format!("{name}-fault"))];
    };
    field::in_row(visit, path, &name, &control, "Set")
}
