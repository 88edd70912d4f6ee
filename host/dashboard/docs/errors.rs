//! What every code means, in one page: `type` of a problem record leads here (RFC 9457, section 3.1.1).

use culvert_domain::error::Code;
use culvert_service::gate::PolicyCode;
use maud::{Markup, html};
use salvo::http::StatusCode;

use super::{book, frame};

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
        h2 #dashboard { "Dashboard" }
        p { "These codes stand on pages of the dashboard alone." }
        @for code in of_dashboard { (section(code, status_of)) }
    };
    frame::page("Error codes", content, "/docs/errors")
}

fn section(code: &Code, status_of: fn(&Code) -> StatusCode) -> Markup {
    html! {
        section id=(code.as_str()) {
            h2 { code { (code.as_str()) } " " span.muted { (status_of(code).as_u16()) } }
            p { (code.title()) ". " (book::inline(code.explanation())) }
        }
    }
}
