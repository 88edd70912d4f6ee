//! Tunnels: all of them, and one.

use culvert_api_types::json_tree::JsonTree;
use culvert_api_types::read::read;
use culvert_api_types::requests::StartTunnel;
use culvert_domain::action::Action;
use culvert_domain::device::Device;
use culvert_domain::error::{Error, Result};
use culvert_domain::facts::Resource;
use culvert_domain::operation::RemoteAction;
use culvert_domain::tunnel::{PublicAddress, Tunnel};
use culvert_domain::tunnel_devices::TunnelDevices;
use culvert_service::gate::Preview;
use culvert_service::operations::requests::{ActOnRunning, Start, check_on_running, check_start};
use maud::{Markup, html};
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::devices;
use crate::form::KEY;
use crate::requests::Shown;
use crate::view::{badge, bytes, field, list, page, plot, refusal};
use crate::visit::{Posted, Visit};

const PAGE: &str = "{s}/tunnels/{id}";
/// What the page has buttons for.
const ACTIONS: [Action; 3] = [Action::TunnelsStart, Action::TunnelsStop, Action::TunnelsRestart];
/// Its other pages.
const PARTS: [(&str, &str); 5] = [
    ("access", "Who may visit"),
    ("ports", "Extra ports"),
    ("domain", "Custom domain"),
    ("sessions", "Sessions"),
    ("settings", "Settings"),
];

pub(crate) async fn list(visit: &Visit) -> Result<Markup> {
    let tunnels = visit.service().tunnels(&visit.caller, visit.page()).await?;
    let content = html! {
        p { a.button href=(visit.in_scope("/tunnels/new")) { "New tunnel" } }
        @if tunnels.rows.is_empty() {
            p.empty { "There are no tunnels yet. A tunnel leads from a public address to a port of one of your devices." }
        } @else {
            (table(visit, &tunnels.rows))
            (list::more(visit.next(tunnels.next).as_deref()))
        }
        (visit.dashboard.requests.drawer(&[Shown::Request { title: "All tunnels", action: Action::TunnelsList, ids: Vec::new(), body: Value::Null }]))
    };
    Ok(page::signed_in(visit, "Tunnels", &content))
}

pub(crate) fn table(visit: &Visit, tunnels: &[Tunnel]) -> Markup {
    html! {
        div.scroll role="region" aria-label="Tunnels" tabindex="0" { table {
            thead { tr { th { "Name" } th { "State" } th { "Public address" } th { "Leads to" } } }
            tbody {
                @for tunnel in tunnels {
                    tr {
                        td { a href=(visit.in_scope(&format!("/tunnels/{}", tunnel.id))) { (tunnel.spec.name) } }
                        td { (badge::tunnel(tunnel.status())) }
                        td { (address(tunnel)) }
                        td { code { (tunnel.spec.local_host) ":" (tunnel.spec.local_port) } }
                    }
                }
            }
        } }
    }
}

fn address(tunnel: &Tunnel) -> Markup {
    shown(&tunnel.public_address())
}

/// Where visitors come to: a link where that is a web page.
pub(crate) fn shown(address: &PublicAddress) -> Markup {
    html! {
        @if let Some(url) = &address.url {
            a href=(url) rel="noreferrer" { code { (url) } }
        } @else {
            code { (address.hostname) ":" (address.port) }
        }
    }
}

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let (tunnel, authorized) = visit.service().tunnel_with_devices(&visit.caller, visit.id()?).await?;
    let bandwidth = visit.service().tunnel_bandwidth(&visit.caller, tunnel.id).await?;
    let days = visit.service().tunnel_days(&visit.caller, tunnel.id).await?;
    let minutes = visit.service().last_hour(&visit.caller, tunnel.id).await?;
    let may = visit.preview(Resource::Tunnel(tunnel.id), &ACTIONS).await?;
    let content = html! {
        p.line {
            (badge::tunnel(tunnel.status())) " " (address(&tunnel)) " leads to "
            code { (tunnel.spec.local_host) ":" (tunnel.spec.local_port) }
            @if let Some(device) = &authorized.current { " on " (devices::name(device)) }
        }
        (state(visit, &tunnel))
        (controls(visit, &tunnel, &authorized, &may))
        ul.parts {
            @for (part, label) in PARTS {
                li { a href=(visit.in_scope(&format!("/tunnels/{}/{part}", tunnel.id))) { (label) } }
            }
        }
        section {
            h2 { "About it" }
            dl {
                dt { "Protocol" } dd { (tunnel.spec.protocol) }
                dt { "Node" } dd { (tunnel.node.name) }
                @if let Some(domain) = &tunnel.custom_domain { dt { "Custom domain" } dd { (domain) } }
                @if tunnel.spec.basic_auth { dt { "Basic auth" } dd { (tunnel.spec.basic_auth_user.as_deref().unwrap_or("")) } }
                @if let Some(visitors) = visit.service().visitors_now(&tunnel) { dt { "Visitors now" } dd { (visitors) } }
                dt { "Today" } dd { (bytes::traffic(bandwidth.today)) }
                dt { "This month" } dd { (bytes::traffic(bandwidth.month)) }
                dt { "Id" } dd { code { (tunnel.id) } }
            }
        }
        section { h2 { "The last hour" } (plot::minutes(&minutes)) p.muted { "When the page was loaded." } }
        section { h2 { "The last 30 days" } (plot::days(&days)) }
        (visit.dashboard.requests.drawer(&requests(&tunnel, &authorized)))
    };
    // While something is under way, the page looks again by itself.
    let looks_again = tunnel.operation.is_some() || tunnel.moving;
    Ok(page::reloading(visit, &tunnel.spec.name, looks_again, &content))
}

