//! Custom domains: host names of the tunnels' owners, proved by a CNAME record; see
//! `docs/develop/decisions/0014-visitors-access.md`.

use chrono::{DateTime, TimeDelta, Utc};

use culvert_wire::open_enum::open_enum;

use super::certificate::ShownStatus;
use super::string_enum::string_enum;

/// How often a name that was verified is looked up again.
pub const CHECK_EVERY: TimeDelta = TimeDelta::hours(24);
/// So many checks in a row that do not find the CNAME make a name fail.
pub const MISSES: u32 = 2;

string_enum! {
    CustomDomainStatus {
        None "none",
        /// Its CNAME is not visible yet.
        Pending "pending",
        Verified "verified",
        /// Its CNAME has gone.
        Failed "failed",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomDomain {
    pub domain: String,
    pub status: CustomDomainStatus,
    /// Whether it is the tunnel's.
    pub assigned: bool,
    pub verified_at: Option<DateTime<Utc>>,
    pub last_checked_at: DateTime<Utc>,
    pub missed: u32,
    pub error: Option<LookupError>,
    pub certificate: DomainCertificate,
}

/// What clients see of the certificate of an assigned domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainCertificate {
    pub status: ShownStatus,
    pub expires_at: Option<DateTime<Utc>>,
    pub error: Option<String>,
}

open_enum! {
    /// Why a CNAME was not found: the reasons that this program knows by name.
    LookupErrorCode {
        CnameNotFound "cname_not_found",
        CnameMismatch "cname_mismatch",
        /// The DNS did not answer.
        DnsFailed "dns_failed",
    }
}

/// Why the CNAME was not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupError {
    pub code: LookupErrorCode,
    pub detail: String,
}

impl CustomDomain {
    /// Notes what a lookup found.
    pub fn note(&mut self, found: Result<(), LookupError>, now: DateTime<Utc>) {
        self.last_checked_at = now;
        self.error = found.err();
        if self.error.is_none() {
            self.status = CustomDomainStatus::Verified;
            self.verified_at = Some(now);
            self.missed = 0;
            return;
        }
        self.missed += 1;
        if self.status == CustomDomainStatus::Verified && self.missed >= MISSES {
            self.status = CustomDomainStatus::Failed;
        }
    }
}

/// In lower case, and without the dot at its end.
pub fn normalized(domain: &str) -> String {
    domain.strip_suffix('.').unwrap_or(domain).to_ascii_lowercase()
}
