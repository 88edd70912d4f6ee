//! Pages of operators: accounts, Teams, nodes, policies and health.

pub(crate) mod accounts;
pub(crate) mod health;
pub(crate) mod nodes;
pub(crate) mod policies;
pub(crate) mod teams;

use culvert_domain::error::Result;
use culvert_service::operators::Operator;
use maud::{Markup, html};

use crate::form::KEY;
use crate::view::field;
use crate::visit::Visit;

/// The operator who is signed in; nobody else finds these pages.
fn operator(visit: &Visit) -> Result<Operator> {
    Operator::of(&visit.sign_in)
}

/// The plan of an account or a Team, to be changed.
fn plan(visit: &Visit, path: &str, plan: &str, whose: &str) -> Markup {
    html! {
        form.button-form method="post" action=(path) {
            (field::hidden(KEY, &visit.form_key(path)))
            input name="plan" value=(plan) size="12" required aria-label={ "Plan of " (whose) };
            button type="submit" { "Set" }
        }
    }
}
