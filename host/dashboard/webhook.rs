//! One webhook endpoint: its settings, and what was sent to it.

use std::collections::HashSet;

use culvert_api_types::json_tree::JsonTree;
use culvert_api_types::read::read;
use culvert_api_types::requests::WebhookPatch;
use culvert_domain::action::Action;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::facts::Resource;
use culvert_domain::page::PageRows;
use culvert_domain::string_enum::StringEnum;
use culvert_domain::webhook::{Attempt, AttemptStatus, Webhook, WebhookStatus};
use culvert_service::webhooks::{DeleteWebhook, ResendDelivery, ResendFailed, TestWebhook, UpdateWebhook, WantedHours};
use maud::{Markup, html};
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::form::KEY;
use crate::requests::Shown;
use crate::view::{badge, field, list, page, refusal, time};
use crate::visit::{Posted, Visit};
use crate::webhooks;

const PAGE: &str = "{s}/webhooks/{id}";

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let webhook = visit.service().webhook(&visit.caller, visit.id()?).await?;
    let attempts = visit.service().attempts_of(&webhook, visit.page()).await?;
    let path = |action: &str| visit.in_scope(&format!("/webhooks/{}/{action}", webhook.id));
    let is_enabled = webhook.status == WebhookStatus::Enabled;
    let asked = [Action::WebhooksUpdate, Action::WebhooksTest, Action::WebhooksDelete, Action::WebhooksResendDelivery];
    let may = visit.preview(Resource::Webhook(webhook.id), &asked).await?;
    let unless = |action, label, button| refusal::unless(may.refusal(action), label, button);
    let (update, resend) = (may.refusal(Action::WebhooksUpdate), may.refusal(Action::WebhooksResendDelivery));
    let content = html! {
        p.line { (badge::webhook(webhook.status)) " " code { (webhook.url) } }
        div.row {
            @if is_enabled { (unless(Action::WebhooksTest, "Send a test event", field::button(visit, &path("test"), "Send a test event"))) }
            (switch(visit, &path("status"), is_enabled, update))
        }
        section {
            h2 { "Deliveries" }
            (deliveries(visit, &attempts, is_enabled && resend.is_none()))
            @if is_enabled && resend.is_none() && !attempts.rows.is_empty() { (resend_failed(visit, &path("resend"))) }
        }
        section { h2 { "Settings" } (refusal::form_unless(update, settings(visit, &webhook, &path("settings")))) }
        section {
            h2 { "Delete" }
            p { "What waits to be sent is canceled." }
            (unless(Action::WebhooksDelete, "Delete endpoint", field::button(visit, &path("delete"), "Delete endpoint")))
        }
        (visit.dashboard.requests.drawer(&requests(&webhook)))
    };
    // A delivery that is under way now is soon over; one that waits for its next attempt is not.
    let now = visit.service().clock().now();
    let is_due = |attempt: &Attempt| {
        attempt.status == AttemptStatus::Pending && attempt.next_attempt_at.is_none_or(|due| due <= now)
    };
    Ok(page::reloading(visit, "Webhook endpoint", attempts.rows.iter().any(is_due), &content))
}

fn requests(webhook: &Webhook) -> Vec<Shown> {
    let request = |title, action, body| Shown::Request { title, action, ids: vec![webhook.id], body };
    vec![
        request("Its deliveries", Action::WebhooksListDeliveries, Value::Null),
        request("A test event", Action::WebhooksTest, Value::Null),
        request("Disable it", Action::WebhooksUpdate, json!({"status": "disabled"})),
        request("Delete it", Action::WebhooksDelete, Value::Null),
    ]
}

fn switch(visit: &Visit, path: &str, is_enabled: bool, refused: Option<&Error>) -> Markup {
    let (status, label) =
        if is_enabled { (WebhookStatus::Disabled, "Disable") } else { (WebhookStatus::Enabled, "Enable") };
    refusal::unless(refused, label, field::button_with(visit, path, label, &[("status", status.as_str())]))
}

