//! The settings of a tunnel: every field that can be changed, the devices that may run it, its node, and its end.

use culvert_api_types::json_tree::JsonTree;
use culvert_api_types::read::read;
use culvert_api_types::requests::{BindDevices, MoveTunnel as MoveBody, TunnelPatch};
use culvert_domain::action::Action;
use culvert_domain::device::Device;
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::facts::Resource;
use culvert_domain::local_service::{LocalScheme, ProxyProtocol};
use culvert_domain::node::Node;
use culvert_domain::page::{CursorPosition, Page};
use culvert_domain::protocol::Protocol;
use culvert_domain::string_enum::StringEnum;
use culvert_domain::tunnel::Tunnel;
use culvert_service::moves::{MoveTunnel, check_takes};
use culvert_service::tunnels::{BindTunnel, DeleteTunnel, UpdateTunnel};
use maud::{Markup, html};
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::devices;
use crate::form::{Form, KEY};
use crate::requests::Shown;
use crate::view::{field, page, refusal};
use crate::visit::{Posted, Visit};

const PAGE: &str = "{s}/tunnels/{id}/settings";
const TUNNEL: &str = "{s}/tunnels/{id}";
/// What the page has forms for.
const ACTIONS: [Action; 4] =
    [Action::TunnelsUpdate, Action::TunnelsBindDevices, Action::TunnelsMove, Action::TunnelsDelete];
/// Devices that can be chosen from: as many as a tunnel can name.
const DEVICES: u32 = 100;
/// What stands before the id of a device in the name of its box.
const BOX: &str = "device ";
/// The box for any device.
const ANY: &str = "any device";

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let tunnel = visit.service().tunnel(&visit.caller, visit.id()?).await?;
    let may = visit.preview(Resource::Tunnel(tunnel.id), &ACTIONS).await?;
    let devices = choice(visit, &tunnel).await?;
    let nodes = visit.service().listed_nodes().await?;
    let path = |action: &str| format!("{}/{action}", visit.path_of(TUNNEL));
    let unless = |action, form| refusal::form_unless(may.refusal(action), form);
    let under_way = tunnel.check_idle().err();
    let no_move = may.refusal(Action::TunnelsMove).or(under_way.as_ref());
    let content = html! {
        p { a href=(visit.path_of(TUNNEL)) { "The tunnel " (tunnel.spec.name) } }
        section { h2 { "Tunnel" } (unless(Action::TunnelsUpdate, fields(visit, &tunnel, &path("settings")))) }
        section { h2 { "Devices that may run it" } (unless(Action::TunnelsBindDevices, devices_form(visit, &tunnel, &devices, &path("devices")))) }
        section { h2 { "Node" } (refusal::form_unless(no_move, move_form(visit, &tunnel, &nodes, &path("move")))) }
        section { h2 { "Delete" } (unless(Action::TunnelsDelete, delete_form(visit, &path("delete")))) }
        (visit.dashboard.requests.drawer(&requests(&tunnel)))
    };
    Ok(page::signed_in(visit, "Settings", &content))
}

fn requests(tunnel: &Tunnel) -> Vec<Shown> {
    let request = |title, action, body| Shown::Request { title, action, ids: vec![tunnel.id], body };
    vec![
        request(
            "Change it",
            Action::TunnelsUpdate,
            json!({"name": tunnel.spec.name, "local_port": tunnel.spec.local_port}),
        ),
        request("Say which devices may run it", Action::TunnelsBindDevices, json!({"device_ids": tunnel.device_ids})),
        request("Delete it", Action::TunnelsDelete, Value::Null),
    ]
}

