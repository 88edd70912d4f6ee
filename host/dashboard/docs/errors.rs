//! What every code means, in one page: `type` of a problem record leads here (RFC 9457, section 3.1.1).

use culvert_domain::error::Code;
use culvert_domain::string_enum::StringEnum;
use culvert_domain::webhook::AttemptError;
use culvert_service::gate::PolicyCode;
use culvert_wire::failure_code::FailureCode;
use maud::{Markup, html};
use salvo::http::StatusCode;

use super::{book, frame};
use crate::view::advice;

/// What an operation ends with.
const OF_OPERATIONS: &[FailureCode] = &[
    FailureCode::DeviceDisconnected,
    FailureCode::ExecutionTimeout,
    FailureCode::AgentRejected,
    FailureCode::RemoteControlDisabled,
    FailureCode::DeviceNotAllowed,
    FailureCode::TargetNotAllowed,
    FailureCode::LocalTargetUnreachable,
    FailureCode::LocalTlsFailed,
    FailureCode::TunnelStartFailed,
    FailureCode::LeaseConflict,
    FailureCode::NodeUnavailable,
    FailureCode::UnsupportedAction,
    FailureCode::OutcomeUnknown,
    FailureCode::TunnelDeleted,
    FailureCode::DeviceRemoved,
    FailureCode::AccessLost,
    FailureCode::NotClaimed,
    FailureCode::InternalError,
];

pub(crate) fn page(policies: &[PolicyCode], status_of: fn(&Code) -> StatusCode) -> Markup {
    let is_own = |code: &str| Code::ALL.iter().any(|own| own.as_str() == code);
    let (of_dashboard, of_api): (Vec<&Code>, Vec<&Code>) = Code::ALL.iter().partition(|code| code.is_of_dashboard());
    let content = html! {
        h1 { "Error codes" }
        p { "Every error is a problem record (RFC 9457). Branch on " code { "code" } "." }
        @for code in of_api { (section(code, status_of)) }
        @for PolicyCode { code, text, policy } in policies.iter().filter(|policy| !is_own(&policy.code)) {
            section id=(code) {
                h2 { code { (code) } " " span.muted { "403" } }
                p { (book::inline(text)) }
                p.muted { "From the policy " (policy) "." }
            }
        }
        h2 #operations { "Operations" }
        p { "These codes stand in " code { "error.code" } " of an operation that has failed, expired or was canceled. The list is open." }
        @for (anchor, code, text) in of_operations() { (kept(&anchor, code, text)) }
        h2 #deliveries { "Deliveries of webhooks" }
        p { "These codes stand in " code { "error" } " of a delivery that has failed." }
        @for (anchor, code, text) in of_deliveries() { (kept(&anchor, code, text)) }
        h2 #dashboard { "Dashboard" }
        p { "These codes stand on pages of the dashboard alone." }
        @for code in of_dashboard { (section(code, status_of)) }
    };
    frame::page("Error codes", content, "/docs/errors")
}

/// The codes of operations, each with its anchor and what to do.
pub(super) fn of_operations() -> impl Iterator<Item = (String, &'static str, &'static str)> {
    OF_OPERATIONS.iter().map(|code| (format!("operation-{code}"), code.as_str(), advice::of_operation(code)))
}

/// The codes of deliveries, each with its anchor and what to do.
pub(super) fn of_deliveries() -> impl Iterator<Item = (String, &'static str, &'static str)> {
    AttemptError::ALL.iter().map(|error| (format!("delivery-{error}"), error.as_str(), advice::of_delivery(*error)))
}

/// A code that stands in a resource, and not in a problem record.
fn kept(anchor: &str, code: &str, text: &str) -> Markup {
    html! {
        section id=(anchor) {
            h3 { code { (code) } }
            p { (book::inline(text)) }
        }
    }
}

fn section(code: &Code, status_of: fn(&Code) -> StatusCode) -> Markup {
    html! {
        section id=(code.as_str()) {
            h2 { code { (code.as_str()) } " " span.muted { (status_of(code).as_u16()) } }
            p { (code.title()) ". " (book::inline(code.explanation())) }
        }
    }
}
