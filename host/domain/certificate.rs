//! Certificates of public names: how far the next one is, and what follows from what an authority says (RFC 8555,
//! section 7.1.6).

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::string_enum::string_enum;

/// How long after each failure in a row the next try is made; after the last one, daily.
const BACK_OFF: [TimeDelta; 5] =
    [TimeDelta::minutes(1), TimeDelta::minutes(5), TimeDelta::minutes(30), TimeDelta::hours(2), TimeDelta::hours(12)];
const BACK_OFF_THEN: TimeDelta = TimeDelta::days(1);
/// Most characters of an error that is kept.
const LONGEST_ERROR: usize = 500;

string_enum! {
    CertificateStatus {
        /// No order stands.
        Wanted "wanted",
        /// The order is placed, and its URL is stored.
        Ordered "ordered",
        /// What proves the name is stored, and given to the nodes.
        Challenged "challenged",
        /// The authority was asked to look.
        Answered "answered",
        /// The key is stored, and the authority was asked to sign, or will be.
        Finalized "finalized",
        Issued "issued",
        /// It is tried again.
        Failed "failed",
    }
}

string_enum! {
    /// How a name is proved.
    ChallengeKind {
        /// RFC 8737
        TlsAlpn01 "tls-alpn-01",
        /// RFC 8555, section 8.3
        Http01 "http-01",
        /// RFC 8555, section 8.4
        Dns01 "dns-01",
    }
}

/// Whose name it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameOwner {
    Domain(Uuid),
    Tunnel(Uuid),
}

impl NameOwner {
    pub fn id(self) -> Uuid {
        match self {
            Self::Domain(id) | Self::Tunnel(id) => id,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    pub id: Uuid,
    pub owner: NameOwner,
    /// A wildcard `*.<domain>` is for the domain itself too.
    pub name: String,
    pub status: CertificateStatus,
    /// Who signs: `local:…`, or the URL of an ACME directory.
    pub issuer: String,
    /// The end of the one that is served; `None` before the first one.
    pub not_after: Option<DateTime<Utc>>,
    pub due_at: DateTime<Utc>,
    pub order_url: Option<String>,
    pub ordered_at: Option<DateTime<Utc>>,
    pub challenge: Option<ChallengeKind>,
    /// The key of the order, sealed.
    pub new_key: Option<Vec<u8>>,
    /// Failures in a row.
    pub failures: u32,
    pub error: Option<String>,
}

/// What has to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Order,
    Prepare,
    Answer,
    Check,
    Collect,
}

impl Certificate {
    pub fn step(&self) -> Step {
        match self.status {
            CertificateStatus::Wanted | CertificateStatus::Issued | CertificateStatus::Failed => Step::Order,
            CertificateStatus::Ordered => Step::Prepare,
            CertificateStatus::Challenged => Step::Answer,
            CertificateStatus::Answered => Step::Check,
            CertificateStatus::Finalized => Step::Collect,
        }
    }

    /// The names that it is for.
    pub fn names(name: &str) -> Vec<String> {
        let domain = name.strip_prefix("*.").map(String::from);
        domain.into_iter().chain([name.to_owned()]).collect()
    }

    pub fn ordered(&mut self, url: String, now: DateTime<Utc>) {
        (self.status, self.order_url, self.ordered_at) = (CertificateStatus::Ordered, Some(url), Some(now));
        (self.new_key, self.due_at) = (None, now);
    }

    pub fn challenged(&mut self, now: DateTime<Utc>) {
        (self.status, self.due_at) = (CertificateStatus::Challenged, now);
    }

    pub fn answered(&mut self, now: DateTime<Utc>) {
        (self.status, self.due_at) = (CertificateStatus::Answered, now);
    }

    pub fn finalized(&mut self, new_key: Vec<u8>, now: DateTime<Utc>) {
        (self.status, self.new_key, self.due_at) = (CertificateStatus::Finalized, Some(new_key), now);
    }

    /// A certificate is there, and is renewed at `renew_at`.
    pub fn issued(&mut self, not_after: DateTime<Utc>, renew_at: DateTime<Utc>) {
        self.end_order();
        (self.status, self.not_after, self.due_at) = (CertificateStatus::Issued, Some(not_after), renew_at);
        (self.failures, self.error) = (0, None);
    }

    /// The order has failed. One that is served stays; a name that could not be proved in one way is proved in another.
    pub fn failed(&mut self, error: &str, retry_after: Option<TimeDelta>, now: DateTime<Utc>) {
        self.end_order();
        self.status = if self.not_after.is_some() { CertificateStatus::Issued } else { CertificateStatus::Failed };
        self.error = Some(error.chars().take(LONGEST_ERROR).collect());
        let wait = BACK_OFF.get(self.failures as usize).copied().unwrap_or(BACK_OFF_THEN);
        self.due_at = now + retry_after.map_or(wait, |asked| asked.clamp(wait, BACK_OFF_THEN));
        self.failures = self.failures.saturating_add(1);
        self.challenge = self.challenge.map(|kind| match kind {
            ChallengeKind::TlsAlpn01 => ChallengeKind::Http01,
            ChallengeKind::Http01 => ChallengeKind::TlsAlpn01,
            ChallengeKind::Dns01 => ChallengeKind::Dns01,
        });
    }

