//! Where shadow modules would have decided otherwise.

use culvert_domain::error::Result;
use maud::{Markup, html};

use super::operator;
use super::policies::PATH;
use crate::view::{page, time};
use crate::visit::Visit;

pub(crate) fn show(visit: &Visit) -> Result<Markup> {
    let differences = visit.service().shadow_differences(&operator(visit)?);
    let content = html! {
        p { "The newest 200 decisions in which a module of the mode " code { "shadow" } " answered otherwise than the policies that decide, or failed, \
            since this host has started. " a href=(PATH) { "The policies" } }
        @if differences.is_empty() { p.empty { "No shadow module has disagreed." } } @else {
            div.scroll role="region" aria-label="Shadow differences" tabindex="0" { table {
                thead { tr { th { "When" } th { "Kind" } th { "Shadow" } th { "Was decided" } th { "The shadow said" } th { "Request" } } }
                tbody { @for one in &differences { tr {
                    td { (time::at(one.at)) }
                    td { (one.kind) div.muted { "generation " (one.generation) } }
                    td { (one.module) }
                    td { (one.decided) }
                    td.long { (one.shadow) }
                    td { @if let Some(id) = one.request_id { code { (id) } } @else { "–" } }
                } } }
            } }
        }
    };
    Ok(page::signed_in(visit, "Shadow differences", &content))
}
