//! The address policy of webhooks: public addresses are allowed, and those that the operator adds.
//!
//! The HTTP client resolves names through the [`Guard`] and connects only to the addresses that the
//! guard has checked. A name whose records change after the check therefore cannot bypass it (DNS
//! rebinding).

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use culvert_wire::clock::Clock;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use reqwest::Url;

use crate::dns::{Dns, DnsError};
use culvert_domain::custom_domain::{LookupError, LookupErrorCode};

/// How long a name may take to resolve.
const RESOLVE_WITHIN: Duration = Duration::from_secs(3);

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(std::net::Ipv4Addr::new(a, b, c, d), prefix)
}

/// IPv4 networks that are not public (IANA IPv4 Special-Purpose Address Registry, RFC 6890), and the
/// address at which Azure serves its virtual machines, 168.63.129.16.
const NOT_PUBLIC_V4: [Ipv4Net; 19] = [
    v4(0, 0, 0, 0, 8),
    v4(10, 0, 0, 0, 8),
    v4(100, 64, 0, 0, 10),
    v4(127, 0, 0, 0, 8),
    v4(168, 63, 129, 16, 32),
    v4(169, 254, 0, 0, 16),
    v4(172, 16, 0, 0, 12),
    v4(192, 0, 0, 0, 24),
    v4(192, 0, 2, 0, 24),
    v4(192, 31, 196, 0, 24),
    v4(192, 52, 193, 0, 24),
    v4(192, 88, 99, 0, 24),
    v4(192, 168, 0, 0, 16),
    v4(192, 175, 48, 0, 24),
    v4(198, 18, 0, 0, 15),
    v4(198, 51, 100, 0, 24),
    v4(203, 0, 113, 0, 24),
    v4(224, 0, 0, 0, 4),
    v4(240, 0, 0, 0, 4),
];

const fn v6(a: u16, b: u16, c: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), prefix)
}

/// Global unicast addresses of IPv6 (RFC 4291, section 2.4). No others are public.
const GLOBAL_V6: Ipv6Net = v6(0x2000, 0, 0, 3);

/// Networks within `GLOBAL_V6` that are not public (IANA IPv6 Special-Purpose Address Registry).
const NOT_PUBLIC_V6: [Ipv6Net; 5] = [
    v6(0x2001, 0, 0, 23),
    v6(0x2001, 0xdb8, 0, 32),
    v6(0x2002, 0, 0, 16),
    v6(0x2620, 0x4f, 0x8000, 48),
    v6(0x3fff, 0, 0, 20),
];

/// Whether an address is public: globally reachable, and not reserved for a special purpose.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !NOT_PUBLIC_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => GLOBAL_V6.contains(&address) && !NOT_PUBLIC_V6.iter().any(|net| net.contains(&address)),
    }
}

/// The address policy: which addresses deliveries may connect to.
#[derive(Clone, Debug, Default)]
pub struct AddressPolicy {
    /// Networks that are allowed although they are not public.
    pub allow: Vec<IpNet>,
    /// Networks that are refused although they are public. They take precedence over `allow`.
    pub deny: Vec<IpNet>,
}

impl AddressPolicy {
    pub fn admit(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let lies_in = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&address));
        !lies_in(&self.deny) && (lies_in(&self.allow) || is_public(address))
    }
}

/// Why deliveries to a host are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressBlocked {
    /// A name that does not resolve, or that resolves to an address that is not allowed. The two are
    /// not distinguished, so that nobody can find out the names of the operator's own network.
    #[error("must have a host name with a public address")]
    NoPublicAddress,
    /// An IP address in the URL itself.
    #[error("must lead to public addresses only")]
    NotPublic,
}

/// Whether a text is a URL that events can be sent to: with a host, without user information, not to port 0.
pub fn is_endpoint(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| {
        url.has_host() && url.username().is_empty() && url.password().is_none() && url.port() != Some(0)
    })
}

/// Resolves names, and returns only addresses that the address policy allows.
pub struct Guard {
    dns: Dns,
    networks: AddressPolicy,
    clock: Clock,
}

impl Guard {
    pub fn new(dns: Dns, networks: AddressPolicy, clock: Clock) -> Self {
        Self { dns, networks, clock }
    }

    /// The addresses of a name. If one of them is not allowed, all are refused.
    ///
    /// # Errors
    ///
    /// If the name cannot be resolved in time, or one of its addresses is not allowed.
    pub async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, AddressBlocked> {
        let found = self.clock.timeout(RESOLVE_WITHIN, self.dns.addresses(name)).await;
        let addresses = found.ok().and_then(|found| found.map_err(|_: DnsError| ()).ok());
        let admitted = |addresses: &Vec<IpAddr>| addresses.iter().all(|address| self.networks.admit(*address));
        addresses.filter(admitted).ok_or(AddressBlocked::NoPublicAddress)
    }

