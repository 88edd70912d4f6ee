//! Why requests were refused: which check, which module and rule, and on what facts.

use culvert_domain::caller::Role;
use culvert_domain::error::{Code, Result};
use culvert_domain::refusal::Refusal;
use culvert_domain::refused_by::{RefusedBy, Stage};
use culvert_domain::string_enum::StringEnum;
use maud::{Markup, html};
use serde_json::Value;
use uuid::Uuid;

use crate::ROOT;
use crate::docs::book::inline;
use crate::view::{badge, field, list, page, time};
use crate::visit::Visit;

/// Facts that are shown of a question.
const FACTS: usize = 60;

pub(crate) async fn list(visit: &Visit) -> Result<Markup> {
    let path = visit.in_scope("/explain");
    let sought = visit.sought();
    let refusals = match Uuid::parse_str(sought) {
        Ok(id) => visit.service().refusal(&visit.caller, id).await.map(|refusal| (vec![refusal], None)),
        Err(_) => visit.service().refusals(&visit.caller, visit.page()).await.map(|page| (page.rows, page.next)),
    };
    let (refusals, next) = match refusals {
        Err(error) if error.code == Code::NotFound => (Vec::new(), None),
        refusals => refusals?,
    };
    let lost = visit.dashboard.refusals.lost();
    let content = html! {
        p { "Every refused request of the last 30 days, with the check that refused it. The API tells the id of each request as "
            code { "request_id" } "." }
        form method="get" action=(path) role="search" {
            (field::text(&field::Field { name: "find", label: "Find by request id", value: sought, ..field::Field::default() }))
            button type="submit" { "Find" }
        }
        @if lost > 0 { p.notice.warn { "There are gaps: since the host started, " (lost) " refusals came too fast to be kept." } }
        @if refusals.is_empty() {
            p.empty { @if sought.is_empty() { "Nothing was refused." } @else { "Nothing is known of that request. " a href=(path) { "All refusals" } } }
        } @else {
            div.scroll role="region" aria-label="Refused requests" tabindex="0" { table {
                thead { tr { th { "When" } th { "Request" } th { "Refused with" } th { "By" } th {} } }
                tbody { @for refusal in &refusals { tr {
                    td { (time::at(refusal.at)) }
                    td.long { code { (refusal.method) " " (refusal.path) } }
                    td { (badge::plain(&refusal.status.to_string())) " " code { (refusal.code) } }
                    td { (refusal.stage) @if let Some(rule) = &refusal.rule { div.muted { (rule) } } }
                    td { a href=(format!("{path}/{}", refusal.request_id)) { "Why" } }
                } } }
            } }
            (list::more(visit.next(next).as_deref()))
        }
    };
    Ok(page::signed_in(visit, "Explain", &content))
}

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let refusal = visit.service().refusal(&visit.caller, visit.id()?).await?;
    let who = if refusal.account_id == visit.caller.account_id { "you" } else { "another member" };
    let content = html! {
        p { code { (refusal.method) " " (refusal.path) } }
        p.muted { (time::at(refusal.at)) ", by " (who) " with a " (refusal.credential) " (" code { (refusal.credential_id) } ")" }
        div.notice.bad {
            p { strong { (refusal.status) " " (refusal.code) } }
            p { (refusal.detail) }
            @if !refusal.faults.is_empty() { ul { @for fault in &refusal.faults {
                li { code { (fault.field) } " " (fault.message) @if let Some(rule) = &fault.rule { " (rule " code { (rule) } ")" } }
            } } }
        }
        section { h2 { "Checks" } (checks(&refusal)) }
        @if let Some(by) = &refusal.refused_by { (decided(visit, &refusal, by)) }
        section { h2 { "What to do" } (advice(visit, &refusal)) (whom_to_ask(visit, &refusal).await?) }
        p.muted { "Request " code { (refusal.request_id) } }
    };
    Ok(page::signed_in(visit, "Why refused", &content))
}

/// The checks in their order: those before the one that refused have passed, those after it were not made.
fn checks(refusal: &Refusal) -> Markup {
    let refused = Stage::ALL.iter().position(|stage| *stage == refusal.stage).unwrap_or_default();
    html! {
        ol.checks { @for (place, stage) in Stage::ALL.iter().enumerate() {
            li {
                (about(*stage)) " "
                @if place < refused { (badge::good("passed")) }
                @else if place == refused { (badge::bad("refused")) }
                @else { (badge::plain("not reached")) }
            }
        } }
    }
}

