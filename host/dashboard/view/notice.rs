//! Pages that are nothing but a notice.

use culvert_domain::error::{Code, Error};
use maud::{Markup, html};
use uuid::Uuid;

use crate::view::{advice, page, refusal};
use crate::{ROOT, Site};

/// What went wrong.
pub(crate) fn whole(error: &Error, docs_url: &str, request_id: Option<Uuid>) -> Markup {
    let content = html! {
        (refusal::error(error))
        (advice::about(&error.code, docs_url))
        @if let Some(id) = request_id { p.muted { "Request " code { (id) } } }
        @if error.code == Code::SignInRequired { p { a href=(format!("{ROOT}/sign-in")) { "Sign in" } } }
        @else if error.code == Code::SecondFactorRequired { p { a href=(format!("{ROOT}/account")) { "To your account" } } }
        @else { p { a href=(ROOT) { "To the overview" } } }
    };
    page::narrow(error.code.title(), docs_url, &content)
}

pub(crate) fn other_host(site: &Site) -> Markup {
    let content =
        html! { p { "The dashboard is at " a href=(format!("{}{ROOT}", site.origin)) { (site.origin) } "." } };
    page::narrow("Not here", &format!("{}/docs", site.origin), &content)
}

pub(crate) fn needs_https(site: &Site) -> Markup {
    let content = html! {
        p { "Nobody can sign in at " (site.origin) ", because passwords would cross the network in the clear." }
        p { "Put the host behind HTTPS, and set " code { "dashboard.url" } " to its address." }
    };
    page::narrow("Put the dashboard behind HTTPS", &format!("{}/docs", site.origin), &content)
}
