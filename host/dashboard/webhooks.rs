//! Webhook endpoints: all of a scope, and a new one.

use culvert_api_types::json_tree::JsonTree;
use culvert_api_types::read::read;
use culvert_api_types::requests::NewWebhook;
use culvert_domain::action::Action;
use culvert_domain::error::Result;
use culvert_domain::event::EventKind;
use culvert_domain::facts::Resource;
use culvert_domain::string_enum::StringEnum;
use culvert_domain::webhook::Webhook;
use culvert_service::webhooks::{CreateWebhook, NewSecret};
use maud::{Markup, html};
use salvo::http::StatusCode;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::form::{Form, KEY};
use crate::requests::Shown;
use crate::view::{badge, field, list, page, refusal, secret, time};
use crate::visit::{Posted, Visit};

/// What stands before the name of an event in the name of its box.
const BOX: &str = "event ";

pub(crate) async fn list(visit: &Visit) -> Result<Markup> {
    let webhooks = visit.service().webhooks(&visit.caller, visit.page()).await?;
    let may = visit.preview(Resource::Scope, &[Action::WebhooksCreate]).await?;
    let body = json!({"url": "https://example.com/hooks", "events": ["tunnel.started", "device.offline"]});
    let requests = [
        Shown::Request { title: "All endpoints", action: Action::WebhooksList, ids: Vec::new(), body: Value::Null },
        Shown::Request { title: "A new endpoint", action: Action::WebhooksCreate, ids: Vec::new(), body },
    ];
    let content = html! {
        p {
            "An endpoint is an address of yours that is told of what happens: a tunnel that starts, a device that goes offline. "
            a href=(format!("{}/api/events", visit.dashboard.docs_url)) { "What is sent, and how its signature is checked" }
        }
        @if webhooks.rows.is_empty() { p.empty { "There are no endpoints yet." } } @else {
            div.scroll role="region" aria-label="Endpoints" tabindex="0" { table {
                thead { tr { th { "Address" } th { "State" } th { "Last delivery" } } }
                tbody {
                    @for webhook in &webhooks.rows {
                        tr {
                            td.long {
                                a href=(visit.in_scope(&format!("/webhooks/{}", webhook.id))) { (webhook.url) }
                                @if let Some(about) = &webhook.description { div.muted { (about) } }
                            }
                            td { (badge::webhook(webhook.status)) }
                            td { (last_delivery(webhook)) }
                        }
                    }
                }
            } }
            (list::more(visit.next(webhooks.next).as_deref()))
        }
        section { h2 { "New endpoint" } (refusal::form_unless(may.refusal(Action::WebhooksCreate), new_endpoint(visit))) }
        (visit.dashboard.requests.drawer(&requests))
    };
    Ok(page::signed_in(visit, "Webhooks", &content))
}

pub(crate) fn last_delivery(webhook: &Webhook) -> Markup {
    html! {
        @match webhook.last_delivery {
            Some(last) => { (badge::attempt(last.status)) " " (time::at(last.at)) }
            None => "none yet",
        }
    }
}

fn new_endpoint(visit: &Visit) -> Markup {
    let path = visit.in_scope("/webhooks");
    html! {
        form method="post" action=(path) {
            (field::hidden(KEY, &visit.form_key(&path)))
            (fields(visit, "", "", &[EventKind::TunnelStarted, EventKind::TunnelStopped, EventKind::DeviceOffline]))
            button type="submit" { "Create endpoint" }
        }
    }
}

/// The fields that an endpoint has, new or not.
pub(crate) fn fields(visit: &Visit, url: &str, description: &str, events: &[EventKind]) -> Markup {
    let text = |name, label, value, hint| field::Field { hint: Some(hint), ..field::typed(visit, name, label, value) };
    let form = visit.refused.as_ref().map(|refused| &refused.form);
    let boxes = EventKind::ALL.iter().map(|event| {
        let name = format!("{BOX}{event}");
        let is_checked = form.map_or_else(|| events.contains(event), |form| form.find(&name).is_some());
        (name, event.as_str(), is_checked)
    });
    html! {
        (field::text(&field::Field { required: true, inputmode: Some("url"),
            ..text("url", "Address", url, "It begins with https:// and is reached from the internet.") }))
        (field::boxes("events", "Events", visit.fault("events"), boxes))
        (field::text(&text("description", "Description", description, "For you alone; may be empty.")))
    }
}

/// The body of an API request from these fields.
pub(crate) fn body(form: &Form) -> Vec<(String, JsonTree)> {
    let text = |name: &str| JsonTree::Text(form.get(name).trim().to_owned());
    let chosen = EventKind::ALL.iter().filter(|event| form.find(&format!("{BOX}{event}")).is_some());
    let events = chosen.map(|event| JsonTree::Text(event.as_str().into())).collect();
    let description = if form.get("description").trim().is_empty() { JsonTree::Null } else { text("description") };
    vec![("url".into(), text("url")), ("events".into(), JsonTree::List(events)), ("description".into(), description)]
}

pub(crate) async fn create(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tree = JsonTree::Object(body(&posted.form));
    let NewSecret { webhook_id, secret, sealed } = visit.service().new_webhook_secret();
    let change = |definition| CreateWebhook { id: webhook_id, definition, secret: sealed.clone() };
    // A reload shows the same secret and makes no other endpoint.
    let answer = move |webhook: Webhook| json!({"id": webhook.id, "secret": secret});
    let made = read::<NewWebhook>(Some(&tree));
    let made = visit.make(&posted, Action::WebhooksCreate, Resource::Scope, made, change, answer).await?;
    let of = |name: &str| made[name].as_str().unwrap_or_default().to_owned();
    let content = html! {
        (secret::shown_once("The endpoint's secret", &of("secret"),
            "It is shown this once. With it your program checks that a delivery comes from here."))
        p { a href=(visit.in_scope(&format!("/webhooks/{}", of("id")))) { "The endpoint" } }
    };
    Ok(Answer::page(StatusCode::OK, page::signed_in(visit, "Endpoint created", &content)))
}
