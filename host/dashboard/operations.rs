//! Operations: what devices were asked to do, and what became of it.

use culvert_domain::error::Result;
use culvert_domain::operation::Operation;
use maud::{Markup, html};

use crate::docs::book::inline;
use crate::view::{advice, badge, list, page, time};
use crate::visit::Visit;

pub(crate) async fn list(visit: &Visit) -> Result<Markup> {
    let operations = visit.service().operations(&visit.caller, visit.page()).await?;
    let content = html! {
        @if operations.rows.is_empty() { p.empty { "Nothing was asked of a device in the last 30 days." } } @else {
            div.scroll role="region" aria-label="Operations" tabindex="0" { table {
                thead { tr { th { "Action" } th { "State" } th { "Asked" } th { "What came of it" } } }
                tbody {
                    @for operation in &operations.rows {
                        tr {
                            td { a href=(visit.in_scope(&format!("/operations/{}", operation.id))) { (operation.action) } }
                            td { (badge::operation(operation.status)) }
                            td { (time::at(operation.created_at)) }
                            td { (outcome(operation)) }
                        }
                    }
                }
            } }
            (list::more(visit.next(operations.next).as_deref()))
        }
    };
    Ok(page::signed_in(visit, "Operations", &content))
}

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let operation = visit.service().operation(&visit.caller, visit.id()?).await?;
    let content = html! {
        p.line { (badge::operation(operation.status)) " " (outcome(&operation)) }
        @if let Some(error) = &operation.error { p { (inline(advice::of_operation(&error.code))) } }
        @if let Some(tunnel_id) = operation.tunnel_id {
            p { a href=(visit.in_scope(&format!("/tunnels/{tunnel_id}"))) { "The tunnel" } }
        }
        dl {
            dt { "Asked" } dd { (time::at(operation.created_at)) }
            dt { "Claimed by the device" } dd { (time::maybe(operation.claimed_at, "not yet")) }
            dt { "Begun" } dd { (time::maybe(operation.started_at, "not yet")) }
            dt { "Ended" } dd { (time::maybe(operation.finished_at, "not yet")) }
            dt { "Id" } dd { code { (operation.id) } }
        }
    };
    let title = format!("{} of a device", operation.action);
    Ok(page::reloading(visit, &title, !operation.status.is_terminal(), &content))
}

fn outcome(operation: &Operation) -> Markup {
    html! {
        @if let Some(error) = &operation.error { (error.detail) " " code { (error.code.as_str()) } }
        @else if !operation.status.is_terminal() { "under way" }
    }
}
