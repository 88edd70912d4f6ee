//! Pages of operators: accounts, nodes and policies.

pub(crate) mod accounts;
pub(crate) mod nodes;
pub(crate) mod policies;

use culvert_domain::error::Result;
use culvert_service::operators::Operator;

use crate::visit::Visit;

/// The operator who is signed in; nobody else finds these pages.
fn operator(visit: &Visit) -> Result<Operator> {
    Operator::of(&visit.sign_in)
}
