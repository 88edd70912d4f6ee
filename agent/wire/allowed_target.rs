//! The list of local targets that a device's owner allows for remote control.
//!
//! An entry is an address, a network or a host name. It allows one port, or all ports if it names none.
//! The agent checks every connection of a tunnel started by remote control against the list, after the
//! DNS lookup. The host receives the list with the signed consent, and refuses a target if the list
//! alone shows that it is not allowed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use crate::control::Failure;
use crate::failure_code::FailureCode;
use crate::target::Target;

/// Most entries of a list.
pub const MAX_ENTRIES: usize = 100;
/// Most characters of an entry.
pub const MAX_LENGTH: usize = 300;

const LOCALHOST: &str = "localhost";
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Addresses of cloud metadata services, which give machines their credentials, outside the link-local
/// range: Alibaba, Azure, Oracle.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];
/// The same for IPv6: AWS, Google.
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

/// Whether an address is link-local or a cloud's metadata service. Entries with a network or a name
/// never allow such an address; only an entry with exactly this address does.
pub fn is_reserved(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local() || METADATA_V4.contains(&v4),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || METADATA_V6.contains(&v6),
    }
}

/// One entry, for example `10.0.0.5:5432`, `10.0.0.0/24`, `[fd00::5]:443` or `db.internal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AllowedTarget {
    pub place: Place,
    /// `None` allows every port.
    pub port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An address is a network with one address.
    Network(IpNet),
    /// In lower case, without a trailing dot. Allows the addresses that this exact name resolves to.
    Name(String),
}

/// A text that is not a valid entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is no target; allowed are an address, a network or a host name, alone or with a port, of at most {} \
     characters: 10.0.0.5:5432, 10.0.0.0/24, [fd00::5]:443, db.internal",
    .0.escape_debug(),
    MAX_LENGTH
)]
pub struct NoTarget(String);

impl FromStr for AllowedTarget {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, NoTarget> {
        read(text).ok_or_else(|| NoTarget(text.chars().take(80).collect()))
    }
}

impl TryFrom<String> for AllowedTarget {
    type Error = NoTarget;

    fn try_from(text: String) -> Result<Self, NoTarget> {
        text.parse()
    }
}

impl From<AllowedTarget> for String {
    fn from(target: AllowedTarget) -> Self {
        target.to_string()
    }
}

impl fmt::Display for AllowedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.place {
            Place::Network(network) if is_one(network) => network.addr().to_string(),
            Place::Network(network) => network.to_string(),
            Place::Name(name) => name.clone(),
        };
        match self.port {
            Some(port) if place.contains(':') => write!(f, "[{place}]:{port}"),
            Some(port) => write!(f, "{place}:{port}"),
            None => f.write_str(&place),
        }
    }
}

fn read(text: &str) -> Option<AllowedTarget> {
    if text.chars().count() > MAX_LENGTH {
        return None;
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        let network = read_network(inside).filter(|_| inside.contains(':'))?;
        let port = if after.is_empty() { None } else { Some(read_port(after.strip_prefix(':')?)?) };
        return Some(AllowedTarget { place: Place::Network(network), port });
    }
    if let Some(network) = read_network(text) {
        return Some(AllowedTarget { place: Place::Network(network), port: None });
    }
    match text.rsplit_once(':') {
        // An IPv6 address with a port must be in brackets.
        Some((place, _)) if place.contains(':') => None,
        Some((place, port)) => Some(AllowedTarget { place: read_place(place)?, port: Some(read_port(port)?) }),
        None => Some(AllowedTarget { place: read_place(text)?, port: None }),
    }
}

fn read_place(text: &str) -> Option<Place> {
    match read_network(text) {
        Some(network) => Some(Place::Network(network)),
        None => read_name(text).map(Place::Name),
    }
}

fn read_network(text: &str) -> Option<IpNet> {
    let network = match text.parse::<IpAddr>() {
        Ok(ip) => IpNet::from(ip),
        Err(_) => text.parse::<IpNet>().ok()?,
    };
    Some(canonical(network.trunc()))
}

/// Converts an IPv4-mapped IPv6 network (`::ffff:10.0.0.0/104`) to the IPv4 network.
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(v6) = network else { return network };
    let mapped = v6.network().to_ipv4_mapped().filter(|_| v6.prefix_len() >= 96);
    let mapped = mapped.and_then(|v4| Ipv4Net::new(v4, v6.prefix_len() - 96).ok());
    mapped.map_or(network, IpNet::V4)
}

fn read_port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse::<u16>().ok().filter(|port| digits && *port != 0)
}

fn read_name(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
    };
    // `127.1` and `0x7f000001` are other notations of IPv4 addresses, not names.
    let last = name.rsplit('.').next().unwrap_or_default();
    let number = last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x") || last.starts_with("0X");
    let holds = name.len() <= 253 && !number && name.split('.').all(label);
    holds.then(|| name.to_ascii_lowercase())
}

