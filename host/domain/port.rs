//! Ports, and the transports that they carry.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::{Code, Error, Result};
use super::protocol::Protocol;

/// A port number, 1 to 65535.
pub fn valid(port: i64) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}

/// The cap on extra ports of one tunnel, whatever the plan says.
pub const EXTRA_PORTS_PER_TUNNEL: u32 = 10;

/// Whether a tunnel with so many extra ports can have another.
///
/// # Errors
///
/// [`Code::ExtraPortLimitReached`]
pub fn check_room(ports: u32) -> Result<()> {
    if ports < EXTRA_PORTS_PER_TUNNEL {
        return Ok(());
    }
    let detail = format!("The tunnel has {ports} extra ports; it can have {EXTRA_PORTS_PER_TUNNEL}.");
    Err(Error::new(Code::ExtraPortLimitReached, detail))
}

/// Most characters of the subdomain of a tunnel with http extra ports: a label of the domain name system has 63 (RFC 1035,
/// section 2.3.4), and an extra port's begins with `p65535-`.
pub const SUBDOMAIN_WITH_EXTRA_PORTS: usize = 56;

/// The subdomain of an http extra port.
pub fn extra_subdomain(local_port: u16, subdomain: &str) -> String {
    format!("p{local_port}-{subdomain}")
}

/// Whether a subdomain has the form of an http extra port's: `p`, up to five digits, and a hyphen.
pub fn is_extra_subdomain(subdomain: &str) -> bool {
    let port = subdomain.strip_prefix('p').and_then(|rest| rest.split_once('-'));
    port.is_some_and(|(port, _)| (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraPort {
    pub id: uuid::Uuid,
    pub local_port: u16,
    pub remote_port: u16,
    pub protocol: Protocol,
    pub label: Option<String>,
}

/// An extra port as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewExtraPort {
    pub local_port: u16,
    pub protocol: Protocol,
    pub label: Option<String>,
}

/// Ports from the first to the last, both included: `20000-29999`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl PortRange {
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    pub fn count(self) -> u32 {
        u32::from(self.last - self.first) + 1
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = text.split_once('-').and_then(|(first, last)| {
            let range = Self { first: first.trim().parse().ok()?, last: last.trim().parse().ok()? };
            (range.first != 0 && range.first <= range.last).then_some(range)
        });
        range.ok_or_else(|| format!("`{text}` is no range of ports, such as 20000-29999"))
    }
}

impl TryFrom<String> for PortRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> Self {
        range.to_string()
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}
