//! The policies that decide for a scope: which modules, and what their rules say.

use culvert_domain::error::Result;
use culvert_service::policy_modules::PolicyModule;
use maud::{Markup, html};

use crate::view::{badge, page};
use crate::visit::Visit;

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let modules = visit.service().policy_modules();
    let refused = visit.service().refused_by_rule(&visit.caller).await?;
    let counted = |rule: &str| refused.iter().find(|(name, _)| name == rule).map(|(_, count)| *count);
    let content = html! {
        p {
            "Each change of the API and of these pages is put to the policies of the installation: whether the plan allows it, whether the role in the Team does, "
            "and whether its fields are valid. Generation " strong { (visit.policies.generation()) } " decides. "
            a href=(format!("{}/policies", visit.dashboard.docs_url)) { "About policies" }
        }
        @for module in &modules {
            section {
                h2 { (module.name) " " (module.version) }
                (about(module))
                @if module.rules.is_empty() { p.empty { "It tells of no rules." } } @else {
                    div.scroll role="region" aria-label=(format!("Rules of {}", module.name)) tabindex="0" { table {
                        thead { tr { th { "Rule" } th { "What it says" } th { "Refused in 24 hours" span.muted { " (of 1,000 at most)" } } } }
                        tbody { @for (rule, summary) in &module.rules { tr {
                            td { code { (rule) } }
                            td.long { (summary) }
                            td { @match counted(rule) { Some(count) => a href=(visit.in_scope("/explain")) { (count) }, None => "0" } }
                        } } }
                    } }
                }
            }
        }
    };
    Ok(page::signed_in(visit, "Policies", &content))
}

fn about(module: &PolicyModule) -> Markup {
    html! {
        dl.facts {
            dt { "Kind" } dd { (module.kind) @if module.is_shadow { " " (badge::plain("shadow: asked, and decides nothing")) }
                @if module.is_away { " " (badge::warning("not asked for a while: it timed out")) } }
            dt { "Source" } dd { (module.source) @if module.is_signed { ", signed" } }
            dt { "SHA-256" } dd { code.long { (module.sha256) } }
            @if !module.facts.is_empty() { dt { "Facts that it asks for" } dd { (module.facts.join(", ")) } }
        }
    }
}