/// The IP address if `host` is one; `None` if it is a name.
pub fn literal(host: &str) -> Option<IpAddr> {
    host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

fn is_called(name: &str, host: &str) -> bool {
    host.strip_suffix('.').unwrap_or(host).eq_ignore_ascii_case(name)
}

fn is_one(network: &IpNet) -> bool {
    network.prefix_len() == network.max_prefix_len()
}

impl AllowedTarget {
    fn allows_port(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }

    /// Whether the entry allows a host at an address, which must be in canonical form.
    fn admits(&self, host: &str, ip: IpAddr, port: u16) -> bool {
        let place = match &self.place {
            Place::Network(network) => network.contains(&ip) && (is_one(network) || !is_reserved(ip)),
            Place::Name(name) => is_called(name, host) && !is_reserved(ip),
        };
        place && self.allows_port(port)
    }

    /// Whether the entry allows everything that another entry allows.
    pub fn covers(&self, other: &Self) -> bool {
        let place = match (&self.place, &other.place) {
            (Place::Network(own), Place::Network(other)) => own.contains(other),
            (Place::Name(own), Place::Name(other)) => own == other,
            _ => false,
        };
        place && (self.port.is_none() || self.port == other.port)
    }
}

/// Whether a list allows a connection to a host at this address.
pub fn admits(list: &[AllowedTarget], host: &str, ip: IpAddr, port: u16) -> bool {
    let ip = ip.to_canonical();
    list.iter().any(|entry| entry.admits(host, ip, port))
}

/// Whether a list allows a host without a DNS lookup: it contains the address or the name itself.
pub fn includes(list: &[AllowedTarget], host: &str, port: u16) -> bool {
    match literal(host) {
        Some(ip) => admits(list, host, ip, port),
        None => list
            .iter()
            .any(|entry| entry.allows_port(port) && matches!(&entry.place, Place::Name(name) if is_called(name, host))),
    }
}

/// Whether a list alone shows that a host is not allowed, whatever address a DNS lookup returns.
pub fn forbids(list: &[AllowedTarget], host: &str, port: u16) -> bool {
    if let Some(ip) = literal(host) {
        return !admits(list, host, ip, port);
    }
    if is_called(LOCALHOST, host) {
        return !LOOPBACK.iter().any(|ip| admits(list, host, *ip, port));
    }
    let may = |entry: &AllowedTarget| match &entry.place {
        Place::Network(_) => true,
        Place::Name(name) => is_called(name, host),
    };
    !list.iter().any(|entry| entry.allows_port(port) && may(entry))
}

/// The ports of a target's host that a tunnel forwards to.
pub fn ports(target: &Target) -> impl Iterator<Item = u16> {
    std::iter::once(target.port).chain(target.extra.iter().map(|extra| extra.port))
}

/// The entry that allows exactly one port of a host.
pub fn exactly(host: &str, port: u16) -> Option<AllowedTarget> {
    let place = match literal(host) {
        Some(ip) => Place::Network(IpNet::from(ip)),
        None => Place::Name(read_name(host)?),
    };
    Some(AllowedTarget { place, port: Some(port) })
}

/// A host and port in the form of an entry, for messages.
pub fn spelled(host: &str, port: u16) -> String {
    match exactly(host, port) {
        Some(entry) => entry.to_string(),
        None => format!("{}:{port}", host.escape_debug()),
    }
}

/// The message about a target that the list does not allow.
pub fn not_allowed(host: &str, port: u16) -> String {
    let target = spelled(host, port);
    format!(
        "This device's owner has not allowed {target} for remote control. \
         On the device: `culvert-agent targets allow {target}`."
    )
}

/// The entries that every list starts with: the device's own loopback addresses.
pub fn standard() -> Vec<AllowedTarget> {
    ["127.0.0.0/8", "::1", LOCALHOST].iter().filter_map(|text| text.parse().ok()).collect()
}

/// Why a list was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("At most {} targets can be allowed; `culvert-agent targets revoke` makes room.", MAX_ENTRIES)]
    TooMany,
    #[error("{0} is not in the list; `culvert-agent targets list` shows it.")]
    NotListed(AllowedTarget),
}

impl From<ListError> for Failure {
    fn from(error: ListError) -> Self {
        let code = match error {
            ListError::TooMany => FailureCode::TooManyTargets,
            ListError::NotListed(_) => FailureCode::TargetNotListed,
        };
        Failure::new(code, error.to_string())
    }
}

/// Adds entries to a list, without duplicates.
///
/// # Errors
///
/// Where the list would have more than [`MAX_ENTRIES`] entries.
pub fn with(
    mut list: Vec<AllowedTarget>,
    more: impl IntoIterator<Item = AllowedTarget>,
) -> Result<Vec<AllowedTarget>, ListError> {
    for entry in more {
        if !list.contains(&entry) {
            list.push(entry);
        }
    }
    if list.len() > MAX_ENTRIES { Err(ListError::TooMany) } else { Ok(list) }
}

