//! The audit log of a scope: who has changed what.

use culvert_domain::audit_log::{Actor, Entry, KEPT, Origin};
use culvert_domain::error::Result;
use maud::{Markup, html};
use serde_json::{Map, Value};

use crate::view::{field, list, page, time};
use crate::visit::Visit;

pub(crate) async fn list(visit: &Visit) -> Result<Markup> {
    let entries = visit.service().audit_entries(&visit.caller, visit.page()).await?;
    let content = html! {
        p { "Every change of the last " (KEPT.num_days()) " days, by whomever and by whatever it was made. Entries are chained, so that "
            "one that is altered or missing is found by " code { "culvert audit verify" } "." }
        @if visit.caller.own_alone().is_some() { p.muted { "You see your own changes." } }
        @if entries.rows.is_empty() { p.empty { "Nothing was changed." } } @else {
            div.scroll role="region" aria-label="Changes" tabindex="0" { table {
                thead { tr { th { "When" } th { "Who" } th { "Action" } th { "What was asked for" } } }
                tbody { @for (entry, name) in &entries.rows { (row(entry, name.as_deref())) } }
            } }
            (list::more(visit.next(entries.next).as_deref()))
        }
        section {
            h2 { "Export" }
            p.muted { "The newest 100,000 entries at most. The export is an entry itself." }
            @let path = visit.in_scope("/audit/export");
            div.row {
                (field::button_with(visit, &path, "Export as CSV", &[("format", "csv")]))
                (field::button_with(visit, &path, "Export as JSON lines", &[("format", "jsonl")]))
            }
        }
    };
    Ok(page::signed_in(visit, "Audit", &content))
}

fn row(entry: &Entry, name: Option<&str>) -> Markup {
    html! {
        tr {
            td { (time::at(entry.at)) }
            td.long { (name.unwrap_or_else(|| nobody(entry.actor.origin))) div.muted { (by(&entry.actor)) } }
            td { code { (entry.action) } }
            td.long {
                (asked(&entry.details))
                @if let Some(id) = entry.subject_id { div.muted { (id) } }
            }
        }
    }
}

/// Who it is where no account is named.
fn nobody(origin: Origin) -> &'static str {
    if origin == Origin::Dashboard { "somebody at the sign-in page" } else { "the operator" }
}

/// The fields of what was asked for, without those that say nothing.
fn asked(details: &str) -> Markup {
    let fields: Map<String, Value> = serde_json::from_str(details).unwrap_or_default();
    html! {
        @for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            div { span.muted { (name) } " " code { @if let Value::String(text) = value { (text) } @else { (value) } } }
        }
    }
}

fn by(actor: &Actor) -> String {
    let by = match actor.origin {
        Origin::Api => "by an API key",
        Origin::Dashboard => "in the dashboard",
        Origin::Cli => "by a command on the host's machine",
        Origin::Agent => "at a device",
    };
    if actor.address.is_empty() { by.to_owned() } else { format!("{by}, from {}", actor.address) }
}
