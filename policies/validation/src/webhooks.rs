//! Webhook endpoints.

use crate::exports::culvert::policy::inputs::{NullableText, WebhookCreate, WebhookUpdate};
use crate::findings::Findings;
use crate::text;

const EVENTS: [&str; 11] = [
    "command.queued",
    "command.claimed",
    "command.running",
    "command.succeeded",
    "command.failed",
    "command.expired",
    "command.canceled",
    "tunnel.started",
    "tunnel.stopped",
    "device.online",
    "device.offline",
];

pub fn create(webhook: &WebhookCreate, findings: &mut Findings) {
    findings.require("url", webhook.url.as_ref());
    findings.require("events", webhook.events.as_ref());
    url(webhook.url.as_deref(), findings);
    events(webhook.events.as_deref(), findings);
    text::label(webhook.description.as_deref(), "description", findings);
}

pub fn update(change: &WebhookUpdate, findings: &mut Findings) {
    let WebhookUpdate { url: new_url, events: new_events, description, status } = change;
    findings.require_any(new_url.is_some() || new_events.is_some() || description.is_some() || status.is_some());
    url(new_url.as_deref(), findings);
    events(new_events.as_deref(), findings);
    if let Some(NullableText::Text(description)) = description {
        text::label(Some(description), "description", findings);
    }
}

fn url(url: Option<&str>, findings: &mut Findings) {
    let message = "must be an https:// URL of at most 2048 characters, without user information or fragment";
    findings.check(url.is_none_or(is_https), "url", "url", message);
}

fn is_https(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    scheme.eq_ignore_ascii_case("https")
        && url.len() <= 2048
        && !authority.is_empty()
        && !authority.contains(['@', '\\'])
        && !url.contains('#')
        && !url.contains(|c: char| c.is_control() || c.is_whitespace())
}

fn events(events: Option<&[String]>, findings: &mut Findings) {
    let Some(events) = events else { return };
    findings.check(!events.is_empty(), "events", "events-empty", "must hold at least one event");
    for (index, event) in events.iter().enumerate().take(EVENTS.len() + 1) {
        let field = format!("events[{index}]");
        let known = EVENTS.contains(&event.as_str());
        findings.check(known, &field, "event", &format!("must be one of {}", EVENTS.join(", ")));
        let again = events[..index].contains(event);
        findings.check(!again, &field, "duplicate", "stands in the list before it");
    }
}
