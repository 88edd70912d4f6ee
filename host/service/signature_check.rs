//! What is wrong with a signature of a webhook delivery that a receiver does not find genuine: each part is compared with what
//! was sent.

use chrono::{DateTime, TimeDelta, Utc};
use culvert_webhook::sign::{is_signature, signature};
use serde_json::Value;
use uuid::Uuid;

/// How old a delivery may be for a receiver that does as the documentation says.
const FRESH: TimeDelta = TimeDelta::minutes(5);
/// Seconds since the Unix epoch that are not reached before the year 5138: more are milliseconds.
const MOST_SECONDS: i64 = 100_000_000_000;

/// The parts as a receiver has them.
pub struct Given {
    pub secret: String,
    pub id: String,
    pub timestamp: String,
    pub signature: String,
    pub body: String,
}

/// What was sent.
pub(crate) struct Sent {
    pub secret: String,
    pub event_id: Uuid,
    pub body: Vec<u8>,
}

/// What is to be said of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// All parts are right, and the signature is theirs.
    Genuine,
    SecretHasSpace,
    SecretWithoutPrefix,
    SecretIsAnother,
    IdIsAnother,
    TimestampIsNoNumber,
    TimestampIsInMilliseconds,
    TimestampIsOld,
    SignatureIsOfAnotherScheme,
    SignatureIsMalformed,
    /// The JSON is the same, and the bytes are not.
    BodyWasWrittenAnew,
    BodyHasSpace,
    BodyIsAnother,
    /// Each part is right by itself; the signature is that of another attempt.
    SignatureIsOfAnotherAttempt,
}

/// Compares each part with what was sent.
pub(crate) fn check(given: &Given, sent: &Sent, now: DateTime<Utc>) -> Vec<Finding> {
    let timestamp = timestamp(&given.timestamp, now);
    let parts = [
        secret(&given.secret, sent),
        (given.id.trim() != sent.event_id.to_string()).then_some(Finding::IdIsAnother),
        timestamp.err(),
        shape(given.signature.trim()),
        body(given.body.as_bytes(), &sent.body),
    ];
    let mut found: Vec<Finding> = parts.into_iter().flatten().collect();
    if found.iter().all(|finding| *finding == Finding::TimestampIsOld) {
        let seconds = given.timestamp.trim().parse().unwrap_or_default();
        let is_genuine = is_signature(given.signature.trim(), &sent.secret, sent.event_id, seconds, &sent.body);
        found.push(if is_genuine { Finding::Genuine } else { Finding::SignatureIsOfAnotherAttempt });
    }
    found
}

fn secret(given: &str, sent: &Sent) -> Option<Finding> {
    // Both are compared by what they sign, which takes as long whatever is right of them.
    let signed = signature(&sent.secret, sent.event_id, 0, b"");
    let is = |secret: &str| is_signature(&signed, secret, sent.event_id, 0, b"");
    if is(given) {
        return None;
    }
    Some(match given.trim() {
        trimmed if is(trimmed) => Finding::SecretHasSpace,
        trimmed if is(&format!("whsec_{trimmed}")) => Finding::SecretWithoutPrefix,
        _ => Finding::SecretIsAnother,
    })
}

fn timestamp(given: &str, now: DateTime<Utc>) -> Result<(), Finding> {
    let seconds: i64 = given.trim().parse().map_err(|_| Finding::TimestampIsNoNumber)?;
    if seconds >= MOST_SECONDS {
        return Err(Finding::TimestampIsInMilliseconds);
    }
    let is_fresh = now.timestamp().abs_diff(seconds) < FRESH.num_seconds().unsigned_abs();
    if is_fresh { Ok(()) } else { Err(Finding::TimestampIsOld) }
}

fn shape(given: &str) -> Option<Finding> {
    let is_whole = |digits: &str| digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if given.strip_prefix("v1=").is_some_and(is_whole) {
        return None;
    }
    let is_of_another_scheme = ["v1,", "t=", "sha256="].iter().any(|begin| given.starts_with(begin));
    Some(if is_of_another_scheme { Finding::SignatureIsOfAnotherScheme } else { Finding::SignatureIsMalformed })
}

fn body(given: &[u8], sent: &[u8]) -> Option<Finding> {
    if given == sent {
        return None;
    }
    let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    Some(match json(given) {
        _ if given.trim_ascii() == sent => Finding::BodyHasSpace,
        given @ Some(_) if given == json(sent) => Finding::BodyWasWrittenAnew,
        _ => Finding::BodyIsAnother,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_760_000_000;

    type Mistake = fn(&mut Given);

    fn sent() -> Sent {
        Sent { secret: "whsec_c2VjcmV0".into(), event_id: Uuid::from_u128(7), body: br#"{"id":1,"name":"x"}"#.into() }
    }

    fn given() -> Given {
        let Sent { secret, event_id, body } = sent();
        Given {
            signature: signature(&secret, event_id, NOW, &body),
            secret,
            id: event_id.to_string(),
            timestamp: NOW.to_string(),
            body: String::from_utf8(body).unwrap(),
        }
    }

    fn found(given: &Given, seconds_later: i64) -> Vec<Finding> {
        check(given, &sent(), DateTime::from_timestamp(NOW + seconds_later, 0).unwrap())
    }

    #[test]
    fn right_parts_are_genuine() {
        assert_eq!(found(&given(), 10), [Finding::Genuine]);
        assert_eq!(found(&given(), 301), [Finding::TimestampIsOld, Finding::Genuine]);
    }

    #[test]
    fn each_mistake_is_named() {
        let mistakes: [(Mistake, Finding); 13] = [
            (|g| g.secret += "\n", Finding::SecretHasSpace),
            (|g| g.secret = "c2VjcmV0".into(), Finding::SecretWithoutPrefix),
            (|g| g.secret = "whsec_b3RoZXI=".into(), Finding::SecretIsAnother),
            (|g| g.id = Uuid::from_u128(8).to_string(), Finding::IdIsAnother),
            (|g| g.timestamp = "2026-01-15T12:00:00Z".into(), Finding::TimestampIsNoNumber),
            (|g| g.timestamp += "000", Finding::TimestampIsInMilliseconds),
            (
                |g| g.signature = "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=".into(),
                Finding::SignatureIsOfAnotherScheme,
            ),
            (|g| g.signature = g.signature.replace("v1=", ""), Finding::SignatureIsMalformed),
            (|g| g.signature.truncate(60), Finding::SignatureIsMalformed),
            (|g| g.body = "{\"id\": 1, \"name\": \"x\"}".into(), Finding::BodyWasWrittenAnew),
            (|g| g.body += "\n", Finding::BodyHasSpace),
            (|g| g.body = g.body.replace('x', "y"), Finding::BodyIsAnother),
            (|g| g.timestamp = (NOW + 1).to_string(), Finding::SignatureIsOfAnotherAttempt),
        ];
        for (mistake, finding) in mistakes {
            let mut given = given();
            mistake(&mut given);
            assert_eq!(found(&given, 10), [finding]);
        }
    }

    #[test]
    fn two_mistakes_are_both_named() {
        let given = Given { id: "none".into(), body: String::new(), ..given() };
        assert_eq!(found(&given, 0), [Finding::IdIsAnother, Finding::BodyIsAnother]);
    }
}