/// Removes entries from a list.
///
/// # Errors
///
/// Where an entry is not in the list.
pub fn without(mut list: Vec<AllowedTarget>, less: &[AllowedTarget]) -> Result<Vec<AllowedTarget>, ListError> {
    if let Some(stranger) = less.iter().find(|entry| !list.contains(entry)) {
        return Err(ListError::NotListed(stranger.clone()));
    }
    list.retain(|entry| !less.contains(entry));
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> Vec<AllowedTarget> {
        entries.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn admits_literal(entries: &[&str], host: &str, port: u16) -> bool {
        includes(&list(entries), host, port)
    }

    #[test]
    fn target_entry_has_one_canonical_form() {
        for (text, canonical) in [
            ("10.0.0.5", "10.0.0.5"),
            ("10.0.0.5:5432", "10.0.0.5:5432"),
            ("10.0.0.5/32", "10.0.0.5"),
            ("10.0.0.5/24", "10.0.0.0/24"),
            ("10.0.0.0/24:443", "10.0.0.0/24:443"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("[::1]:80", "[::1]:80"),
            ("[fd00::/8]:443", "[fd00::/8]:443"),
            ("::ffff:10.0.0.5", "10.0.0.5"),
            ("[::ffff:10.0.0.0/104]:80", "10.0.0.0/8:80"),
            ("DB.internal.", "db.internal"),
            ("my_nas:5432", "my_nas:5432"),
        ] {
            let entry: AllowedTarget = text.parse().unwrap();
            assert_eq!(entry.to_string(), canonical, "{text}");
            assert_eq!(canonical.parse::<AllowedTarget>().unwrap(), entry);
        }
    }

    #[test]
    fn invalid_target_entry_is_rejected() {
        let long = format!("{}.internal", "a".repeat(300));
        for text in [
            "",
            ":80",
            "a b",
            "10.0.0.5:0",
            "10.0.0.5:65536",
            "10.0.0.5:+80",
            "10.0.0.0/33",
            "127.1",
            "256.0.0.1",
            "0x7f000001",
            "::1:99999",
            "fd00::/8:443",
            "[::1",
            "[::1]80",
            "[db]:80",
            "*",
            "http://a",
            "a..b",
            "-a",
            &long,
        ] {
            assert!(text.parse::<AllowedTarget>().is_err(), "{text}");
        }
        let said = "10.0.0.5:0".parse::<AllowedTarget>().unwrap_err().to_string();
        assert!(said.contains("at most 300 characters") && said.contains("10.0.0.0/24"), "{said}");
    }

    #[test]
    fn metadata_address_is_allowed_only_by_exact_entry() {
        for address in [
            "169.254.169.254",
            "169.254.0.1",
            "::ffff:169.254.169.254",
            "fe80::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
        ] {
            assert!(!admits_literal(&["0.0.0.0/0", "::/0", "169.254.0.0/16", "fe80::/10"], address, 80), "{address}");
            assert!(admits_literal(&[address], address, 80), "{address}");
            let ip = address.parse().unwrap();
            assert!(!admits(&list(&["metadata.internal"]), "metadata.internal", ip, 80), "{address}");
        }
        for address in ["127.0.0.1", "10.0.0.1", "192.168.1.1", "::1", "fd00::1", "8.8.8.8"] {
            assert!(admits_literal(&["0.0.0.0/0", "::/0"], address, 80), "{address}");
        }
    }

    #[test]
    fn target_entry_with_port_allows_only_that_port() {
        let entries = ["10.0.0.5:5432", "10.1.0.0/16", "db.internal:5432"];
        assert!(admits_literal(&entries, "10.0.0.5", 5432) && !admits_literal(&entries, "10.0.0.5", 80));
        assert!(admits_literal(&entries, "10.1.2.3", 80) && !admits_literal(&entries, "10.2.0.1", 80));
        assert!(admits_literal(&entries, "DB.Internal.", 5432) && !admits_literal(&entries, "db.internal", 80));
    }

    #[test]
    fn forbidden_target_is_detected_without_dns_lookup() {
        assert!(forbids(&standard(), "10.0.0.5", 80));
        assert!(!forbids(&standard(), "LOCALHOST", 80) && !forbids(&standard(), "127.9.9.9", 80));
        assert!(forbids(&list(&["10.0.0.0/8"]), "localhost", 80));
        assert!(!forbids(&list(&["127.0.0.1"]), "localhost", 80));
        // What addresses a name has is not known without a DNS lookup.
        assert!(!forbids(&standard(), "db.internal", 80));
        assert!(forbids(&list(&["10.0.0.0/8:5432"]), "db.internal", 80), "no entry allows the port");
        assert!(forbids(&list(&["other.internal"]), "db.internal", 80), "it has another name");
    }

    #[test]
    fn target_list_is_limited_to_100_entries() {
        let many = (0..98).map(|number| format!("10.0.0.{number}").parse::<AllowedTarget>().unwrap());
        let full = with(standard(), many.clone().take(97)).unwrap();
        assert_eq!(full.len(), MAX_ENTRIES);
        assert!(with(full.clone(), standard()).is_ok(), "each once");
        assert!(matches!(with(full, many), Err(ListError::TooMany)));
        assert!(matches!(without(standard(), &list(&["10.0.0.1"])), Err(ListError::NotListed(_))));
    }
}