    /// Checks that an https URL leads to addresses that are allowed. A text that is no such URL passes:
    /// [`is_endpoint`] is for those.
    ///
    /// # Errors
    ///
    /// If the URL's host name cannot be resolved in time, or it or one of its addresses is not allowed.
    pub async fn check_endpoint(&self, url: &str) -> Result<(), AddressBlocked> {
        match Url::parse(url) {
            Ok(url) if url.scheme() == "https" => self.addresses_of(&url).await.map(drop),
            _ => Ok(()),
        }
    }

    /// The addresses of a URL: those of its host name, or the IP address in it.
    async fn addresses_of(&self, url: &Url) -> Result<Vec<IpAddr>, AddressBlocked> {
        match literal(url) {
            Some(address) => self.judge(address).map(|()| vec![address]),
            None => self.resolve(url.host_str().unwrap_or_default()).await,
        }
    }

    /// Checks that a name's CNAME record directly names `target`. Where it names another target, the
    /// error shows that only if it is below the platform's own domains.
    ///
    /// # Errors
    ///
    /// If the name has no CNAME record, its record names another target, or the lookup fails.
    pub async fn check_cname(&self, name: &str, target: &str) -> Result<(), LookupError> {
        let found = self.clock.timeout(RESOLVE_WITHIN, self.dns.cname(name)).await;
        let error = |code: LookupErrorCode, detail: String| Err(LookupError { code, detail });
        match found {
            Ok(Ok(alias)) if alias == target => Ok(()),
            Ok(Ok(alias)) if is_sibling(&alias, target) => {
                error(LookupErrorCode::CnameMismatch, format!("The CNAME of {name} is {alias}, not {target}."))
            }
            Ok(Ok(_)) => {
                error(LookupErrorCode::CnameMismatch, format!("{name} is an alias for another name, not for {target}."))
            }
            Ok(Err(DnsError::NoSuchName)) => {
                error(LookupErrorCode::CnameNotFound, format!("{name} has no CNAME that is visible."))
            }
            Ok(Err(DnsError::Unavailable)) | Err(_) => {
                error(LookupErrorCode::DnsFailed, format!("{name} could not be looked up."))
            }
        }
    }

    /// The texts of a name's TXT records; none if it has none, or cannot be looked up.
    pub async fn texts(&self, name: &str) -> Vec<String> {
        let found = self.clock.timeout(RESOLVE_WITHIN, self.dns.texts(name)).await;
        found.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Checks the IP address in a URL, because the client connects to it without a DNS lookup. A URL
    /// with a host name passes.
    ///
    /// # Errors
    ///
    /// [`AddressBlocked::NotPublic`], if the URL contains an IP address that is not allowed.
    pub fn check_literal(&self, url: &Url) -> Result<(), AddressBlocked> {
        literal(url).map_or(Ok(()), |address| self.judge(address))
    }

    fn judge(&self, address: IpAddr) -> Result<(), AddressBlocked> {
        if self.networks.admit(address) { Ok(()) } else { Err(AddressBlocked::NotPublic) }
    }
}

/// Whether a name is in the same platform domain as the target.
fn is_sibling(alias: &str, target: &str) -> bool {
    let parent = target.split_once(".cname.").map_or(target, |(_, parent)| parent);
    alias == parent || alias.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

/// The IP address in a URL, if there is one. The URL parser has already converted it to its canonical
/// form.
fn literal(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_public_only_outside_reserved_ranges() {
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.31.255.255",
            "192.168.0.1",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "fc00::1",
            "fe80::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "2002:7f00:1::",
            "3fff:fff::1",
            "5f00::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in ["1.1.1.1", "100.63.255.255", "172.32.0.1", "8.8.8.8", "::ffff:8.8.8.8", "2606:4700::1111"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn ip_literal_in_any_notation_parses_to_same_address() {
        for url in [
            "https://2130706433/",
            "https://0x7f.1/",
            "https://0177.0.0.1/",
            "https://127.1/",
            "https://[::ffff:127.0.0.1]/",
            "https://[::ffff:7f00:1]:8443/",
            "https://127。0。0。1/",
        ] {
            let address = literal(&Url::parse(url).unwrap()).unwrap();
            assert_eq!(address.to_canonical(), IpAddr::from([127, 0, 0, 1]), "{url}");
        }
    }

    #[test]
    fn denied_network_overrides_allowed_network() {
        let networks =
            AddressPolicy { allow: vec!["10.0.0.0/8".parse().unwrap()], deny: vec!["10.9.0.0/16".parse().unwrap()] };
        let admitted = |address: &str| networks.admit(address.parse().unwrap());
        assert!(admitted("10.1.1.1") && admitted("::ffff:10.1.1.1") && admitted("1.1.1.1"));
        assert!(!admitted("10.9.1.1") && !admitted("192.168.0.1"));
    }
}
