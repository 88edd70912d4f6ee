//! Refused requests, kept so that people can look up why.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::caller::Credential;
use super::error::{Code, Error, Fault};
use super::refused_by::{RefusedBy, Stage};
use super::text;

/// How long a refusal is kept.
pub const KEPT: TimeDelta = TimeDelta::days(30);
/// Refusals of a scope that are kept, about.
pub const PER_SCOPE: u32 = 10_000;
/// Characters of a path, of a detail and of what is wrong with a field that are kept.
const PATH: usize = 500;
const DETAIL: usize = 1000;
const MESSAGE: usize = 500;
/// Wrong fields that are kept.
const FAULTS: usize = 20;
const MASK: &str = "***";

/// A request that was refused to a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub request_id: Uuid,
    pub at: DateTime<Utc>,
    pub scope_id: Uuid,
    pub account_id: Uuid,
    /// `key`, `device` or `sign-in`, and its id.
    pub credential: String,
    pub credential_id: Uuid,
    pub method: String,
    pub path: String,
    pub status: u16,
    pub code: String,
    pub detail: String,
    pub stage: Stage,
    pub rule: Option<String>,
    pub faults: Vec<Fault>,
    pub refused_by: Option<RefusedBy>,
}

/// A request, as far as its refusal is told.
pub struct RefusedRequest<'a> {
    pub request_id: Uuid,
    pub scope_id: Uuid,
    pub account_id: Uuid,
    pub credential: &'a Credential,
    pub method: &'a str,
    pub path: &'a str,
    pub status: u16,
    /// Whether there is such a route at all.
    pub is_routed: bool,
}

impl Refusal {
    pub fn of(refused: &RefusedRequest<'_>, error: &Error, at: DateTime<Utc>) -> Self {
        let RefusedRequest { request_id, scope_id, account_id, credential, method, path, status, is_routed } = *refused;
        let secrets = error.refused_by.as_ref().map_or(&[][..], |by| &by.secrets);
        let kept = |said: &str, most| text::cleaned(&masked(said, secrets), most);
        let fault = |fault: &Fault| Fault { message: kept(&fault.message, MESSAGE), ..fault.clone() };
        let kind = match credential {
            Credential::Key { .. } => "key",
            Credential::Device(_) => "device",
            Credential::SignIn(_) => "sign-in",
        };
        Self {
            request_id,
            at,
            scope_id,
            account_id,
            credential: kind.into(),
            credential_id: credential.id(),
            method: method.into(),
            path: text::cleaned(path, PATH),
            status,
            code: error.code.as_str().into(),
            detail: kept(&error.detail, DETAIL),
            stage: if is_routed { stage(error) } else { Stage::Route },
            rule: error.rule().map(str::to_owned),
            faults: error.faults.iter().take(FAULTS).map(fault).collect(),
            refused_by: error.refused_by.as_deref().cloned(),
        }
    }
}

/// What a module says, without the secrets that it was asked about.
fn masked(said: &str, secrets: &[String]) -> String {
    let secrets = secrets.iter().filter(|secret| !secret.is_empty());
    secrets.fold(said.to_owned(), |said, secret| said.replace(secret.as_str(), MASK))
}

/// The check that has refused, by the code where no policy says it.
fn stage(error: &Error) -> Stage {
    if let Some(refused_by) = &error.refused_by {
        return refused_by.stage;
    }
    match error.code {
        Code::RateLimited | Code::DailyQuotaExceeded => Stage::Rate,
        Code::MethodNotAllowed => Stage::Route,
        Code::InsufficientScope
        | Code::SignInRequired
        | Code::ElevationRequired
        | Code::SecondFactorRequired
        | Code::CrossOriginRequest => Stage::Permission,
        Code::InvalidJson
        | Code::InvalidJsonObject
        | Code::InvalidContentType
        | Code::PayloadTooLarge
        | Code::RequestTimeout
        | Code::UnsupportedContentEncoding
        | Code::FormExpired => Stage::Body,
        Code::IdempotencyKeyRequired
        | Code::InvalidIdempotencyKey
        | Code::IdempotencyConflict
        | Code::IdempotencyInProgress => Stage::Replay,
        Code::NotFound => Stage::Resource,
        Code::FeatureNotAvailable | Code::PlanLimitReached => Stage::PlanAccess,
        Code::Policy(_) => Stage::TeamRole,
        Code::ValidationFailed => Stage::Validation,
        _ => Stage::State,
    }
}
