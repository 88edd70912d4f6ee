//! Search within a scope: pages, tunnels and devices by name, and requests by id.

use culvert_domain::error::Result;
use maud::{Markup, html};
use uuid::Uuid;

use crate::view::{field, page};
use crate::visit::Visit;

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let sought = visit.sought();
    let found = found(visit, sought).await?;
    let content = html! {
        form method="get" action=(visit.in_scope("/search")) role="search" {
            (field::text(&field::Field { name: "find", label: "A page, the name of a tunnel or a device, or the id of a request", value: sought,
                kind: "search", ..field::Field::default() }))
            button type="submit" { "Search" }
        }
        div data-narrows { (results(sought, &found)) }
    };
    Ok(page::signed_in(visit, "Search", &content))
}

/// A link, and what it leads to.
struct Hit {
    href: String,
    name: String,
    kind: &'static str,
}

async fn found(visit: &Visit, sought: &str) -> Result<Vec<Hit>> {
    if let Ok(id) = Uuid::parse_str(sought) {
        return by_id(visit, id).await;
    }
    let wanted = sought.to_lowercase();
    let pages = page::pages(visit).into_iter().filter(|(_, label)| label.to_lowercase().contains(&wanted));
    let mut hits: Vec<Hit> = pages.map(|(href, label)| Hit { href, name: label.to_owned(), kind: "page" }).collect();
    let named = visit.service().find_by_name(&visit.caller, sought).await?;
    hits.extend(named.tunnels.into_iter().map(|tunnel| Hit {
        href: visit.in_scope(&format!("/tunnels/{}", tunnel.id)),
        name: tunnel.name,
        kind: "tunnel",
    }));
    let devices = named.devices.into_iter();
    hits.extend(devices.map(|device| Hit {
        href: visit.in_scope(&format!("/devices/{}", device.id)),
        name: device.name,
        kind: "device",
    }));
    Ok(hits)
}

/// Whatever the scope has by an id: a tunnel, a device, an operation, or a request that was refused.
async fn by_id(visit: &Visit, id: Uuid) -> Result<Vec<Hit>> {
    let (service, caller) = (visit.service(), &visit.caller);
    let hit = |path: &str, name: String, kind| Hit { href: visit.in_scope(&format!("/{path}/{id}")), name, kind };
    let mut hits = Vec::new();
    if let Ok(tunnel) = service.tunnel(caller, id).await {
        hits.push(hit("tunnels", tunnel.spec.name, "tunnel"));
    }
    if let Ok(device) = service.device(caller, id).await {
        hits.push(hit("devices", crate::devices::name(&device), "device"));
    }
    if let Ok(operation) = service.operation(caller, id).await {
        hits.push(hit("operations", operation.action.to_string(), "operation"));
    }
    if let Ok(refusal) = service.refusal(caller, id).await {
        hits.push(hit("explain", format!("{} {}", refusal.method, refusal.path), "refused request"));
    }
    Ok(hits)
}

fn results(sought: &str, hits: &[Hit]) -> Markup {
    html! {
        @if hits.is_empty() && !sought.is_empty() { p.empty { "Nothing here has that name or id." } }
        ul.found { @for hit in hits { li { a href=(hit.href) { (hit.name) } " " span.muted { (hit.kind) } } } }
    }
}
