//! Webhook endpoints, and the attempts to send them events.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::error::{Code, Error, Result};
use super::event::EventKind;
use super::string_enum::string_enum;

/// Endpoints of one scope, whatever its plan says: the API's limit.
pub const ENDPOINTS_PER_SCOPE: u32 = 20;

/// Whether a scope with so many endpoints can have another.
///
/// # Errors
///
/// [`Code::WebhookLimitReached`]
pub fn check_room(endpoints: u32) -> Result<()> {
    if endpoints < ENDPOINTS_PER_SCOPE {
        return Ok(());
    }
    let detail = format!("{endpoints} webhook endpoints exist; a scope can have {ENDPOINTS_PER_SCOPE}.");
    Err(Error::new(Code::WebhookLimitReached, detail))
}

/// Attempts that a list of deliveries shows: the API's limit.
pub const ATTEMPTS_SHOWN: u32 = 100;

/// About how long after a failed attempt the next one is made; see
/// `docs/develop/decisions/0011-events-and-webhooks.md`.
pub const RETRIES: [Duration; 5] = [
    Duration::from_mins(1),
    Duration::from_mins(5),
    Duration::from_mins(30),
    Duration::from_hours(2),
    Duration::from_hours(12),
];

string_enum! {
    WebhookStatus {
        Enabled "enabled",
        Disabled "disabled",
    }
}

string_enum! {
    AttemptStatus {
        /// It is still to be made, or under way.
        Pending "pending",
        Succeeded "succeeded",
        Failed "failed",
        /// The endpoint was disabled before it was made, or too many others waited for it.
        Canceled "canceled",
    }
}

string_enum! {
    /// Why an attempt failed.
    AttemptError {
        /// The name has no public address.
        DnsFailed "dns_failed",
        /// The URL spells out an address that is not public.
        AddressBlocked "address_blocked",
        ConnectFailed "connect_failed",
        TlsError "tls_error",
        /// No complete answer within 15 seconds.
        Timeout "timeout",
        /// An answer other than 2xx.
        HttpStatus "http_status",
        /// An answer of more than 16 KiB.
        TooLarge "too_large",
        /// Too many others waited for the endpoint, so it was not made.
        TooManyWaiting "too_many_waiting",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    pub id: Uuid,
    pub scope_id: Uuid,
    pub url: String,
    pub events: Vec<EventKind>,
    pub description: Option<String>,
    pub status: WebhookStatus,
    pub last_delivery: Option<LastDelivery>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// How the attempt that ended last came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastDelivery {
    pub status: AttemptStatus,
    pub at: DateTime<Utc>,
}

/// One attempt to send one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub id: Uuid,
    pub event_id: Uuid,
    /// The event's kind, or `webhook.test`.
    pub event: String,
    /// From 1.
    pub number: u32,
    pub status: AttemptStatus,
    pub status_code: Option<u16>,
    pub error: Option<AttemptError>,
    pub duration_ms: Option<u64>,
    pub created_at: DateTime<Utc>,
    /// When it was made; none while it is pending.
    pub attempted_at: Option<DateTime<Utc>>,
    /// When this attempt is due, while it is pending; when the next one is, once it has failed.
    pub next_attempt_at: Option<DateTime<Utc>>,
}

/// How an attempt came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub status_code: Option<u16>,
    /// None for a success.
    pub error: Option<AttemptError>,
    pub duration: Duration,
}

/// An attempt that is to be made now.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub id: Uuid,
    pub lease: i64,
    pub attempt: u32,
    /// Somebody has asked for it: it is made once, and takes the place of what waits.
    pub resent: bool,
    pub webhook_id: Uuid,
    pub scope_id: Uuid,
    pub url: String,
    /// Earlier ones were not answered in time, and this one gets less of it.
    pub has_less_time: bool,
    /// What the signature is keyed with.
    pub secret: String,
    pub event_id: Uuid,
    pub body: Vec<u8>,
}