fn about(stage: Stage) -> &'static str {
    match stage {
        Stage::Rate => "How often the key or the sign-in is used",
        Stage::Route => "There is such a route, and it takes this method",
        Stage::Permission => "The key has the scope that the action needs, or the person has just proved who it is",
        Stage::Body => "The body can be read",
        Stage::Replay => "The idempotency key was not used for another request",
        Stage::Resource => "The resource is in the scope",
        Stage::PlanAccess => "The plan allows it (plan-access)",
        Stage::TeamRole => "The role in the Team allows it (team-role)",
        Stage::Validation => "The fields are valid (validation)",
        Stage::State => "The present state allows it",
    }
}

fn decided(visit: &Visit, refusal: &Refusal, by: &RefusedBy) -> Markup {
    let rules = refusal.rule.iter().chain(refusal.faults.iter().filter_map(|fault| fault.rule.as_ref()));
    let mut rules: Vec<&String> = rules.collect();
    rules.sort_unstable();
    rules.dedup();
    let summary = |rule: &str| by.modules.iter().find_map(|module| visit.service().rule_summary(&module.sha256, rule));
    html! {
        section {
            h2 { "The policy" }
            ul { @for rule in rules {
                li { "Rule " code { (rule) } @if let Some(summary) = summary(rule) { ": “" (summary) "”" } }
            } }
            ul { @for module in &by.modules {
                li { (module.name) " " (module.version) ", generation " (by.generation) div.muted { "SHA-256 " code.long { (module.sha256) } } }
            } }
            h3 { "What it saw" }
            @if by.question.is_empty() { p.muted { "The question was too long to be kept." } } @else {
                dl.facts { @for (name, value) in facts(&by.question) { dt { code { (name) } } dd { code { (value) } } } }
            }
        }
    }
}

/// A question as names and values, in its order.
fn facts(question: &str) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    if let Ok(question) = serde_json::from_str(question) {
        flatten("", &question, &mut facts);
    }
    facts.truncate(FACTS);
    facts
}

fn flatten(name: &str, value: &Value, facts: &mut Vec<(String, String)>) {
    let joined = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(part, value)| flatten(&joined(part), value, facts));
        }
        Value::Array(items) if name.ends_with("attributes") => {
            items.iter().for_each(|attribute| facts.extend(known(attribute)));
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().for_each(|(place, value)| flatten(&joined(&place.to_string()), value, facts));
        }
        Value::Null => {}
        Value::String(text) => facts.push((name.to_owned(), text.clone())),
        other => facts.push((name.to_owned(), other.to_string())),
    }
}

/// Who may do what a member may not.
async fn whom_to_ask(visit: &Visit, refusal: &Refusal) -> Result<Markup> {
    let question = refusal.refused_by.as_ref().and_then(|by| serde_json::from_str::<Value>(&by.question).ok());
    let is_member = question.is_some_and(|question| question["caller"]["role"] == Role::Member.as_str());
    let asked = if is_member { visit.service().managers(&visit.caller).await? } else { Vec::new() };
    let names: Vec<&str> = asked.iter().map(|manager| manager.name.as_str()).collect();
    Ok(html! { @if !names.is_empty() { p { "Owners and admins of the Team: " (names.join(", ")) "." } } })
}

/// An attribute that the module was told of; none where there was nothing to tell.
fn known(attribute: &Value) -> Option<(String, String)> {
    let (name, value) = (attribute["name"].as_str()?, attribute["value"].as_str()?);
    (value != "null").then(|| (name.to_owned(), value.to_owned()))
}

fn advice(visit: &Visit, refusal: &Refusal) -> Markup {
    let code = Code::from_policy(refusal.code.clone());
    let own = visit.service().policy_codes().into_iter().find(|known| known.code == refusal.code);
    let text = own.map_or_else(|| code.explanation().to_owned(), |known| known.text);
    html! {
        p { (inline(&text)) }
        p { a href=(format!("{}/errors#{}", visit.dashboard.docs_url, refusal.code)) { "About this code" } }
        @if refusal.refused_by.is_some() && visit.sign_in.is_operator {
            p { a href=(format!("{ROOT}/operator/policies")) { "How would a new module decide?" } }
        }
    }
}
