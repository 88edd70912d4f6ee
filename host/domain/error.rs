//! What can go wrong, without a word about HTTP.
//!
//! An [`Error`] is what a client is told: a code from the closed list of [`Code`] or one that a
//! policy brought along, and a detail. Its source is for the log, where the error leaves the program:
//! `http/problem.rs` makes it an answer.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::refused_by::RefusedBy;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Faults that one answer names.
pub const MOST_FAULTS: usize = 1000;

#[derive(Debug)]
pub struct Error {
    pub code: Code,
    pub detail: Cow<'static, str>,
    /// The fields of the request that are wrong, for `validation_failed`.
    pub faults: Vec<Fault>,
    /// The policy that has refused, if one has. Clients are told its rule alone.
    pub refused_by: Option<Box<RefusedBy>>,
    /// When it is worth asking again.
    pub retry_after: Option<Duration>,
    /// What caused it. Clients are not told.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// One wrong field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// A path into the request: `rules[2].ip_cidr`.
    pub field: String,
    pub message: String,
    /// The rule of a policy that refuses the field.
    pub rule: Option<String>,
}

impl Fault {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into(), rule: None }
    }

    /// A fault that a rule of a policy found.
    pub fn by_rule(field: String, message: String, rule: String) -> Self {
        Self { field, message, rule: Some(rule) }
    }
}

impl Error {
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { code, detail: detail.into(), faults: Vec::new(), refused_by: None, retry_after: None, source: None }
    }

    /// With the code's own sentence for a detail.
    pub fn of(code: Code) -> Self {
        let detail = code.title().to_owned() + ".";
        Self::new(code, detail)
    }

    /// A resource that is absent, or that the caller may not know of: the two look the same.
    pub fn not_found() -> Self {
        Self::new(Code::NotFound, "There is no such resource.")
    }

    /// More faults than [`MOST_FAULTS`] are not told of: the answer would be longer than the request.
    pub fn invalid(mut faults: Vec<Fault>) -> Self {
        faults.truncate(MOST_FAULTS);
        Self { faults, ..Self::new(Code::ValidationFailed, "The request has invalid fields; `errors` names them.") }
    }

    /// Something of ours broke. The cause is logged where the error leaves the program.
    pub fn internal(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let error =
            Self::new(Code::InternalError, "Something went wrong on our side. The request id helps us to find it.");
        Self { source: Some(cause.into()), ..error }
    }

    /// Something that will pass.
    pub fn unavailable(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let error = Self::new(Code::ServiceUnavailable, "The service cannot answer right now; try again.");
        Self { source: Some(cause.into()), ..error.after(Duration::from_secs(1)) }
    }

    /// Whether a client is told nothing of the cause.
    pub fn hides_its_source(&self) -> bool {
        matches!(self.code, Code::InternalError | Code::ServiceUnavailable)
    }

    /// What is wrong with a field.
    pub fn fault(&self, field: &str) -> Option<&str> {
        self.faults.iter().find(|fault| fault.field == field).map(|fault| fault.message.as_str())
    }

    /// The rule of a policy that refuses the request.
    pub fn rule(&self) -> Option<&str> {
        self.refused_by.as_ref()?.rule.as_deref()
    }

    #[must_use]
    pub fn after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.detail)?;
        for Fault { field, message, .. } in &self.faults {
            write!(f, " ({field} {message})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// An error with its sources, for a log line: `outer: inner: innermost`. A source that the one before it
/// has said already is left out. Of an [`Error`] that hides its source from clients, the sources alone are shown.
pub struct Chain<'a>(pub &'a (dyn std::error::Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hides = self.0.downcast_ref::<Error>().filter(|error| error.hides_its_source());
        let outer = hides.and_then(std::error::Error::source).unwrap_or(self.0);
        let mut said = outer.to_string();
        let mut source = outer.source();
        while let Some(error) = source {
            let text = error.to_string();
            if !said.ends_with(&text) {
                said = format!("{said}: {text}");
            }
            source = error.source();
        }
        f.write_str(&said)
    }
}

/// Whether a text has the form of a code: `^[a-z][a-z0-9_]{2,63}$`.
pub fn is_code(text: &str) -> bool {
    let rest = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    (3..=64).contains(&text.len()) && text.as_bytes()[0].is_ascii_lowercase() && text.bytes().all(rest)
}

impl Code {
    /// Whether the dashboard alone answers with it, and no endpoint of the API.
    pub fn is_of_dashboard(&self) -> bool {
        use Code::{
            CrossOriginRequest, DeliveryInFlight, DevicePinned, ElevationRequired, FormExpired, KeyLimitReached,
            LastCredential, LastOperator, LastOwner, LimitReached, LinkNotValid, PoliciesKept, SecondFactorRequired,
            SignInRequired, TeamNotEmpty,
        };
        let refused = matches!(
            self,
            SignInRequired | CrossOriginRequest | FormExpired | ElevationRequired | SecondFactorRequired
        );
        refused
            || matches!(
                self,
                KeyLimitReached
                    | DeliveryInFlight
                    | DevicePinned
                    | LimitReached
                    | LastCredential
                    | LastOwner
                    | LastOperator
                    | TeamNotEmpty
                    | PoliciesKept
                    | LinkNotValid
            )
    }

    /// The code of a denial: one of the host's own, or one that the policy brought along.
    pub fn from_policy(code: String) -> Self {
        Self::ALL.iter().find(|own| own.as_str() == code).cloned().unwrap_or(Self::Policy(code))
    }
}

macro_rules! codes {
    ($($variant:ident $code:literal $title:literal $text:literal)*) => {
        /// The codes of the API. `code` is an open string: a policy brings its own.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $(#[doc = $title] $variant,)*
            /// One that a loaded policy declares.
            Policy(String),
        }

        impl Code {
            /// Every code that the host answers with by itself.
            pub const ALL: &[Code] = &[$(Code::$variant),*];

            pub fn as_str(&self) -> &str {
                match self {
                    $(Code::$variant => $code,)*
                    Code::Policy(code) => code,
                }
            }

            /// A few words, the same for every occurrence.
            pub fn title(&self) -> &'static str {
                match self {
                    $(Code::$variant => $title,)*
                    Code::Policy(_) => "Refused by a policy",
                }
            }

            /// What it means and what to do, for the documentation.
            pub fn explanation(&self) -> &'static str {
                match self {
                    $(Code::$variant => $text,)*
                    Code::Policy(_) => "",
                }
            }
        }
    };
}

