//! What a scope has, at a glance; for who begins, what to do first.

use culvert_domain::error::Result;
use culvert_domain::page::{CursorPosition, Page};
use culvert_service::gate;
use maud::{Markup, html};

use crate::view::{bytes, field, page};
use crate::visit::Visit;
use crate::{devices, tunnels};

/// Rows of each list.
const ROWS: u32 = 5;

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let (service, caller) = (visit.service(), &visit.caller);
    let first = Page { limit: ROWS, after: CursorPosition::START };
    let tunnels = service.tunnels(caller, first).await?;
    let devices = service.devices(caller, first).await?;
    let usage = service.scope_usage(caller).await?;
    let entitlement = gate::entitlement(&visit.policies, &caller.scope.plan).await?;
    let content = html! {
        @if devices.rows.is_empty() { (begin(visit)) }
        section {
            h2 { a href=(visit.in_scope("/tunnels")) { "Tunnels" } }
            @if tunnels.rows.is_empty() { p.empty { "None yet. " a href=(visit.in_scope("/tunnels/new")) { "Create the first" } } }
            @else { (tunnels::table(visit, &tunnels.rows)) }
        }
        @if !devices.rows.is_empty() {
            section {
                h2 { a href=(visit.in_scope("/devices")) { "Devices" } }
                (devices::table(visit, &devices.rows))
            }
        }
        section {
            h2 { "Plan" }
            dl {
                dt { "Plan" } dd { (caller.scope.plan) }
                dt { "Tunnels" } dd { (usage.total_tunnels) (of(entitlement.tunnel_limit)) ", " (usage.active_tunnels) " active" }
                dt { "This month" } dd {
                    (bytes::traffic(usage.bandwidth.month))
                    @if let Some(limit) = entitlement.bandwidth_limit_bytes { " of " (bytes::amount(limit)) }
                }
            }
        }
    };
    Ok(page::signed_in(visit, "Overview", &content))
}

fn of(limit: Option<u32>) -> String {
    limit.map_or_else(String::new, |limit| format!(" of {limit}"))
}

fn begin(visit: &Visit) -> Markup {
    html! {
        section.begin {
            h2 { "Begin" }
            ol {
                li { "Add a device: the machine with the service that others are to reach. "
                    (field::button(visit, &visit.in_scope("/devices/code"), "Add a device")) }
                li { a href=(visit.in_scope("/tunnels/new")) { "Create a tunnel" } " to a port of it." }
                li { "Start the tunnel on the device; its address is good for everybody." }
            }
        }
    }
}
