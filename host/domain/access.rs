//! Which visitors a tunnel lets in: firewall rules by address, GeoIP rules by country; see
//! `docs/develop/decisions/0014-visitors-access.md`.

use std::fmt;
use std::net::IpAddr;

use chrono::{DateTime, Utc};
use culvert_wire::client_network::as_v6;
use ipnet::IpNet;
use uuid::Uuid;

use super::string_enum::string_enum;

/// Firewall rules of one tunnel, at most.
pub const FIREWALL_RULES: usize = 200;
/// GeoIP rules of one tunnel, at most: as many as there are countries.
pub const COUNTRY_RULES: usize = 249;

string_enum! {
    /// What a firewall rule does with those it is about.
    RuleType {
        /// Once there is one, visitors need one.
        Whitelist "whitelist",
        Blacklist "blacklist",
    }
}

string_enum! {
    /// What a GeoIP rule does with visitors from its country.
    CountryAction {
        /// Once there is one, visitors need one.
        Allow "allow",
        Block "block",
    }
}

/// ISO 3166-1 alpha-2, in upper case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Country([u8; 2]);

impl Country {
    /// Two letters, in either case.
    pub fn parse(text: &str) -> Option<Self> {
        let code: [u8; 2] = text.as_bytes().try_into().ok()?;
        code.iter().all(u8::is_ascii_alphabetic).then(|| Self(code.map(|letter| letter.to_ascii_uppercase())))
    }
}

impl fmt::Display for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|letter| write!(f, "{}", char::from(*letter)))
    }
}

/// Whom a firewall rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    Address(IpAddr),
    /// With all host bits zero.
    Network(IpNet),
}

impl Range {
    /// An address, or a range as its first address and a prefix length; an address alone is a range
    /// of one.
    pub fn network(text: &str) -> Option<Self> {
        // `/08` is eight to some and no number to others.
        if text.rsplit_once('/').is_some_and(|(_, prefix)| prefix.len() > 1 && prefix.starts_with('0')) {
            return None;
        }
        let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))?;
        Some(Self::Network(network.trunc()))
    }

    pub fn address(text: &str) -> Option<Self> {
        text.parse().ok().map(Self::Address)
    }

    fn contains(self, visitor: IpAddr) -> bool {
        match self {
            Range::Address(address) => address.to_canonical() == visitor,
            // A range of mapped addresses is one of IPv4 addresses (RFC 4291, section 2.5.5.2).
            Range::Network(IpNet::V6(network)) if network.prefix_len() >= 96 => {
                match network.network().to_ipv4_mapped() {
                    Some(first) => ipnet::Ipv4Net::new(first, network.prefix_len() - 96)
                        .is_ok_and(|network| IpNet::V4(network).contains(&visitor)),
                    // Never in a range of other IPv6 addresses, where it is IPv4.
                    None => network.contains(&as_v6(visitor)),
                }
            }
            Range::Network(network) => network.contains(&visitor),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallRule {
    pub id: Uuid,
    pub rule_type: RuleType,
    pub range: Range,
    pub description: Option<String>,
    pub created_at: DateTime<Utc>,
}

/// A firewall rule as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFirewallRule {
    pub rule_type: RuleType,
    pub range: Range,
    pub description: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountryRule {
    pub country: Country,
    pub action: CountryAction,
}

/// All rules of one tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRules {
    pub firewall: Vec<(RuleType, Range)>,
    pub countries: Vec<CountryRule>,
}

/// Whether a visitor is let in, and what decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Blacklisted(Range),
    Whitelisted(Range),
    /// There is a whitelist, and the visitor is not on it.
    NotWhitelisted,
    CountryBlocked(Country),
    CountryAllowed(Country),
    /// Countries are let in, and the visitor's is none of them, or is unknown.
    CountryNotAllowed(Option<Country>),
    /// No rule is about the visitor.
    NoRule,
}

impl Verdict {
    pub fn admits(self) -> bool {
        matches!(self, Self::Whitelisted(_) | Self::CountryAllowed(_) | Self::NoRule)
    }
}

impl AccessRules {
    /// Whether a visitor is let in.
    pub fn admit(&self, visitor: IpAddr, country: impl FnOnce(IpAddr) -> Option<Country>) -> bool {
        self.verdict(visitor, country).admits()
    }

