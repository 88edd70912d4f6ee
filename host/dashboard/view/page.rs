//! The frame of every page.

use maud::{DOCTYPE, Markup, html};

use super::{advice, field, refusal};
use crate::form::KEY;
use crate::path::{OPERATOR_LIVE, SIGN_OUT};
use crate::visit::Visit;
use crate::{ROOT, assets};

/// When a page is loaded anew.
#[derive(Default)]
struct Renewal {
    /// The stream that tells of changes.
    live: Option<String>,
    /// Whether something is under way, so that a browser without script looks again.
    reloads: bool,
    /// Seconds until the sign-in ends, unless it is used before.
    ends_in: Option<i64>,
}

fn frame(title: &str, renewal: &Renewal, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                @if renewal.reloads { noscript { meta http-equiv="refresh" content="2"; } }
                title { (title) " · Culvert" }
                link rel="icon" href=(assets::icon());
                link rel="stylesheet" href=(assets::style_sheet());
                script src=(assets::script()) defer {}
            }
            body data-live=[renewal.live.as_ref()] data-ends-in=[renewal.ends_in] { a.skip href="#content" { "To the content" } (body) }
        }
    }
}

/// A page with a frame of its own.
pub(crate) fn plain(title: &str, body: &Markup) -> Markup {
    frame(title, &Renewal::default(), body)
}

/// A page for somebody who is not signed in.
pub(crate) fn narrow(title: &str, docs_url: &str, content: &Markup) -> Markup {
    frame(
        title,
        &Renewal::default(),
        &html! {
            main #content .narrow {
                p.brand { "culvert" }
                h1 { (title) }
                (content)
                p.muted { a href=(docs_url) { "Documentation" } }
            }
        },
    )
}

pub(crate) fn signed_in(visit: &Visit, title: &str, content: &Markup) -> Markup {
    reloading(visit, title, false, content)
}

/// As [`signed_in`]; without script, the page is loaded again every two seconds while something is under way.
pub(crate) fn reloading(visit: &Visit, title: &str, reloads: bool, content: &Markup) -> Markup {
    let refused = visit.refused.as_ref();
    let is_operators = visit.path.starts_with("/dashboard/operator/");
    let live = if is_operators { format!("{ROOT}/{OPERATOR_LIVE}") } else { visit.in_scope("/live") };
    let live = visit.is_live.then_some(live);
    let ends_in = visit.dashboard.sign_ins.end_of(&visit.sign_in) - visit.service().clock().now();
    frame(
        title,
        &Renewal { live, reloads: reloads && visit.is_live, ends_in: Some(ends_in.num_seconds()) },
        &html! {
            (header(visit))
            div.columns {
                (navigation(visit))
                main #content {
                    h1 { (title) }
                    p.muted #live role="status" hidden {}
                    @if let Some(refused) = refused {
                        (refusal::error(&refused.error))
                        (advice::about(&refused.error.code, &visit.dashboard.docs_url))
                        @if let Some(id) = visit.policies.request_id() {
                            p { a href=(visit.in_scope(&format!("/explain/{id}"))) { "Why was this refused?" } }
                        }
                    }
                    @if visit.held.is_some() {
                        p.notice.ok role="status" { "You have proved who you are. Look at what you typed, and send it again." }
                    }
                    (content)
                }
            }
        },
    )
}

fn header(visit: &Visit) -> Markup {
    html! {
        header {
            a.brand href=(ROOT) { "culvert" }
            nav aria-label="Scopes" {
                a href=(format!("{ROOT}/me")) aria-current=[(visit.caller.role.is_none()).then_some("true")] { "Personal" }
                @for team in &visit.teams {
                    a href=(format!("{ROOT}/{}", team.id))
                        aria-current=[(team.id == visit.caller.scope.id).then_some("true")] { (team.name) }
                }
            }
            nav.own aria-label="Account" {
                a href=(visit.in_scope("/search")) data-palette { "Search" }
                a href=(visit.dashboard.docs_url) { "Documentation" }
                a href=(format!("{ROOT}/account")) { (visit.sign_in.name) }
                form.button-form method="post" action=(SIGN_OUT) {
                    (field::hidden(KEY, &visit.form_key(SIGN_OUT)))
                    button type="submit" { "Sign out" }
                }
            }
        }
    }
}

/// Pages of a scope, each with the key that leads to it after `g`.
const PAGES: [(&str, &str, &str); 11] = [
    ("", "Overview", "h"),
    ("/tunnels", "Tunnels", "t"),
    ("/devices", "Devices", "d"),
    ("/operations", "Operations", "o"),
    ("/webhooks", "Webhooks", "w"),
    ("/usage", "Usage", "u"),
    ("/keys", "Keys", "k"),
    ("/team", "Team", "m"),
    ("/policies", "Policies", "p"),
    ("/explain", "Explain", "e"),
    ("/audit", "Audit", "a"),
];
/// Pages of operators.
const OPERATOR: [(&str, &str); 5] =
    [("accounts", "Accounts"), ("teams", "Teams"), ("nodes", "Nodes"), ("policies", "Modules"), ("health", "Health")];

/// The pages that somebody can go to, by their paths.
pub(crate) fn pages(visit: &Visit) -> Vec<(String, &'static str)> {
    let of_scope = PAGES.iter().map(|(path, label, _)| (visit.in_scope(path), *label));
    let of_operator = OPERATOR.iter().filter(|_| visit.sign_in.is_operator);
    let account = (format!("{ROOT}/account"), "Account");
    of_scope
        .chain(of_operator.map(|(path, label)| (format!("{ROOT}/operator/{path}"), *label)))
        .chain([account])
        .collect()
}

fn navigation(visit: &Visit) -> Markup {
    html! {
        nav.side aria-label="Pages" {
            @for (path, label, key) in PAGES {
                @let path = visit.in_scope(path);
                a href=(path) data-key=(key) aria-current=[(path == visit.path).then_some("page")] { (label) }
            }
            @if visit.sign_in.is_operator {
                @for (path, label) in OPERATOR {
                    @let path = format!("{ROOT}/operator/{path}");
                    a.operator href=(path) aria-current=[(path == visit.path).then_some("page")] { (label) }
                }
            }
        }
    }
}