fn fields(visit: &Visit, tunnel: &Tunnel, path: &str) -> Markup {
    let spec = &tunnel.spec;
    let (port, idle) =
        (spec.local_port.to_string(), spec.idle_timeout.map_or_else(String::new, |seconds| seconds.to_string()));
    let buffer = spec.buffer_size.to_string();
    let text = |name, label, value| field::typed(visit, name, label, value);
    let number = |name, label, value, hint| field::Field {
        inputmode: Some("numeric"),
        hint: Some(hint),
        ..text(name, label, value)
    };
    let proxy = visit.typed("proxy_protocol").unwrap_or(spec.service.proxy_protocol.as_str());
    html! {
        form method="post" action=(path) {
            (field::hidden(KEY, &visit.form_key(path)))
            (field::text(&field::Field { required: true, ..text("name", "Name", &spec.name) }))
            (field::text(&field::Field { required: true, hint: Some("As the device sees it. Where it leads elsewhere than the device's owner has allowed, it waits for a start at the device."),
                ..text("local_host", "Local host", &spec.local_host) }))
            (field::text(&field::Field { required: true, ..number("local_port", "Local port", &port, "Of the service.") }))
            (field::text(&number("idle_timeout", "Idle timeout", &idle, "Seconds without a byte after which a connection is closed: 30 to 3600. Empty: the default.")))
            (field::text(&number("buffer_size", "Buffer size", &buffer, "Bytes that each direction is copied with: 1024 to 1048576. Empty: the default.")))
            (field::select("proxy_protocol", "PROXY protocol", proxy, visit.fault("proxy_protocol"),
                ProxyProtocol::ALL.iter().map(|version| (version.as_str(), version.to_string()))))
            @if spec.protocol == Protocol::Http { (http_fields(visit, tunnel)) }
            button type="submit" { "Save settings" }
        }
    }
}

fn http_fields(visit: &Visit, tunnel: &Tunnel) -> Markup {
    let (spec, service) = (&tunnel.spec, &tunnel.spec.service);
    let scheme = visit.typed("local_scheme").unwrap_or(service.scheme.as_str());
    let verify = service.tls_verify.map_or("", |verify| if verify { "yes" } else { "no" });
    let verify = visit.typed("local_tls_verify").unwrap_or(verify);
    let chosen =
        |name: &str, now: bool| visit.refused.as_ref().map_or(now, |refused| refused.form.find(name).is_some());
    let flags = [
        ("http_ssl_enabled", "HTTPS, with a certificate of the node's", spec.https),
        ("http_basic_auth_enabled", "Ask visitors for a name and a password", spec.basic_auth),
        ("tls_passthrough", "Visitors make TLS with the service itself", service.tls_passthrough),
    ];
    let flags = flags.map(|(name, label, now)| (name.to_owned(), label, chosen(name, now)));
    let password = if tunnel.basic_auth_password_set { "Empty: it stays." } else { "8 to 128 characters." };
    html! {
        (field::boxes("http", "Visitors", visit.fault("http_basic_auth_enabled").or(visit.fault("tls_passthrough")), flags.into_iter()))
        (field::text(&field::typed(visit, "http_basic_auth_username", "Name for visitors", spec.basic_auth_user.as_deref().unwrap_or_default())))
        (field::text(&field::Field { kind: "password", autocomplete: Some("new-password"), hint: Some(password), value: "",
            ..field::typed(visit, "http_basic_auth_password", "Password for visitors", "") }))
        (field::text(&field::Field { hint: Some("What the service gets as Host. Empty: what the visitor sends."),
            ..field::typed(visit, "host_header", "Host header", service.host_header.as_deref().unwrap_or_default()) }))
        (field::select("local_scheme", "The service speaks", scheme, visit.fault("local_scheme"),
            LocalScheme::ALL.iter().map(|scheme| (scheme.as_str(), scheme.to_string()))))
        (field::select("local_tls_verify", "Its certificate is verified", verify, visit.fault("local_tls_verify"),
            [("", "unless its address is loopback or private"), ("yes", "yes"), ("no", "no")].into_iter().map(|(value, text)| (value, text.to_owned()))))
    }
}