fn requests(tunnel: &Tunnel, authorized: &TunnelDevices) -> Vec<Shown> {
    let request = |title, action, body| Shown::Request { title, action, ids: vec![tunnel.id], body };
    let mut requests = vec![request("This tunnel", Action::TunnelsRead, Value::Null)];
    if let Some(device) = authorized.authorized.first() {
        requests.push(request("Start it", Action::TunnelsStart, json!({"device_id": device.id})));
    }
    requests.extend([
        request("Stop it", Action::TunnelsStop, Value::Null),
        request("Its sessions", Action::TunnelsListSessions, Value::Null),
    ]);
    requests
}

/// What is wrong with it, or under way.
fn state(visit: &Visit, tunnel: &Tunnel) -> Markup {
    html! {
        @if let Some(operation) = &tunnel.operation {
            p.notice {
                "The action " (operation.action) " is " (operation.status) ". "
                a href=(visit.in_scope(&format!("/operations/{}", operation.id))) { "How it goes" }
            }
        }
        @if let Some(error) = &tunnel.start_error { p.notice.bad { "The last start failed: " (error) } }
        @if let Some(run) = &tunnel.run {
            @if !run.agent_connected { p.notice.warn { "The device's agent is away. It comes back by itself, or the tunnel ends." } }
            @if let Some(error) = &run.target_error { p.notice.warn { "The local service does not answer: " (error) } }
        }
        @if tunnel.suspended { p.notice.warn { "The month's bandwidth is used up." } }
    }
}

fn controls(visit: &Visit, tunnel: &Tunnel, authorized: &TunnelDevices, may: &Preview) -> Markup {
    let path = |action: &str| visit.in_scope(&format!("/tunnels/{}/{action}", tunnel.id));
    let button = |asked, action, path: &str, label| {
        let cannot = authorized.current.as_ref().and_then(|device| on_running(tunnel, device, action).err());
        refusal::unless(may.refusal(asked).or(cannot.as_ref()), label, field::button(visit, path, label))
    };
    html! {
        @if tunnel.running_on().is_some() {
            div.row {
                (button(Action::TunnelsStop, RemoteAction::Stop, &path("stop"), "Stop"))
                (button(Action::TunnelsRestart, RemoteAction::Restart, &path("restart"), "Restart"))
            }
        }
        @if authorized.authorized.is_empty() {
            p.empty { "No device may run it. " a href=(visit.in_scope("/devices")) { "Add a device" } }
        } @else {
            div.scroll role="region" aria-label="Devices" tabindex="0" { table {
                thead { tr { th { "Device" } th { "State" } th {} } }
                tbody { @for device in &authorized.authorized { (start_row(visit, tunnel, device, &path("start"), may.refusal(Action::TunnelsStart))) } }
            } }
        }
    }
}

fn on_running(tunnel: &Tunnel, device: &Device, action: RemoteAction) -> Result<()> {
    check_on_running(tunnel, device, action)?;
    tunnel.check_idle()
}

fn start_row(visit: &Visit, tunnel: &Tunnel, device: &Device, path: &str, refused: Option<&Error>) -> Markup {
    let cannot = check_start(tunnel, device).and_then(|()| tunnel.check_idle()).err();
    let runs_here = tunnel.running_on() == Some(device.id);
    let label = if tunnel.running_on().is_some() { "Move it here" } else { "Start" };
    html! {
        tr {
            td { (devices::name(device)) }
            td { (badge::online(device.online)) }
            td {
                @if runs_here { "runs it" }
                @else if let Some(error) = refused.or(cannot.as_ref()) { span.muted { (error.detail) " " code { (error.code.as_str()) } } }
                @else {
                    form method="post" action=(path) {
                        (field::hidden(KEY, &visit.form_key(path)))
                        (field::hidden("device_id", &device.id.to_string()))
                        @if tunnel.running_on().is_some() { (field::hidden("handoff", "yes")) }
                        button type="submit" { (label) }
                    }
                }
            }
        }
    }
}

pub(crate) async fn start(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tunnel_id = visit.id()?;
    let mut tree = posted.form.body(&["device_id"], &[]);
    if let JsonTree::Object(fields) = &mut tree {
        // What the button said when the page was made: it may run elsewhere by now.
        fields.push(("handoff".into(), JsonTree::Bool(posted.form.get("handoff") == "yes")));
    }
    let change = |choice| Start { tunnel_id, choice };
    let body = read::<StartTunnel>(Some(&tree));
    visit.change_with(&posted, Action::TunnelsStart, Resource::Tunnel(tunnel_id), body, change).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

pub(crate) async fn stop(visit: &Visit, posted: Posted) -> Result<Answer> {
    act_on_running(visit, posted, Action::TunnelsStop, RemoteAction::Stop).await
}

pub(crate) async fn restart(visit: &Visit, posted: Posted) -> Result<Answer> {
    act_on_running(visit, posted, Action::TunnelsRestart, RemoteAction::Restart).await
}

async fn act_on_running(visit: &Visit, posted: Posted, asked: Action, action: RemoteAction) -> Result<Answer> {
    let tunnel_id = visit.id()?;
    let change = |()| ActOnRunning { tunnel_id, action };
    visit.change(&posted, asked, Resource::Tunnel(tunnel_id), change).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}