fn deliveries(visit: &Visit, attempts: &PageRows<Attempt>, is_enabled: bool) -> Markup {
    // One button for each event, at its newest attempt.
    let mut seen = HashSet::new();
    let mut is_newest = |attempt: &Attempt| seen.insert(attempt.event_id);
    html! {
        @if attempts.rows.is_empty() { p.empty { "Nothing was sent in the last 30 days." } } @else {
            div.scroll role="region" aria-label="Deliveries" tabindex="0" { table {
                thead { tr { th { "Event" } th { "Attempt" } th { "State" } th { "Answer" } th { "When" } th { "Next attempt" } th {} } }
                tbody {
                    @for attempt in &attempts.rows {
                        tr {
                            td {
                                a href=(format!("{}/deliveries/{}", visit.path_of(PAGE), attempt.event_id)) { (attempt.event) }
                                div.muted { code { (attempt.event_id) } }
                            }
                            td { (attempt.number) }
                            td { (badge::attempt(attempt.status)) }
                            td { (outcome(attempt)) }
                            td { (time::at(attempt.attempted_at.unwrap_or(attempt.created_at))) }
                            td { (time::maybe(attempt.next_attempt_at, "–")) }
                            td { @if is_newest(attempt) && is_enabled { (resend_button(visit, attempt)) } }
                        }
                    }
                }
            } }
            (list::more(visit.next(attempts.next).as_deref()))
        }
    }
}

fn resend_button(visit: &Visit, attempt: &Attempt) -> Markup {
    let path = format!("{}/deliveries/{}/resend", visit.path_of(PAGE), attempt.event_id);
    field::button(visit, &path, "Resend")
}

/// What the endpoint did not take is sent again, after it was mended.
fn resend_failed(visit: &Visit, path: &str) -> Markup {
    let hours = field::typed(visit, "hours", "Hours back", "24");
    html! {
        form method="post" action=(path) {
            (field::hidden(KEY, &visit.form_key(path)))
            (field::text(&field::Field { inputmode: Some("numeric"), required: true,
                hint: Some("What failed since then and did not succeed later is sent again, 200 events at a time."), ..hours }))
            button type="submit" { "Resend what failed" }
        }
    }
}

pub(crate) fn outcome(attempt: &Attempt) -> Markup {
    html! {
        @if let Some(status) = attempt.status_code { (status) " " }
        @if let Some(error) = attempt.error { code { (error) } " " }
        @if let Some(duration) = attempt.duration_ms { span.muted { (duration) " ms" } }
    }
}

fn settings(visit: &Visit, webhook: &Webhook, path: &str) -> Markup {
    html! {
        form method="post" action=(path) {
            (field::hidden(KEY, &visit.form_key(path)))
            (webhooks::fields(visit, &webhook.url, webhook.description.as_deref().unwrap_or_default(), &webhook.events))
            button type="submit" { "Save settings" }
        }
    }
}

pub(crate) async fn save_settings(visit: &Visit, posted: Posted) -> Result<Answer> {
    let body = webhooks::body(&posted.form);
    update(visit, posted, body).await
}

pub(crate) async fn set_status(visit: &Visit, posted: Posted) -> Result<Answer> {
    let status = JsonTree::Text(posted.form.get("status").to_owned());
    update(visit, posted, vec![("status".into(), status)]).await
}

async fn update(visit: &Visit, posted: Posted, body: Vec<(String, JsonTree)>) -> Result<Answer> {
    let webhook_id = visit.id()?;
    let body = read::<WebhookPatch>(Some(&JsonTree::Object(body)));
    let change = |change| UpdateWebhook { webhook_id, change };
    visit.change_with(&posted, Action::WebhooksUpdate, Resource::Webhook(webhook_id), body, change).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

pub(crate) async fn test(visit: &Visit, posted: Posted) -> Result<Answer> {
    let webhook_id = visit.id()?;
    let change = |()| TestWebhook { webhook_id };
    visit.change(&posted, Action::WebhooksTest, Resource::Webhook(webhook_id), change).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

pub(crate) async fn resend(visit: &Visit, posted: Posted) -> Result<Answer> {
    let (webhook_id, event_id) = (visit.id()?, visit.ids.get(1).copied().ok_or_else(Error::not_found)?);
    let change = |()| ResendDelivery { webhook_id, event_id };
    visit.change(&posted, Action::WebhooksResendDelivery, Resource::Webhook(webhook_id), change).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

pub(crate) async fn resend_what_failed(visit: &Visit, posted: Posted) -> Result<Answer> {
    let webhook_id = visit.id()?;
    let body = WantedHours(posted.form.get("hours").to_owned()).into();
    let change = |hours| ResendFailed { webhook_id, hours };
    visit.change_with(&posted, Action::WebhooksResendFailed, Resource::Webhook(webhook_id), body, change).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

pub(crate) async fn delete(visit: &Visit, posted: Posted) -> Result<Answer> {
    let webhook_id = visit.id()?;
    let change = |()| DeleteWebhook { webhook_id };
    let deleted = visit.change(&posted, Action::WebhooksDelete, Resource::Webhook(webhook_id), change).await;
    match deleted {
        // A second click finds it gone.
        Err(error) if error.code != Code::NotFound => Err(error),
        _ => Ok(Answer::see_other(&visit.in_scope("/webhooks"))),
    }
}
