//! Requests to modules and their responses, for all kinds.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use url::Url;

use crate::engine::bindings::inputs::{Current, Facts, Input, NullableText};
use crate::engine::bindings::types::{Attribute, Denial, Verdict, Violation};
use crate::engine::bindings::{plans, roles};
use crate::engine::kind::Kind;
use crate::engine::wit_json::{self, WitJson};

/// What separates the pieces of a URL.
const SEPARATORS: [char; 8] = ['/', '?', '&', '=', '#', '@', ':', '\\'];
/// Shorter pieces of a URL are no secrets, and would be found in any text.
const PIECE: usize = 4;
/// Replaces a secret in a recorded request.
const MASK: &str = "********";

#[derive(Clone, Debug)]
pub enum PolicyRequest {
    /// What the plan of this name includes.
    Entitlements(String),
    PlanAccess(plans::Ask),
    TeamRole(roles::Ask),
    Validation(Box<(Input, Facts)>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum PolicyResponse {
    Entitlement(Option<plans::Entitlement>),
    Verdict(Verdict),
    Violations(Vec<Violation>),
}

impl PolicyRequest {
    /// The kind of the modules that evaluate the request.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Entitlements(_) | Self::PlanAccess(_) => Kind::PlanAccess,
            Self::TeamRole(_) => Kind::TeamRole,
            Self::Validation(_) => Kind::Validation,
        }
    }

    /// The function of the contract that evaluates the request.
    pub fn call(&self) -> &'static str {
        match self {
            Self::Entitlements(_) => "entitlements",
            Self::PlanAccess(_) | Self::TeamRole(_) => "check",
            Self::Validation(_) => "validate",
        }
    }

    /// Replaces the facts that go with the request.
    pub fn set_attributes(&mut self, attributes: Vec<Attribute>) {
        match self {
            Self::Entitlements(_) => {}
            Self::PlanAccess(ask) => ask.attributes = attributes,
            Self::TeamRole(ask) => ask.attributes = attributes,
            Self::Validation(asked) => asked.1.attributes = attributes,
        }
    }

    /// The request with its secrets redacted, and the secrets.
    pub fn redacted(mut self) -> (Self, Vec<Secret>) {
        let mut secrets = Vec::new();
        let mut mask = |field, text: Option<&mut String>| {
            if let Some(text) = text {
                secrets.push(Secret { field, text: std::mem::replace(text, MASK.into()) });
            }
        };
        let mut urls = Vec::new();
        let mut mask_url = |text: Option<&mut String>| urls.extend(text.into_iter().flat_map(mask_url));
        if let Self::Validation(asked) = &mut self {
            match &mut asked.0 {
                Input::TunnelCreate(new) => mask("http_basic_auth_password", new.http_basic_auth_password.as_mut()),
                Input::TunnelUpdate(patch) => {
                    if let Some(NullableText::Text(password)) = &mut patch.http_basic_auth_password {
                        mask("http_basic_auth_password", Some(password));
                    }
                }
                // The URL often contains what authenticates the host to the receiver.
                Input::WebhookCreate(new) => mask_url(new.url.as_mut()),
                Input::WebhookUpdate(patch) => mask_url(patch.url.as_mut()),
                _ => {}
            }
            if let Some(Current::Webhook(webhook)) = &mut asked.1.current {
                mask_url(Some(&mut webhook.url));
            }
        }
        secrets.extend(urls.into_iter().map(|text| Secret { field: "url", text }));
        (self, secrets)
    }
}

/// Masks what a URL may hold of a secret: user information, path and query. Scheme, host and port stay. Returns what
/// was masked.
fn mask_url(text: &mut String) -> Vec<String> {
    let Ok(url) = Url::parse(text) else { return vec![std::mem::replace(text, MASK.into())] };
    let Some(host) = url.host_str() else { return vec![std::mem::replace(text, MASK.into())] };
    let (user, password) = (url.username(), url.password().unwrap_or_default());
    let (path, query) = (url.path().trim_start_matches('/'), url.query().unwrap_or_default());
    let fragment = url.fragment().unwrap_or_default();
    let part =
        |parts: &[&str], masked: String| if parts.iter().any(|part| !part.is_empty()) { masked } else { String::new() };
    let masked = format!(
        "{}://{}{host}{}/{}{}",
        url.scheme(),
        part(&[user, password], format!("{MASK}@")),
        url.port().map(|port| format!(":{port}")).unwrap_or_default(),
        part(&[path], MASK.into()),
        part(&[query, fragment], format!("?{MASK}")),
    );
    let parts = [user, password, path, query, fragment];
    if parts.iter().all(|part| part.is_empty()) {
        return Vec::new();
    }
    // An answer may repeat the URL or a piece of it, as it was written or as it was read.
    let written = text.split_once("://").map_or(text.as_str(), |(_, rest)| rest);
    let pieces = written.split(SEPARATORS).skip(usize::from(user.is_empty() && password.is_empty()));
    let read = parts.iter().flat_map(|part| part.split(SEPARATORS)).chain(parts);
    let known = |piece: &&str| piece.len() >= PIECE && *piece != host;
    let mut secrets: Vec<String> = pieces.chain(read).filter(known).map(String::from).collect();
    secrets.push(text.clone());
    // The longest first, so that no part of one is left over.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.dedup();
    *text = masked;
    secrets
}