    /// The authority could not be asked. What stands there is gone on with later.
    pub fn interrupted(&mut self, error: &str, retry_after: Option<TimeDelta>, now: DateTime<Utc>) {
        let (status, order_url, new_key, challenge) =
            (self.status, self.order_url.take(), self.new_key.take(), self.challenge);
        self.failed(error, retry_after, now);
        if order_url.is_some() {
            (self.status, self.order_url, self.new_key) = (status, order_url, new_key);
        }
        self.challenge = challenge;
    }

    fn end_order(&mut self) {
        (self.order_url, self.new_key) = (None, None);
    }

    /// What clients see.
    pub fn shown(&self) -> ShownStatus {
        ShownStatus::of(self.status, self.not_after.is_some())
    }
}

string_enum! {
    /// The state of a certificate.
    #[derive(Default)]
    #[schemars(rename = "CertificateStatus")]
    ShownStatus {
        #[default]
        None "none",
        Pending "pending",
        Issued "issued",
        Failed "failed",
    }
}

impl ShownStatus {
    /// One that is served is issued, whatever becomes of its renewal.
    pub fn of(status: CertificateStatus, is_served: bool) -> Self {
        match status {
            _ if is_served => Self::Issued,
            CertificateStatus::Failed => Self::Failed,
            _ => Self::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn certificate() -> Certificate {
        Certificate {
            id: Uuid::nil(),
            owner: NameOwner::Tunnel(Uuid::nil()),
            name: "www.example.com".into(),
            status: CertificateStatus::Wanted,
            issuer: "https://authority.example".into(),
            not_after: None,
            due_at: DateTime::UNIX_EPOCH,
            order_url: None,
            ordered_at: None,
            challenge: Some(ChallengeKind::TlsAlpn01),
            new_key: None,
            failures: 0,
            error: None,
        }
    }

    #[derive(Clone, Debug)]
    enum Event {
        Next,
        Fail(Option<i64>),
        Interrupt,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![3 => Just(Event::Next), 1 => proptest::option::of(0..1_000_000_i64).prop_map(Event::Fail), 1 => Just(Event::Interrupt)]
    }

    proptest! {
        #[test]
        fn one_that_is_served_is_never_lost_and_each_failure_waits(events in proptest::collection::vec(event(), 0..60)) {
            let mut known = certificate();
            let mut now = DateTime::UNIX_EPOCH;
            let mut was_served = false;
            for event in events {
                let failures = known.failures;
                now += TimeDelta::seconds(1);
                match (event, known.step()) {
                    (Event::Fail(retry_after), _) => {
                        known.failed("no", retry_after.map(TimeDelta::seconds), now);
                        prop_assert!(known.due_at >= now + TimeDelta::minutes(1));
                        prop_assert!(known.due_at <= now + TimeDelta::days(1));
                        prop_assert_eq!(known.failures, failures + 1);
                    }
                    (Event::Interrupt, step) => {
                        let (order_url, new_key) = (known.order_url.clone(), known.new_key.clone());
                        known.interrupted("nobody answers", None, now);
                        prop_assert!(known.due_at >= now + TimeDelta::minutes(1));
                        prop_assert_eq!((known.step(), &known.order_url, &known.new_key), (step, &order_url, &new_key));
                    }
                    (Event::Next, Step::Order) => known.ordered("https://authority.example/1".into(), now),
                    (Event::Next, Step::Prepare) => known.challenged(now),
                    (Event::Next, Step::Answer) => known.answered(now),
                    (Event::Next, Step::Check) => known.finalized(vec![1], now),
                    (Event::Next, Step::Collect) => {
                        known.issued(now + TimeDelta::days(90), now + TimeDelta::days(60));
                        was_served = true;
                    }
                }
                // A key belongs to an order, and what stands at an authority is known by its URL.
                prop_assert!(known.new_key.is_none() || known.order_url.is_some());
                prop_assert_eq!(known.order_url.is_some(), known.step() != Step::Order);
                prop_assert_eq!(known.shown() == ShownStatus::Issued, was_served);
                prop_assert_eq!(known.status == CertificateStatus::Failed, !was_served && known.error.is_some() && known.order_url.is_none());
            }
        }
    }

    #[test]
    fn a_name_is_proved_in_another_way_after_a_failure() {
        let mut known = certificate();
        for expected in [ChallengeKind::Http01, ChallengeKind::TlsAlpn01] {
            known.failed("no", None, DateTime::UNIX_EPOCH);
            assert_eq!(known.challenge, Some(expected));
        }
    }

    #[test]
    fn a_wildcard_is_for_its_domain_too() {
        assert_eq!(Certificate::names("*.a.example"), ["a.example", "*.a.example"]);
        assert_eq!(Certificate::names("b.a.example"), ["b.a.example"]);
    }
}
