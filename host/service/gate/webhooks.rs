//! Admission of requests about webhook endpoints: request bodies and their validated forms.

use super::{RequestDraft, check_text};
use culvert_api_types::read::Nullable;
use culvert_api_types::requests::{Input, NewWebhook, WebhookPatch};
use culvert_domain::error::{Fault, Result};
use culvert_domain::event::EventKind;
use culvert_domain::facts::ResourceFacts;
use culvert_domain::plan::Entitlement;
use culvert_domain::string_enum::StringEnum;
use culvert_domain::webhook::WebhookStatus;
use culvert_webhook::guard::{self, Guard};

/// A validated request to create a webhook endpoint.
#[derive(Clone, Debug)]
pub struct WebhookDefinition {
    pub url: String,
    pub events: Vec<EventKind>,
    pub description: Option<String>,
}

impl RequestDraft for NewWebhook {
    type Valid = WebhookDefinition;

    async fn check_external(&self, guard: &Guard) -> Vec<Fault> {
        leads_outside(self.url.as_deref(), guard).await
    }

    fn input(&self) -> Option<Input<'_>> {
        Some(Input::WebhookCreate(self))
    }

    fn validate(self, _: &ResourceFacts, _: &Entitlement) -> Result<WebhookDefinition, Vec<Fault>> {
        let mut faults = Vec::new();
        let url = self.url.unwrap_or_default();
        check_url(&url, &mut faults);
        let events = events(self.events.unwrap_or_default(), &mut faults);
        check_text(self.description.as_deref(), "description", &mut faults);
        let definition = WebhookDefinition { url, events, description: self.description };
        if faults.is_empty() { Ok(definition) } else { Err(faults) }
    }
}

/// A validated change of a webhook endpoint. Absent fields keep their value.
#[derive(Clone, Debug)]
pub struct WebhookChange {
    pub url: Option<String>,
    pub events: Option<Vec<EventKind>>,
    pub description: Nullable<String>,
    pub status: Option<WebhookStatus>,
}

impl RequestDraft for WebhookPatch {
    type Valid = WebhookChange;

    async fn check_external(&self, guard: &Guard) -> Vec<Fault> {
        leads_outside(self.url.as_deref(), guard).await
    }

    fn input(&self) -> Option<Input<'_>> {
        Some(Input::WebhookUpdate(self))
    }

    fn validate(self, _: &ResourceFacts, _: &Entitlement) -> Result<WebhookChange, Vec<Fault>> {
        let mut faults = Vec::new();
        if self == Self::default() {
            faults.push(Fault::new("body", "at least one field is required"));
        }
        self.url.iter().for_each(|url| check_url(url, &mut faults));
        let events = self.events.map(|words| events(words, &mut faults));
        let description = self.description.as_ref().and_then(|description| description.as_deref());
        check_text(description, "description", &mut faults);
        let change = WebhookChange { url: self.url, events, description: self.description, status: self.status };
        if faults.is_empty() { Ok(change) } else { Err(faults) }
    }
}

fn check_url(url: &str, faults: &mut Vec<Fault>) {
    if !guard::is_endpoint(url) || !url.starts_with("https://") || url.len() > 2048 {
        faults.push(Fault::new("url", "must be an https:// URL of at most 2048 characters"));
    }
}

fn events(words: Vec<String>, faults: &mut Vec<Fault>) -> Vec<EventKind> {
    if words.is_empty() {
        faults.push(Fault::new("events", "must hold at least one event"));
    }
    let mut events = Vec::new();
    for (index, word) in words.iter().enumerate() {
        match EventKind::parse(word) {
            Some(event) if !events.contains(&event) => events.push(event),
            _ => {
                let message = format!("must be one of {}, each once", EventKind::list());
                faults.push(Fault::new(format!("events[{index}]"), message));
            }
        }
    }
    events
}

/// Faults a webhook URL whose host does not resolve or is not public.
async fn leads_outside(url: Option<&str>, guard: &Guard) -> Vec<Fault> {
    let Some(url) = url else { return Vec::new() };
    match guard.check_endpoint(url).await {
        Ok(()) => Vec::new(),
        Err(refused) => vec![Fault::new("url", refused.to_string())],
    }
}
