//! One device: what it is, what it may, and what can be asked of it.

use culvert_api_types::json_tree::JsonTree;
use culvert_api_types::read::read;
use culvert_api_types::requests::DevicePatch;
use culvert_domain::action::Action;
use culvert_domain::device::Device;
use culvert_domain::error::{Code, Result};
use culvert_domain::facts::Resource;
use culvert_domain::operation::RemoteAction;
use culvert_service::devices::{RemoveDevice, SetMayCreate, UpdateDevice};
use culvert_service::gate::Preview;
use culvert_service::operations::requests::ActOnDevice;
use maud::{Markup, html};
use serde_json::{Value, json};

use crate::account::asked_first;
use crate::answer::Answer;
use crate::devices::name;
use crate::form::KEY;
use crate::requests::Shown;
use crate::view::{badge, field, page, refusal, secret, time};
use crate::visit::{Posted, Visit};

const PAGE: &str = "{s}/devices/{id}";
/// What the page has buttons for.
const ACTIONS: [Action; 5] = [
    Action::DevicesUpdate,
    Action::DevicesStopAll,
    Action::DevicesRestartAgent,
    Action::DevicesSetMayCreate,
    Action::DevicesRemove,
];

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let device = visit.service().device(&visit.caller, visit.id()?).await?;
    let may = visit.preview(Resource::Device(device.id), &ACTIONS).await?;
    let path = |action: &str| format!("{}/{action}", visit.path_of(PAGE));
    let content = html! {
        p.line { (badge::online(device.online)) " " (device.platform.as_deref().unwrap_or("")) " "
            @if let Some(version) = &device.version { span.muted { "agent " (version) } } }
        (controls(visit, &device, &may))
        section { h2 { "Remote control" } (remote_control(visit, &device, &may)) }
        section { h2 { "Commands at the device" } (commands(visit, &device, &may)) }
        section { h2 { "Name" } (refusal::form_unless(may.refusal(Action::DevicesUpdate), rename_form(visit, &device, &path("rename")))) }
        section {
            h2 { "Remove" }
            p { "What it runs stops, and it cannot connect again. It can be enrolled anew." }
            @if visit.is_elevated() || may.refusal(Action::DevicesRemove).is_some() {
                (refusal::unless(may.refusal(Action::DevicesRemove), "Remove device", field::button(visit, &path("remove"), "Remove device")))
            } @else { (asked_first(visit, &visit.path_of(PAGE), "remove a device")) }
        }
        dl {
            dt { "Last seen" } dd { (time::maybe(device.last_seen_at, "never")) }
            dt { "Enrolled" } dd { (time::at(device.created_at)) }
            dt { "Id" } dd { code { (device.id) } }
        }
        (visit.dashboard.requests.drawer(&requests(&device)))
    };
    Ok(page::signed_in(visit, &name(&device), &content))
}

fn requests(device: &Device) -> Vec<Shown> {
    let request = |title, action, body| Shown::Request { title, action, ids: vec![device.id], body };
    vec![
        request("This device", Action::DevicesRead, Value::Null),
        request("Rename it", Action::DevicesUpdate, json!({"name": name(device)})),
        request("Stop all that it runs", Action::DevicesStopAll, Value::Null),
        request("Restart its agent", Action::DevicesRestartAgent, Value::Null),
        Shown::Command { title: "Remove it", command: format!("culvert device remove {}", device.id) },
    ]
}

fn controls(visit: &Visit, device: &Device, may: &Preview) -> Markup {
    let button = |action: Action, remote, path: &str, label| {
        let cannot = device.check_capabilities(remote).err();
        let path = format!("{}/{path}", visit.path_of(PAGE));
        refusal::unless(may.refusal(action).or(cannot.as_ref()), label, field::button(visit, &path, label))
    };
    html! {
        div.row {
            (button(Action::DevicesStopAll, RemoteAction::StopAll, "stop-all", "Stop all that it runs"))
            (button(Action::DevicesRestartAgent, RemoteAction::RestartAgent, "restart-agent", "Restart its agent"))
        }
    }
}

