//! Webhooks go to known hosts.

use culvert::policy::types::Violation;
use culvert_policy_sdk::pattern::is_domain_or_below;
use culvert_policy_sdk::url::Url;
use exports::culvert::policy::inputs::{Facts, Input};

culvert_policy_sdk::policy! {
    WebhookHosts: "validation", wit: "../../../wit",
    settings: "../settings.schema.json",
    rules: { "webhook-host": "Webhooks go to one of the hosts, or below it" },
}

#[derive(serde::Deserialize)]
struct WebhookHosts {
    hosts: Vec<String>,
}

impl WebhookHosts {
    fn validate(&self, input: &Input, _: &Facts) -> Vec<Violation> {
        let url = match input {
            Input::WebhookCreate(new) => new.url.as_deref(),
            Input::WebhookUpdate(patch) => patch.url.as_deref(),
            _ => None,
        };
        let Some(host) = url.map(|url| Url::parse(url).map_or("", |url| url.host)) else { return Vec::new() };
        if self.hosts.iter().any(|known| is_domain_or_below(host, known)) {
            return Vec::new();
        }
        vec![violation("url", "webhook-host", format!("must lead to {}", self.hosts.join(" or ")))]
    }
}