/// A secret that was redacted in a request.
#[derive(Clone, Debug)]
pub struct Secret {
    /// The name of the field that held the secret.
    pub field: &'static str,
    text: String,
}

impl Secret {
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Redacts the secret wherever it occurs in the texts of a response or an error. Names of fields, rules and codes
    /// stay as they are.
    pub fn redact(&self, said: &mut Value) {
        match said {
            Value::String(text) => self.redact_text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact(item)),
            Value::Object(fields) => {
                let texts = fields.iter_mut().filter(|(name, _)| !["field", "rule", "code"].contains(&name.as_str()));
                texts.for_each(|(_, value)| self.redact(value));
            }
            _ => {}
        }
    }

    /// Redacts the secret in a text, as it is and as `{:?}` writes it.
    pub fn redact_text(&self, text: &mut String) {
        if self.text.is_empty() {
            return;
        }
        let quoted = format!("{:?}", self.text);
        *text = text.replace(&self.text, MASK).replace(quoted.trim_matches('"'), MASK);
    }
}

/// Serializes the request in the contract's own names, as the test cases have it.
impl Serialize for PolicyRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Entitlements(plan) => {
                let mut parameters = serializer.serialize_map(Some(1))?;
                parameters.serialize_entry("plan", plan)?;
                parameters.end()
            }
            Self::PlanAccess(ask) => WitJson(ask).serialize(serializer),
            Self::TeamRole(ask) => WitJson(ask).serialize(serializer),
            Self::Validation(asked) => {
                let mut parameters = serializer.serialize_map(Some(2))?;
                parameters.serialize_entry("input", &WitJson(&asked.0))?;
                parameters.serialize_entry("facts", &WitJson(&asked.1))?;
                parameters.end()
            }
        }
    }
}

impl PolicyResponse {
    /// The response in the contract's own names, as the test cases have it.
    pub fn to_wit_json(&self) -> Value {
        match self {
            Self::Entitlement(entitlement) => wit_json::to_wit_json(entitlement),
            Self::Verdict(verdict) => wit_json::to_wit_json(verdict),
            Self::Violations(violations) => wit_json::to_wit_json(violations),
        }
    }

    /// A one-word summary of the response, for logs and metrics.
    pub fn outcome_label(&self) -> OutcomeLabel {
        match self {
            Self::Entitlement(Some(_)) => OutcomeLabel::Known,
            Self::Entitlement(None) => OutcomeLabel::Unknown,
            Self::Verdict(Verdict::Allow) => OutcomeLabel::Allow,
            Self::Verdict(Verdict::Deny(_)) => OutcomeLabel::Deny,
            Self::Violations(violations) if violations.is_empty() => OutcomeLabel::Valid,
            Self::Violations(_) => OutcomeLabel::Invalid,
        }
    }

    /// The rules that led to the denial or to the violations.
    pub fn rules(&self) -> Vec<&str> {
        match self {
            Self::Entitlement(_) | Self::Verdict(Verdict::Allow) => Vec::new(),
            Self::Verdict(Verdict::Deny(Denial { rule, .. })) => vec![rule],
            Self::Violations(violations) => violations.iter().map(|violation| violation.rule.as_str()).collect(),
        }
    }

    /// Whether a client would get the same outcome: the same code, or violations of the same fields.
    pub fn same_outcome(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Verdict(Verdict::Deny(one)), Self::Verdict(Verdict::Deny(other))) => one.code == other.code,
            (Self::Violations(one), Self::Violations(other)) => fields(one) == fields(other),
            (one, other) => one == other,
        }
    }
}

fn fields(violations: &[Violation]) -> std::collections::BTreeSet<&str> {
    violations.iter().map(|violation| violation.field.as_str()).collect()
}

/// A one-word summary of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeLabel {
    Allow,
    Deny,
    Valid,
    Invalid,
    /// The module knows the plan.
    Known,
    Unknown,
}

impl OutcomeLabel {
    pub const ALL: [Self; 6] = [Self::Allow, Self::Deny, Self::Valid, Self::Invalid, Self::Known, Self::Unknown];

    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Valid => "valid",
            Self::Invalid => "invalid",
            Self::Known => "known",
            Self::Unknown => "unknown",
        }
    }
}