fn remote_control(visit: &Visit, device: &Device, may: &Preview) -> Markup {
    let off = visit.in_scope(&format!("/devices/{}/remote-control-off", device.id));
    html! {
        @if device.remote_control {
            p { "On: tunnels are started and stopped here from the dashboard and by the API." }
            (refusal::unless(may.refusal(Action::DevicesUpdate), "Switch off", field::button(visit, &off, "Switch off")))
        } @else {
            p { "Off. Only the device can turn it on; this page notices:" }
            (secret::command("culvert-agent remote-control enable"))
        }
        @match &device.allowed_targets {
            Some(targets) if targets.is_empty() => p { "It leads to no target: " code { "culvert-agent targets" } " says which it may." },
            Some(targets) => p { "It may lead to " @for (place, target) in targets.iter().enumerate() { @if place > 0 { ", " } code { (target) } } "." },
            None => p.muted { "Its agent has not told which targets it may lead to." },
        }
    }
}

fn commands(visit: &Visit, device: &Device, may: &Preview) -> Markup {
    let path = format!("{}/may-create", visit.path_of(PAGE));
    let (says, label, value) = if device.may_create {
        ("Commands at it create tunnels, as its owner:", "Do not let them", "no")
    } else {
        ("Commands at it create no tunnels.", "Let them create tunnels", "yes")
    };
    html! {
        p { (says) " " @if device.may_create { code { "culvert-agent http 3000" } } }
        @if visit.is_elevated() || may.refusal(Action::DevicesSetMayCreate).is_some() {
            (refusal::unless(may.refusal(Action::DevicesSetMayCreate), label, field::button_with(visit, &path, label, &[("may_create", value)])))
        } @else { (asked_first(visit, &visit.path_of(PAGE), "change this")) }
    }
}

fn rename_form(visit: &Visit, device: &Device, path: &str) -> Markup {
    let value = device.name.as_deref().unwrap_or_default();
    html! {
        form method="post" action=(path) {
            (field::hidden(KEY, &visit.form_key(path)))
            (field::text(&field::Field { required: true, ..field::typed(visit, "name", "Name", value) }))
            button type="submit" { "Rename" }
        }
    }
}

pub(crate) async fn rename(visit: &Visit, posted: Posted) -> Result<Answer> {
    let device_id = visit.id()?;
    let body = read::<DevicePatch>(Some(&JsonTree::Object(vec![(
        "name".into(),
        JsonTree::Text(posted.form.get("name").trim().to_owned()),
    )])));
    let change = |patch| UpdateDevice { device_id, patch };
    visit.change_with(&posted, Action::DevicesUpdate, Resource::Device(device_id), body, change).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

pub(crate) async fn stop_all(visit: &Visit, posted: Posted) -> Result<Answer> {
    act(visit, posted, Action::DevicesStopAll, RemoteAction::StopAll).await
}

pub(crate) async fn restart_agent(visit: &Visit, posted: Posted) -> Result<Answer> {
    act(visit, posted, Action::DevicesRestartAgent, RemoteAction::RestartAgent).await
}

/// Leads to the operation, which tells what comes of it.
async fn act(visit: &Visit, posted: Posted, asked: Action, action: RemoteAction) -> Result<Answer> {
    let device_id = visit.id()?;
    let change = |()| ActOnDevice { device_id, action };
    let answer = |operation: culvert_domain::operation::Operation| json!({"id": operation.id});
    let body = read::<culvert_api_types::read::NoBody>(None);
    let made = visit.make(&posted, asked, Resource::Device(device_id), body, change, answer).await?;
    Ok(Answer::see_other(&visit.in_scope(&format!("/operations/{}", made["id"].as_str().unwrap_or_default()))))
}

pub(crate) async fn set_may_create(visit: &Visit, posted: Posted) -> Result<Answer> {
    let device_id = visit.id()?;
    let may_create = posted.form.flag("may_create")?;
    let change = |()| SetMayCreate { device_id, may_create };
    visit.change(&posted, Action::DevicesSetMayCreate, Resource::Device(device_id), change).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

pub(crate) async fn remove(visit: &Visit, posted: Posted) -> Result<Answer> {
    let device_id = visit.id()?;
    let change = |()| RemoveDevice { device_id };
    let removed = visit.change(&posted, Action::DevicesRemove, Resource::Device(device_id), change).await;
    match removed {
        // A second click finds it gone.
        Err(error) if error.code != Code::NotFound => Err(error),
        _ => Ok(Answer::see_other(&visit.in_scope("/devices"))),
    }
}