/// The devices that can be chosen from: those of the tunnel, and the newest of the scope.
async fn choice(visit: &Visit, tunnel: &Tunnel) -> Result<Vec<Device>> {
    let first = Page { limit: DEVICES, after: CursorPosition::START };
    let mut devices = visit.service().devices(&visit.caller, first).await?.rows;
    for id in &tunnel.device_ids {
        if !devices.iter().any(|device| device.id == *id) {
            devices.push(visit.service().device(&visit.caller, *id).await?);
        }
    }
    Ok(devices)
}

fn devices_form(visit: &Visit, tunnel: &Tunnel, devices: &[Device], path: &str) -> Markup {
    let boxes: Vec<(String, String, bool)> = devices
        .iter()
        .map(|device| (format!("{BOX}{}", device.id), devices::name(device), tunnel.device_ids.contains(&device.id)))
        .collect();
    let any = std::iter::once((ANY.to_owned(), "any device of this scope", !tunnel.restricted));
    let shown = boxes.iter().map(|(name, label, is_chosen)| (name.clone(), label.as_str(), *is_chosen));
    html! {
        @if devices.is_empty() { p.empty { "There are no devices yet. " a href=(visit.in_scope("/devices")) { "Add one" } } } @else {
            @if tunnel.restricted && tunnel.device_ids.is_empty() {
                p.notice.warn { "No device may run it: those that might are gone." }
            }
            form method="post" action=(path) {
                (field::hidden(KEY, &visit.form_key(path)))
                (field::boxes("device_ids", "Devices", visit.fault("device_ids"), any.chain(shown)))
                p.hint { "A device that runs it and is no longer chosen stops." }
                button type="submit" { "Save devices" }
            }
        }
    }
}

fn move_form(visit: &Visit, tunnel: &Tunnel, nodes: &[Node], path: &str) -> Markup {
    let others = nodes.iter().filter(|node| check_takes(node, tunnel).is_ok());
    let named: Vec<(String, String)> =
        others.map(|node| (node.id.to_string(), format!("{}, {} {}", node.name, node.region, node.country))).collect();
    let first = named.first().map_or("", |(id, _)| id.as_str());
    html! {
        p { "It is on " strong { (tunnel.node.name) } ". On another one it has another address, and its visitors are cut off." }
        @if named.is_empty() { p.empty { "There is no other node that takes it." } } @else {
            form method="post" action=(path) {
                (field::hidden(KEY, &visit.form_key(path)))
                (field::select("node_id", "Move to", visit.typed("node_id").unwrap_or(first), visit.fault("node_id"),
                    named.iter().map(|(id, text)| (id.as_str(), text.clone()))))
                button type="submit" { "Move" }
            }
        }
    }
}

/// The name is typed, so that no slip of the hand gives an address up.
fn delete_form(visit: &Visit, path: &str) -> Markup {
    html! {
        form method="post" action=(path) {
            (field::hidden(KEY, &visit.form_key(path)))
            (field::text(&field::Field { name: "confirm_name", label: "The tunnel's name", required: true, fault: visit.fault("confirm_name"),
                hint: Some("The address is given up, and visitors reach nothing any more."), ..field::Field::default() }))
            button type="submit" { "Delete tunnel" }
        }
    }
}

/// The body of a change of all fields that the form has. What is empty and may be is cleared.
fn body(form: &Form, protocol: Protocol) -> JsonTree {
    let is_http = protocol == Protocol::Http;
    let (mut texts, mut cleared) = (vec!["name", "local_host", "proxy_protocol"], vec!["idle_timeout", "buffer_size"]);
    if is_http {
        texts.extend(["http_basic_auth_username", "host_header", "local_scheme"]);
        cleared.extend(["http_basic_auth_username", "host_header"]);
    }
    let mut tree = form.body(&texts, &["local_port", "idle_timeout", "buffer_size"]);
    let JsonTree::Object(fields) = &mut tree else { return tree };
    for name in cleared {
        if !fields.iter().any(|(known, _)| known == name) {
            fields.push((name.to_owned(), JsonTree::Null));
        }
    }
    if is_http {
        fields.extend(http_body(form));
    }
    tree
}

