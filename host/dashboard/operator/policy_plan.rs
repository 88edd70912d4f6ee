//! What a reload of the policies would change, shown before it is done.

use culvert_domain::error::Result;
use culvert_service::operators::policies_kept;
use maud::{Markup, html};
use salvo::http::StatusCode;

use super::operator;
use super::policies::PATH;
use crate::answer::Answer;
use crate::view::page;
use crate::visit::{Posted, Visit};

/// Rows of changed decisions that are shown.
const SHOWN: usize = 100;

/// What the configuration file names now, beside what is in use.
pub struct WouldChange {
    pub modules: usize,
    /// Modules by kind, name and version.
    pub comes: Vec<String>,
    pub goes: Vec<String>,
    pub is_reordered: bool,
    /// None where no decisions are recorded.
    pub decisions: Option<ChangedDecisions>,
    /// The same of each other host, or why it cannot load or compare the policies.
    pub others: Vec<(String, std::result::Result<Option<ChangedDecisions>, String>)>,
}

/// What would become of the decisions of the last hour on record.
pub struct ChangedDecisions {
    pub all: usize,
    pub changed: usize,
    /// Scope, account, action, what was decided, what would be, and how many times.
    pub rows: Vec<[String; 6]>,
    /// What could not be compared.
    pub notes: Vec<String>,
}

pub(crate) async fn show(visit: &Visit, _: Posted) -> Result<Answer> {
    operator(visit)?;
    let plan = (visit.dashboard.plan_policies)().await.map_err(|problem| policies_kept(&problem))?;
    let content = html! {
        p { "Nothing was taken over. " (plan.modules) " modules can be loaded, and pass their cases. " a href=(PATH) { "The policies" } }
        section { h2 { "Modules" } (modules(&plan)) }
        section { h2 { "Decisions" } (decisions(plan.decisions.as_ref())) }
        @for (host, found) in &plan.others {
            section { h2 { "Decisions at host " (host) } (at_host(found)) }
        }
    };
    Ok(Answer::page(StatusCode::OK, page::signed_in(visit, "What a reload would change", &content)))
}

fn modules(plan: &WouldChange) -> Markup {
    html! {
        @if plan.goes.is_empty() && plan.comes.is_empty() && !plan.is_reordered { p.empty { "They are the ones that are in use." } }
        @if plan.is_reordered { p { "Their order changes." } }
        ul {
            @for module in &plan.goes { li { "goes: " code { (module) } } }
            @for module in &plan.comes { li { "comes: " code { (module) } } }
        }
    }
}

fn at_host(found: &std::result::Result<Option<ChangedDecisions>, String>) -> Markup {
    match found {
        Ok(found) => decisions(found.as_ref()),
        Err(problem) => html! { p.error { (problem) } },
    }
}

fn decisions(decisions: Option<&ChangedDecisions>) -> Markup {
    let Some(ChangedDecisions { all, changed, rows, notes }) = decisions else {
        return html! { p.muted { "No decisions are recorded (" code { "decisions.file" } "), so nothing was compared." } };
    };
    html! {
        p { "The last hour on record: " (all) " decisions, " strong { (changed) " would change" } "." }
        @if !notes.is_empty() { ul.muted { @for note in notes { li { (note) } } } }
        @if !rows.is_empty() {
            div.scroll role="region" aria-label="Decisions that would change" tabindex="0" { table {
                thead { tr { th { "Scope" } th { "Account" } th { "Action" } th { "Was" } th { "Would be" } th { "Times" } } }
                tbody { @for row in rows.iter().take(SHOWN) { tr { @for cell in row { td { (cell) } } } } }
            } }
            @if rows.len() > SHOWN { p.muted { "And " (rows.len() - SHOWN) " more: " code { "culvert policy plan --json" } } }
        }
    }
}
