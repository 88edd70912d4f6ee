//! The sessions of a tunnel: when it ran, on which device, and what it carried; and what it carried by the hour.

use culvert_domain::error::Result;
use culvert_domain::session::Session;
use maud::{Markup, html};

use crate::hours;
use crate::view::{badge, bytes, list, page, time};
use crate::visit::Visit;

pub(crate) async fn list(visit: &Visit) -> Result<Markup> {
    let tunnel = visit.service().tunnel(&visit.caller, visit.id()?).await?;
    let sessions = visit.service().sessions_of(&tunnel, visit.page()).await?;
    let content = html! {
        p { a href=(visit.in_scope(&format!("/tunnels/{}", tunnel.id))) { "The tunnel " (tunnel.spec.name) } }
        @if sessions.rows.is_empty() { p.empty { "It has not run in the last 90 days." } } @else {
            div.scroll role="region" aria-label="Sessions" tabindex="0" { table {
                thead { tr { th { "Began" } th { "Lasted" } th { "Traffic" } th { "Device" } th { "Ended by" } } }
                tbody { @for session in &sessions.rows { (row(visit, session)) } }
            } }
            (list::more(visit.next(sessions.next).as_deref()))
        }
        (hours::section(visit, Some(tunnel.id)).await?)
    };
    Ok(page::signed_in(visit, "Sessions", &content))
}

fn row(visit: &Visit, session: &Session) -> Markup {
    let seconds = session.duration_seconds(visit.service().clock().now());
    let lasted = format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    html! {
        tr {
            td { (time::at(session.started_at)) }
            td { (lasted) }
            td { (bytes::traffic(session.traffic)) }
            td { a href=(visit.in_scope(&format!("/devices/{}", session.device_id))) { "the device" } }
            td { @match session.end_reason { Some(reason) => (reason), None => (badge::good("it runs")) } }
        }
    }
}
