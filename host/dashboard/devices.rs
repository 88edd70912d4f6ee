//! Devices: the machines that run an agent.

use culvert_api_types::json_tree::JsonTree;
use culvert_api_types::read::{NoBody, read};
use culvert_api_types::requests::DevicePatch;
use culvert_domain::action::Action;
use culvert_domain::device::Device;
use culvert_domain::error::Result;
use culvert_domain::facts::Resource;
use culvert_domain::key::EnrolmentCode;
use culvert_service::devices::UpdateDevice;
use culvert_service::enrolment::CreateCode;
use maud::{Markup, html};
use salvo::http::StatusCode;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::requests::Shown;
use crate::view::{badge, field, list, page, refusal, secret, time};
use crate::visit::{Posted, Visit};

/// What people call a device.
pub(crate) fn name(device: &Device) -> String {
    device.name.clone().unwrap_or_else(|| format!("device {}", &device.id.to_string()[..8]))
}

pub(crate) async fn list(visit: &Visit) -> Result<Markup> {
    let devices = visit.service().devices(&visit.caller, visit.page()).await?;
    let may = visit.preview(Resource::Scope, &[Action::DevicesCreateCode]).await?;
    let add = field::button(visit, &visit.in_scope("/devices/code"), "Add a device");
    let request =
        Shown::Request { title: "All devices", action: Action::DevicesList, ids: Vec::new(), body: Value::Null };
    let content = html! {
        (refusal::unless(may.refusal(Action::DevicesCreateCode), "Add a device", add))
        @if devices.rows.is_empty() {
            p.empty { "There are no devices yet. A device is a machine that runs the agent; tunnels lead to its ports." }
        } @else {
            (table(visit, &devices.rows))
            (list::more(visit.next(devices.next).as_deref()))
        }
        (visit.dashboard.requests.drawer(&[request]))
    };
    Ok(page::signed_in(visit, "Devices", &content))
}

pub(crate) fn table(visit: &Visit, devices: &[Device]) -> Markup {
    html! {
        div.scroll role="region" aria-label="Devices" tabindex="0" { table {
            thead { tr { th { "Name" } th { "State" } th { "Agent" } th { "Remote control" } th { "Last seen" } } }
            tbody {
                @for device in devices {
                    @let off = visit.in_scope(&format!("/devices/{}/remote-control-off", device.id));
                    tr {
                        td { a href=(visit.in_scope(&format!("/devices/{}", device.id))) { (name(device)) } div.muted { (device.platform.as_deref().unwrap_or("")) } }
                        td { (badge::online(device.online)) }
                        td { (device.version.as_deref().unwrap_or("unknown")) }
                        td {
                            @if device.remote_control {
                                "on "
                                @if device.owner_id == visit.caller.account_id { (field::button(visit, &off, "Switch off")) }
                            } @else {
                                "off; the device turns it on: " code { "culvert-agent remote-control enable" }
                            }
                        }
                        td { (time::maybe(device.last_seen_at, "never")) }
                    }
                }
            }
        } }
    }
}

pub(crate) async fn create_code(visit: &Visit, posted: Posted) -> Result<Answer> {
    let code = EnrolmentCode::generate(visit.service().clock());
    let shown = code.reveal().to_owned();
    let change = |()| CreateCode { code: code.clone() };
    let answer = move |_| json!({"code": shown});
    let body = read::<NoBody>(None);
    let made = visit.make(&posted, Action::DevicesCreateCode, Resource::Scope, body, change, answer).await?;
    let enrol = format!(
        "culvert-agent enroll --server {} --code {} --remote-control",
        visit.dashboard.public_url,
        made["code"].as_str().unwrap_or_default()
    );
    let content = html! {
        p { "On the machine that is to be a device:" }
        (secret::shown_once("Enrolment", &enrol, "The code is good once, within 10 minutes."))
        p {
            code { "--remote-control" } " lets tunnels be started and stopped from here, to services of that machine alone. "
            "Only the device can turn it on. Leave the word out if you start tunnels there: "
            code { "culvert-agent remote-control enable" } " turns it on later."
        }
        p { "Then run the agent:" }
        (secret::command("culvert-agent run"))
        p { a href=(visit.in_scope("/devices")) { "All devices" } }
    };
    Ok(Answer::page(StatusCode::OK, page::signed_in(visit, "Add a device", &content)))
}

pub(crate) async fn turn_remote_control_off(visit: &Visit, posted: Posted) -> Result<Answer> {
    let device_id = visit.id()?;
    let body = JsonTree::Object(vec![("remote_control_enabled".into(), JsonTree::Bool(false))]);
    let body = read::<DevicePatch>(Some(&body));
    let change = |patch| UpdateDevice { device_id, patch };
    visit.change_with(&posted, Action::DevicesUpdate, Resource::Device(device_id), body, change).await?;
    Ok(Answer::see_other(&visit.in_scope("/devices")))
}
