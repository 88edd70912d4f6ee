//! Errors as answers (RFC 9457). The only file that knows which status belongs to which code.

use std::sync::Arc;

use salvo::Response;
use salvo::http::StatusCode;
use salvo::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use schemars::JsonSchema;
use serde::Serialize;

use culvert_domain::error::{Chain, Code, Error, Fault};

/// Problem record
#[derive(Serialize, JsonSchema)]
pub struct Problem<'a> {
    /// A page that explains the code.
    #[schemars(extend("format" = "uri"))]
    r#type: String,
    title: &'a str,
    status: u16,
    /// What a client branches on.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_]{2,63}$"))]
    code: &'a str,
    detail: &'a str,
    request_id: &'a str,
    /// Every wrong field of the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldError<'a>>,
}

/// A wrong field
#[derive(Serialize, JsonSchema)]
pub struct FieldError<'a> {
    /// A path into the request: `rules[2].ip_cidr`. `body` stands for the whole body.
    field: &'a str,
    message: &'a str,
    /// The rule of a policy that refuses the field; absent where the host itself does.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
}

impl<'a> From<&'a Fault> for FieldError<'a> {
    fn from(fault: &'a Fault) -> Self {
        Self { field: &fault.field, message: &fault.message, rule: fault.rule.as_deref() }
    }
}

/// The status of a code.
pub fn status(code: &Code) -> StatusCode {
    match code {
        Code::ApiVersionGone | Code::LinkNotValid => StatusCode::GONE,
        Code::MissingApiKey | Code::InvalidApiKey | Code::SignInRequired => StatusCode::UNAUTHORIZED,
        Code::RateLimited | Code::DailyQuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        Code::UnsupportedContentEncoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::InsufficientScope
        | Code::FeatureNotAvailable
        | Code::PlanLimitReached
        | Code::CrossOriginRequest
        | Code::FormExpired
        | Code::ElevationRequired
        | Code::SecondFactorRequired
        | Code::Policy(_) => StatusCode::FORBIDDEN,
        Code::HostRequired
        | Code::InvalidContentType
        | Code::InvalidJson
        | Code::InvalidJsonObject
        | Code::IdempotencyKeyRequired
        | Code::InvalidIdempotencyKey => StatusCode::BAD_REQUEST,
        Code::ValidationFailed | Code::DomainNotVerified => StatusCode::UNPROCESSABLE_ENTITY,
        Code::IdempotencyConflict
        | Code::IdempotencyInProgress
        | Code::SubdomainUnavailable
        | Code::PortConflict
        | Code::NoPortAvailable
        | Code::NodeUnavailable
        | Code::ExtraPortLimitReached
        | Code::TunnelSuspended
        | Code::TunnelNotRunning
        | Code::DeviceOffline
        | Code::DeviceNotAllowed
        | Code::RemoteControlDisabled
        | Code::TargetNotAllowed
        | Code::UpgradeRequired
        | Code::TunnelAlreadyRunning
        | Code::OperationInProgress
        | Code::DomainInUse
        | Code::AlreadyOnNode
        | Code::KeyLimitReached
        | Code::DeliveryInFlight
        | Code::DevicePinned
        | Code::LimitReached
        | Code::LastCredential
        | Code::LastOwner
        | Code::LastOperator
        | Code::TeamNotEmpty
        | Code::PoliciesKept
        | Code::WebhookLimitReached
        | Code::WebhookDisabled => StatusCode::CONFLICT,
        Code::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
        Code::ServiceUnavailable | Code::PolicyUnavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Makes the response this problem, and keeps the error beside it.
pub fn render(response: &mut Response, error: Error, docs_url: &str, request_id: &str) {
    let status = status(&error.code);
    let code = error.code.as_str();
    log(&error, request_id);
    let problem = Problem {
        r#type: format!("{docs_url}/errors#{code}"),
        title: error.code.title(),
        status: status.as_u16(),
        code,
        detail: &error.detail,
        request_id,
        errors: error.faults.iter().map(FieldError::from).collect(),
    };
    response.status_code(status);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Some(wait) = error.retry_after {
        let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response.replace_body(serde_json::to_vec(&problem).unwrap_or_default().into());
    response.extensions.insert(Rendered(Arc::new(error)));
}

/// The error that a response tells of.
#[derive(Clone)]
pub struct Rendered(pub Arc<Error>);

/// One line about what caused an error. What the client did wrong has no cause.
fn log(error: &Error, request_id: &str) {
    let Some(source) = error.source.as_deref() else { return };
    if error.code == Code::InternalError {
        tracing::error!(request_id, error = %Chain(source), "internal error");
    } else {
        tracing::warn!(request_id, error = %Chain(source), "service unavailable");
    }
}

/// The error of a response that got a status from the framework and nothing else.
pub fn of_status(status: StatusCode) -> Error {
    Error::of(match status {
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::METHOD_NOT_ALLOWED => Code::MethodNotAllowed,
        StatusCode::PAYLOAD_TOO_LARGE => Code::PayloadTooLarge,
        status if status.is_client_error() => Code::InvalidJson,
        _ => Code::InternalError,
    })
}