fn http_body(form: &Form) -> Vec<(String, JsonTree)> {
    let flag = |name: &str| (name.to_owned(), JsonTree::Bool(form.find(name).is_some()));
    let mut fields: Vec<_> = ["http_ssl_enabled", "http_basic_auth_enabled", "tls_passthrough"].map(flag).into();
    let verify = match form.get("local_tls_verify") {
        "yes" => JsonTree::Bool(true),
        "no" => JsonTree::Bool(false),
        "" => JsonTree::Null,
        // No answer of the form: refused as what it is.
        other => JsonTree::Text(other.to_owned()),
    };
    fields.push(("local_tls_verify".into(), verify));
    // A password may begin or end with a space.
    let password = form.get("http_basic_auth_password");
    if !password.is_empty() {
        fields.push(("http_basic_auth_password".into(), JsonTree::Text(password.to_owned())));
    }
    fields
}

pub(crate) async fn change(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tunnel_id = visit.id()?;
    let tunnel = visit.service().tunnel(&visit.caller, tunnel_id).await?;
    let body = read::<TunnelPatch>(Some(&body(&posted.form, tunnel.spec.protocol)));
    let run = async {
        let admitted = visit.admit(Action::TunnelsUpdate, Resource::Tunnel(tunnel_id), body).await?;
        let hash = visit.service().hash_password(admitted.valid.basic_auth_password.clone().flatten()).await?;
        let change = |change| UpdateTunnel { tunnel_id, change, password_hash: hash.clone() };
        visit.commit(&posted, admitted, change, |_| Value::Null).await
    };
    visit.carry_out(&posted, run).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

pub(crate) async fn bind(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tunnel_id = visit.id()?;
    let chosen: Vec<&str> = posted.form.names().filter_map(|name| name.strip_prefix(BOX)).collect();
    let is_any = posted.form.find(ANY).is_some();
    // An empty list lets every device run it, so that is not what an empty form means.
    if is_any != chosen.is_empty() {
        let allowed = "must be some devices, or any device of this scope and none by itself";
        return Err(Error::invalid(vec![Fault::new("device_ids", allowed)]));
    }
    let ids = JsonTree::List(chosen.into_iter().map(|id| JsonTree::Text(id.to_owned())).collect());
    let body = read::<BindDevices>(Some(&JsonTree::Object(vec![("device_ids".into(), ids)])));
    let change = |device_ids| BindTunnel { tunnel_id, device_ids };
    visit.change_with(&posted, Action::TunnelsBindDevices, Resource::Tunnel(tunnel_id), body, change).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

pub(crate) async fn move_to(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tunnel_id = visit.id()?;
    let body = read::<MoveBody>(Some(&posted.form.body(&["node_id"], &[])));
    let change = |node_id| MoveTunnel { tunnel_id, node_id };
    visit.change_with(&posted, Action::TunnelsMove, Resource::Tunnel(tunnel_id), body, change).await?;
    Ok(Answer::see_other(&visit.path_of(TUNNEL)))
}

pub(crate) async fn delete(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tunnel_id = visit.id()?;
    let tunnel = match visit.service().tunnel(&visit.caller, tunnel_id).await {
        // A second click finds it gone.
        Err(error) if error.code == Code::NotFound => return Ok(Answer::see_other(&visit.in_scope("/tunnels"))),
        tunnel => tunnel?,
    };
    if posted.form.get("confirm_name").trim() != tunnel.spec.name.trim() {
        return Err(Error::invalid(vec![Fault::new("confirm_name", "must be the name of this tunnel")]));
    }
    let change = |()| DeleteTunnel { tunnel_id };
    visit.change(&posted, Action::TunnelsDelete, Resource::Tunnel(tunnel_id), change).await?;
    Ok(Answer::see_other(&visit.in_scope("/tunnels")))
}
