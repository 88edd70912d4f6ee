//! The extra ports of a tunnel.

use culvert_api_types::read::read;
use culvert_api_types::requests::NewExtraPort;
use culvert_domain::action::Action;
use culvert_domain::error::{Error, Result};
use culvert_domain::facts::Resource;
use culvert_domain::port::ExtraPort;
use culvert_domain::protocol::Protocol;
use culvert_domain::string_enum::StringEnum;
use culvert_domain::tunnel::Tunnel;
use culvert_service::gate::Preview;
use culvert_service::ports::{CreateExtraPort, DeleteExtraPort};
use maud::{Markup, html};

use crate::answer::Answer;
use crate::form::KEY;
use crate::tunnels;
use crate::view::{field, page, refusal};
use crate::visit::{Posted, Visit};

const PAGE: &str = "{s}/tunnels/{id}/ports";
/// What the page has forms for.
const ACTIONS: [Action; 2] = [Action::TunnelsCreateExtraPort, Action::TunnelsDeleteExtraPort];

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let tunnel = visit.service().tunnel(&visit.caller, visit.id()?).await?;
    let may = visit.preview(Resource::Tunnel(tunnel.id), &ACTIONS).await?;
    let content = html! {
        p { a href=(visit.in_scope(&format!("/tunnels/{}", tunnel.id))) { "The tunnel " (tunnel.spec.name) } }
        @if tunnel.extra_ports.is_empty() {
            p.empty { "There are none yet. An extra port leads to another port of the same service, with the same rules for visitors." }
        } @else {
            div.scroll role="region" aria-label="Extra ports" tabindex="0" { table {
                thead { tr { th { "Public address" } th { "Protocol" } th { "Leads to port" } th { "Label" } th {} } }
                tbody { @for port in &tunnel.extra_ports { (row(visit, &tunnel, port, &may)) } }
            } }
        }
        section { h2 { "New extra port" } (refusal::form_unless(may.refusal(Action::TunnelsCreateExtraPort), new_port(visit, &tunnel))) }
    };
    Ok(page::signed_in(visit, "Extra ports", &content))
}

fn row(visit: &Visit, tunnel: &Tunnel, port: &ExtraPort, may: &Preview) -> Markup {
    let delete = visit.in_scope(&format!("/tunnels/{}/ports/{}/delete", tunnel.id, port.id));
    html! {
        tr {
            td { (tunnels::shown(&tunnel.extra_address(port))) }
            td { (port.protocol) }
            td { (port.local_port) }
            td { (port.label.as_deref().unwrap_or("–")) }
            td { (refusal::unless(may.refusal(Action::TunnelsDeleteExtraPort), "Remove", field::button(visit, &delete, "Remove"))) }
        }
    }
}

fn new_port(visit: &Visit, tunnel: &Tunnel) -> Markup {
    let path = visit.in_scope(&format!("/tunnels/{}/ports", tunnel.id));
    let text = |name, label, hint| field::Field { hint: Some(hint), ..field::typed(visit, name, label, "") };
    let protocols = Protocol::ALL.iter().map(|protocol| (protocol.as_str(), protocol.to_string()));
    html! {
        form method="post" action=(path) {
            (field::hidden(KEY, &visit.form_key(&path)))
            (field::text(&field::Field { inputmode: Some("numeric"), required: true,
                ..text("local_port", "Local port", "The port of the service, such as 8081.") }))
            (field::select("protocol", "Protocol", visit.typed("protocol").unwrap_or(tunnel.spec.protocol.as_str()),
                visit.fault("protocol"), protocols))
            (field::text(&text("label", "Label", "What it is for; may be empty.")))
            button type="submit" { "Add extra port" }
        }
    }
}

pub(crate) async fn create(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tunnel_id = visit.id()?;
    let body = read::<NewExtraPort>(Some(&posted.form.body(&["protocol", "label"], &["local_port"])));
    let change = |port| CreateExtraPort { tunnel_id, port };
    visit.change_with(&posted, Action::TunnelsCreateExtraPort, Resource::Tunnel(tunnel_id), body, change).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

pub(crate) async fn delete(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tunnel_id = visit.id()?;
    let port_id = visit.ids.get(1).copied().ok_or_else(Error::not_found)?;
    let change = |()| DeleteExtraPort { tunnel_id, port_id };
    visit.change(&posted, Action::TunnelsDeleteExtraPort, Resource::Tunnel(tunnel_id), change).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}
