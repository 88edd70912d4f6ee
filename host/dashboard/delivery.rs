//! One event that was sent to a webhook endpoint: its attempts, what was sent, and why a receiver does not find it genuine.

use culvert_domain::error::{Error, Result};
use culvert_domain::webhook::{Attempt, AttemptError, AttemptStatus, Webhook};
use culvert_service::signature_check::{Finding, Given};
use maud::{Markup, html};
use salvo::http::StatusCode;
use uuid::Uuid;

use crate::answer::Answer;
use crate::docs::book::inline;
use crate::form::KEY;
use crate::view::{advice, badge, field, page, secret, time};
use crate::visit::{Posted, Visit};
use crate::webhook::outcome;

const PAGE: &str = "{s}/webhooks/{id}/deliveries/{id}";

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    shown(visit, Asked::default()).await
}

/// What was asked of the page.
#[derive(Default)]
struct Asked<'a> {
    payload: Option<&'a str>,
    check: Option<(&'a Given, &'a [Finding])>,
}

async fn shown(visit: &Visit, asked: Asked<'_>) -> Result<Markup> {
    let Asked { payload, check } = asked;
    let (webhook, event_id) = endpoint_and_event(visit).await?;
    let attempts = visit.service().attempts_of_event(&webhook, event_id).await?;
    let path = |action: &str| format!("{}/{action}", visit.path_of(PAGE));
    let content = html! {
        p { "To " a href=(visit.in_scope(&format!("/webhooks/{}", webhook.id))) { (webhook.url) } }
        section {
            h2 { "Attempts" }
            (table(&attempts))
            @if let Some(error) = last_error(&attempts) { p { (inline(advice::of_delivery(error))) } }
        }
        section {
            h2 { "Payload" }
            @if let Some(payload) = payload { (secret::command(payload)) }
            p { "It was fixed when the event happened, and is the same in every attempt. That somebody looks at it has an entry in the audit log." }
            (field::button(visit, &path("payload"), "Show the payload"))
        }
        section {
            h2 { "Check a signature" }
            @if let Some((_, findings)) = check { (found(findings)) }
            (signature_form(visit, event_id, &path("signature"), check.map(|(given, _)| given)))
        }
    };
    let title = attempts.first().map_or_else(String::new, |attempt| format!("Delivery of {}", attempt.event));
    Ok(page::signed_in(visit, &title, &content))
}

async fn endpoint_and_event(visit: &Visit) -> Result<(Webhook, Uuid)> {
    let event_id = visit.ids.get(1).copied().ok_or_else(Error::not_found)?;
    Ok((visit.service().webhook(&visit.caller, visit.id()?).await?, event_id))
}

/// Why the last attempt that was made has failed.
fn last_error(attempts: &[Attempt]) -> Option<AttemptError> {
    attempts.iter().find(|attempt| attempt.status != AttemptStatus::Pending)?.error
}

fn table(attempts: &[Attempt]) -> Markup {
    html! {
        div.scroll role="region" aria-label="Attempts" tabindex="0" { table {
            thead { tr { th { "Attempt" } th { "State" } th { "Answer" } th { "When" } th { "Next attempt" } } }
            tbody { @for attempt in attempts { tr {
                td { (attempt.number) }
                td { (badge::attempt(attempt.status)) }
                td { (outcome(attempt)) }
                td { (time::at(attempt.attempted_at.unwrap_or(attempt.created_at))) }
                td { (time::maybe(attempt.next_attempt_at, "–")) }
            } } }
        } }
    }
}