    /// A blacklisted address is not let in; where there is a whitelist, it decides alone; then the country does, and one that
    /// is unknown is no rule's.
    pub fn verdict(&self, visitor: IpAddr, country: impl FnOnce(IpAddr) -> Option<Country>) -> Verdict {
        let visitor = visitor.to_canonical();
        let hit = |wanted: RuleType| {
            let mut rules = self.firewall.iter();
            rules.find(|(rule_type, range)| *rule_type == wanted && range.contains(visitor)).map(|(_, range)| *range)
        };
        if let Some(range) = hit(RuleType::Blacklist) {
            return Verdict::Blacklisted(range);
        }
        if self.firewall.iter().any(|(rule_type, _)| *rule_type == RuleType::Whitelist) {
            return hit(RuleType::Whitelist).map_or(Verdict::NotWhitelisted, Verdict::Whitelisted);
        }
        if self.countries.is_empty() { Verdict::NoRule } else { self.verdict_on_country(country(visitor)) }
    }

    fn verdict_on_country(&self, country: Option<Country>) -> Verdict {
        let is = |wanted: CountryAction| {
            self.countries.iter().any(|rule| rule.action == wanted && Some(rule.country) == country)
        };
        match country {
            Some(country) if is(CountryAction::Block) => Verdict::CountryBlocked(country),
            Some(country) if is(CountryAction::Allow) => Verdict::CountryAllowed(country),
            _ if self.countries.iter().any(|rule| rule.action == CountryAction::Allow) => {
                Verdict::CountryNotAllowed(country)
            }
            _ => Verdict::NoRule,
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Network(network) => network.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(firewall: &[(RuleType, &str)], countries: &[(&str, CountryAction)]) -> AccessRules {
        AccessRules {
            firewall: firewall.iter().map(|(rule_type, range)| (*rule_type, Range::network(range).unwrap())).collect(),
            countries: countries
                .iter()
                .map(|(country, action)| CountryRule { country: Country::parse(country).unwrap(), action: *action })
                .collect(),
        }
    }

    fn admits(rules: &AccessRules, visitor: &str, country: Option<&str>) -> bool {
        rules.admit(visitor.parse().unwrap(), |_| country.and_then(Country::parse))
    }

    #[test]
    fn blacklist_precedes_whitelist_and_country_rules() {
        use CountryAction::{Allow, Block};
        use RuleType::{Blacklist, Whitelist};
        let open = rules(&[], &[]);
        assert!(admits(&open, "192.0.2.1", None));
        let listed = rules(&[(Blacklist, "192.0.2.0/25"), (Whitelist, "192.0.2.0/24")], &[("DE", Block)]);
        assert!(!admits(&listed, "192.0.2.1", Some("FR")), "a blacklist comes first");
        assert!(admits(&listed, "192.0.2.200", Some("DE")), "a whitelist hit skips the country");
        assert!(!admits(&listed, "198.51.100.1", Some("FR")), "where there is a whitelist, a hit is needed");
        let blocked = rules(&[(Blacklist, "2001:db8::/32")], &[("DE", Block)]);
        assert!(!admits(&blocked, "192.0.2.1", Some("DE")) && admits(&blocked, "192.0.2.1", Some("FR")));
        assert!(admits(&blocked, "192.0.2.1", None) && !admits(&blocked, "2001:db8::1", Some("FR")));
        let allowed = rules(&[], &[("FR", Allow), ("DE", Block)]);
        assert!(admits(&allowed, "192.0.2.1", Some("FR")));
        assert!(!admits(&allowed, "192.0.2.1", Some("IT")) && !admits(&allowed, "192.0.2.1", Some("DE")));
        assert!(!admits(&allowed, "192.0.2.1", None), "an unknown country is no hit");
    }

    #[test]
    fn address_matches_rules_in_every_notation() {
        for range in ["192.0.2.1", "192.0.2.1/32", "192.0.2.77/24", "::ffff:192.0.2.0/120", "0.0.0.0/0"] {
            let listed = rules(&[(RuleType::Blacklist, range)], &[]);
            assert!(!admits(&listed, "192.0.2.1", None) && !admits(&listed, "::ffff:192.0.2.1", None), "{range}");
        }
        let six = rules(&[(RuleType::Blacklist, "::/0")], &[]);
        assert!(!admits(&six, "2001:db8::1", None) && admits(&six, "192.0.2.1", None));
        assert_eq!(Range::network("10.1.2.3/8"), Range::network("10.0.0.0/8"));
    }
}