codes! {
    ApiVersionGone "api_version_gone" "This API version is gone"
        "Version 1 of the API has ended. Use the routes under /v2, with a key made for them."
    MissingApiKey "missing_api_key" "An API key is required"
        "Send the key with every request: `Authorization: Bearer <API_KEY>`."
    InvalidApiKey "invalid_api_key" "The API key is not valid"
        "The key is unknown, malformed, expired, revoked, of a previous API version, or of a Team that its account has \
         left. Use another key; retrying changes nothing."
    RateLimited "rate_limited" "Too many requests"
        "Wait for as many seconds as `Retry-After` says. Refused requests are not counted."
    DailyQuotaExceeded "daily_quota_exceeded" "The day's requests are used up"
        "The key has used its requests for 24 hours. Wait for as many seconds as `Retry-After` says."
    NotFound "not_found" "Not found"
        "The route does not exist, or the resource does not exist in the scope of the key. The two cannot be told apart \
         for a resource of another scope."
    MethodNotAllowed "method_not_allowed" "The route does not know this method"
        "The `Allow` header lists the methods that the route knows."
    InsufficientScope "insufficient_scope" "The key lacks a scope"
        "The detail names the scope that the request needs. Make a key that has it."
    FeatureNotAvailable "feature_not_available" "The plan does not include this"
        "The API or the requested action is not available to the account. Do not retry in a tight loop and do not rotate \
         the key: the same key works again once access returns."
    InvalidContentType "invalid_content_type" "The body is not JSON"
        "A request with a body needs `Content-Type: application/json`."
    HostRequired "host_required" "A Host header is required"
        "An HTTP/1.1 request has exactly one `Host` header (RFC 9112, section 3.2)."
    RequestTimeout "request_timeout" "The request took too long"
        "The body did not arrive in time. Send it without pauses."
    UnsupportedContentEncoding "unsupported_content_encoding" "The body's encoding is not supported"
        "A request body is sent as it is: without `Content-Encoding`, or with `identity` (RFC 9110, section 8.4)."
    PayloadTooLarge "payload_too_large" "The body is too large"
        "A request body has at most 256 KiB."
    InvalidJson "invalid_json" "The body is not valid JSON"
        "The detail says where the JSON breaks. A key that stands twice in one object counts as broken."
    InvalidJsonObject "invalid_json_object" "The body is not a JSON object"
        "The JSON is valid, but its root is not an object."
    IdempotencyKeyRequired "idempotency_key_required" "An Idempotency-Key is required"
        "Send the header `Idempotency-Key` with a value of your own that names this one effect, such as a UUID."
    InvalidIdempotencyKey "invalid_idempotency_key" "The Idempotency-Key is not valid"
        "An Idempotency-Key has 1 to 128 visible ASCII characters."
    IdempotencyConflict "idempotency_conflict" "The Idempotency-Key was used for another request"
        "The key belongs to a request with another method, path, query or body. Use a new key for a new effect."
    IdempotencyInProgress "idempotency_in_progress" "The first request with this key is still running"
        "Repeat the request after `Retry-After` seconds to get its result."
    ValidationFailed "validation_failed" "The request has invalid fields"
        "`errors` lists every wrong field with what is allowed."
    PlanLimitReached "plan_limit_reached" "A limit of the plan is reached"
        "Delete something of the kind, or change the plan."
    SubdomainUnavailable "subdomain_unavailable" "The subdomain is taken"
        "Choose another subdomain. One that another account or Team has given up is free after a day. Names such as `p8080-web` \
         are those of extra ports."
    PortConflict "port_conflict" "The tunnel has this port already"
        "An http extra port is addressed by its local port, so a tunnel has one of each number. Choose another \
         `local_port`, or delete the port that is there."
    NoPortAvailable "no_port_available" "The node has no free port"
        "Delete tunnels or extra ports on the node, or place the tunnel elsewhere."
    NodeUnavailable "node_unavailable" "No node can take the tunnel"
        "No node of the platform is online and eligible. Try again later."
    ExtraPortLimitReached "extra_port_limit_reached" "The tunnel has no room for more extra ports"
        "A tunnel has at most 10 extra ports."
    TunnelSuspended "tunnel_suspended" "The tunnel is suspended"
        "The bandwidth of the month is used up. It returns when the month turns (UTC), or with another plan."
    TunnelNotRunning "tunnel_not_running" "The tunnel is not running"
        "The action needs a tunnel that runs on a device. Start it first."
    DeviceOffline "device_offline" "The device is offline"
        "No command was queued. Try again when the device is online."
    DeviceNotAllowed "device_not_allowed" "The device is not allowed for this tunnel"
        "Add the device to the tunnel's device bindings, or name one that is listed there."
    RemoteControlDisabled "remote_control_disabled" "Remote control is turned off on the device"
        "It can only be turned on at the device: `culvert-agent remote-control enable`."
    TargetNotAllowed "target_not_allowed" "The device's owner has not allowed this target"
        "Remote control leads to what the device's owner allowed. The detail has the command that allows more, to be run \
         on the device: `culvert-agent targets allow <TARGET>`."
    UpgradeRequired "upgrade_required" "The device's agent is too old"
        "The agent lacks a capability that the action needs. Update it on the device."
    TunnelAlreadyRunning "tunnel_already_running" "Another device runs the tunnel"
        "Send `handoff: true` to stop it there and go on here."
    OperationInProgress "operation_in_progress" "Another operation is active"
        "An operation on the same tunnel or device has not ended yet. Wait for it."
    WebhookLimitReached "webhook_limit_reached" "The scope has no room for more webhook endpoints"
        "A personal or Team scope has at most 20 webhook endpoints. Delete one first."
    WebhookDisabled "webhook_disabled" "The webhook endpoint is disabled"
        "Nothing is sent to a disabled endpoint. Enable it first: `PATCH` with `status: enabled`."
    DomainNotVerified "domain_not_verified" "The domain is not verified"
        "A custom domain is assigned once its CNAME was found: `POST …/domain/actions/verify` looks for it."
    DomainInUse "domain_in_use" "The domain belongs to another tunnel"
        "Remove it from the other tunnel first."
    AlreadyOnNode "already_on_node" "The tunnel is on this node"
        "Choose another node of `GET /nodes`."
    SignInRequired "sign_in_required" "Sign in first"
        "Nobody is signed in, or the sign-in has ended. Sign in at the dashboard."
    CrossOriginRequest "cross_origin_request" "The request comes from another site"
        "The dashboard takes changes from its own pages alone. Open the dashboard and do it there."
    FormExpired "form_expired" "The form is too old"
        "A form is good for 12 hours, for the sign-in that opened it. Send it again."
    ElevationRequired "elevation_required" "Prove who you are"
        "The change needs the password once more, because somebody else may have found the browser open."
    SecondFactorRequired "second_factor_required" "A second factor is required"
        "Sign in with a passkey, or set up an authenticator app on the page of your account: `dashboard.require_second_factor` \
         asks for it."
    KeyLimitReached "key_limit_reached" "There is no room for more API keys"
        "An account has at most 50 valid keys in a scope. Revoke one first."
    DeliveryInFlight "delivery_in_flight" "The event is being sent"
        "Wait for the attempt that is under way, and look what becomes of it."
    DevicePinned "device_pinned" "A tunnel may run on this device alone"
        "Let other devices run the tunnel, or delete it, before the device is removed."
    LimitReached "limit_reached" "There is no room for more"
        "An account owns at most 20 Teams, and a Team has at most 100 open invitations. Delete one first."
    LastOwner "last_owner" "The Team would have no owner"
        "Make another member an owner first."
    LastOperator "last_operator" "The installation would have no operator"
        "Make another account an operator first."
    TeamNotEmpty "team_not_empty" "The Team has tunnels or devices"
        "Delete its tunnels and remove its devices first."
    LastCredential "last_credential" "Nothing would be left to sign in with"
        "Set a password, or add another passkey first."
    PoliciesKept "policies_kept" "The policies stay as they are"
        "The configured policies could not be loaded, or there are no earlier ones. Those that are in use stay in use."
    LinkNotValid "link_not_valid" "The link is not valid"
        "A link can be used once: to sign in, within 30 minutes, and an invitation within 7 days. Whoever made it makes \
         another one; `culvert account link` does on the server."
    InternalError "internal_error" "Something went wrong"
        "The fault is ours. Report the request id; a retry with the same Idempotency-Key is safe."
    ServiceUnavailable "service_unavailable" "The service is not available"
        "Try again after `Retry-After` seconds; a retry with the same Idempotency-Key is safe."
    PolicyUnavailable "policy_unavailable" "A policy gave no answer"
        "A policy that must agree to the request failed, so nothing was done. Try again after `Retry-After` seconds; if \
         it lasts, the operator's log says why."
}