/// What a receiver has goes into it as it is. None of it is stored; all but the secret stands in the form again.
fn signature_form(visit: &Visit, event_id: Uuid, path: &str, given: Option<&Given>) -> Markup {
    let event_id = event_id.to_string();
    let value = |of: fn(&Given) -> &String| given.map(of).map_or("", String::as_str);
    let text = |name, label, value| field::Field { name, label, value, required: true, ..field::Field::default() };
    html! {
        p { "Does your receiver find the delivery not genuine? Give what it has, and you are told which part differs from what was sent. Nothing of it is kept." }
        form method="post" action=(path) {
            (field::hidden(KEY, &visit.form_key(path)))
            (field::text(&field::Field { kind: "password", hint: Some("As it was shown when the endpoint was made."), ..text("secret", "Secret", "") }))
            (field::text(&text("id", "Service-Webhook-Id", given.map_or(&event_id, |given| &given.id))))
            (field::text(&text("timestamp", "Service-Webhook-Timestamp", value(|given| &given.timestamp))))
            (field::text(&text("signature", "Service-Webhook-Signature", value(|given| &given.signature))))
            (field::lines("payload", "Body", value(|given| &given.body), None))
            button type="submit" { "Check" }
        }
    }
}

pub(crate) async fn read_payload(visit: &Visit, _: Posted) -> Result<Answer> {
    let (webhook, event_id) = endpoint_and_event(visit).await?;
    let payload = visit.service().read_payload(&visit.policies, &visit.caller, webhook.id, event_id).await?;
    let page = shown(visit, Asked { payload: Some(&payload), check: None }).await?;
    Ok(Answer::page(StatusCode::OK, page))
}

pub(crate) async fn check_signature(visit: &Visit, posted: Posted) -> Result<Answer> {
    visit.dashboard.sign_ins.count_signature_check(&visit.sign_in)?;
    let (webhook, event_id) = endpoint_and_event(visit).await?;
    let field = |name| posted.form.get(name).to_owned();
    let given = Given {
        secret: field("secret"),
        id: field("id"),
        timestamp: field("timestamp"),
        signature: field("signature"),
        // Browsers send line breaks as CR LF.
        body: posted.form.get("payload").replace("\r\n", "\n"),
    };
    let findings = visit.service().check_signature(&webhook, event_id, &given).await?;
    let page = shown(visit, Asked { payload: None, check: Some((&given, &findings)) }).await?;
    Ok(Answer::page(StatusCode::OK, page))
}

fn found(findings: &[Finding]) -> Markup {
    let class = if findings.contains(&Finding::Genuine) { "ok" } else { "bad" };
    html! { div.notice.(class) role="status" { @for finding in findings { p { (about(*finding)) } } } }
}

fn about(finding: Finding) -> &'static str {
    match finding {
        Finding::Genuine => "The signature is genuine.",
        Finding::SecretHasSpace => {
            "Secret: it is this endpoint's, with a space or a line break at an end. Take that off."
        }
        Finding::SecretWithoutPrefix => {
            "Secret: “whsec_” is missing. The key is the whole text, and is not decoded from base64."
        }
        Finding::SecretIsAnother => "Secret: it is not this endpoint's.",
        Finding::IdIsAnother => "Service-Webhook-Id: it is another event's.",
        Finding::TimestampIsNoNumber => {
            "Service-Webhook-Timestamp: it must be whole seconds since 1970, such as 1760000000."
        }
        Finding::TimestampIsInMilliseconds => {
            "Service-Webhook-Timestamp: these are milliseconds; it is sent in seconds."
        }
        Finding::TimestampIsOld => {
            "Service-Webhook-Timestamp: it is more than five minutes from now. A receiver refuses that, also where the signature is right."
        }
        Finding::SignatureIsOfAnotherScheme => {
            "Service-Webhook-Signature: this is how another service signs. It is “v1=” and 64 hexadecimal digits."
        }
        Finding::SignatureIsMalformed => "Service-Webhook-Signature: it must be “v1=” and 64 hexadecimal digits.",
        Finding::BodyWasWrittenAnew => {
            "Body: the JSON is the same, and the bytes are not. Check the body as it came, before it is parsed."
        }
        Finding::BodyHasSpace => "Body: there are spaces or line breaks around it that were not sent.",
        Finding::BodyIsAnother => "Body: it is not what was sent for this event.",
        Finding::SignatureIsOfAnotherAttempt => {
            "Each part is right by itself. The signature and the timestamp are not of the same attempt: each attempt has its own."
        }
    }
}
