//! Who reaches a tunnel, and by which name: firewall, GeoIP, custom domain.

use std::net::IpAddr;

use crate::exports::culvert::policy::inputs::{Current, DomainName, Firewall, FirewallRule, Geoip, Protocol, RuleType};
use crate::findings::Findings;
use crate::text;

const FIREWALL_RULES: usize = 200;
const COUNTRIES: usize = 249;

pub fn domain(name: &DomainName, current: Option<&Current>, findings: &mut Findings) {
    findings.require("domain", name.domain.as_ref());
    if let Some(Current::Tunnel(tunnel)) = current {
        findings.check(tunnel.protocol == Protocol::Http, "domain", "http-only", "is for http tunnels only");
    }
    let Some(domain) = name.domain.as_deref().map(str::to_ascii_lowercase) else { return };
    let labels = domain.strip_suffix('.').unwrap_or(&domain);
    let holds = domain.len() <= 253
        && labels.contains('.')
        && labels.split('.').all(|label| label.len() <= 63 && text::is_label(label))
        && labels.parse::<IpAddr>().is_err();
    findings.check(holds, "domain", "domain", "must be a host name of at least two labels, and no IP address");
}

pub fn firewall(firewall: &Firewall, findings: &mut Findings) {
    findings.require("rules", firewall.rules.as_ref());
    let rules = firewall.rules.as_deref().unwrap_or_default();
    findings.check(rules.len() <= FIREWALL_RULES, "rules", "rule-count", "must hold at most 200 rules");
    let mut seen: Vec<(RuleType, Range)> = Vec::new();
    for (index, rule) in rules.iter().take(FIREWALL_RULES).enumerate() {
        let path = format!("rules[{index}]");
        findings.require(&format!("{path}.rule_type"), rule.rule_type.as_ref());
        text::label(rule.description.as_deref(), &format!("{path}.description"), findings);
        let Some(range) = address(rule, &path, findings) else { continue };
        let Some(rule_type) = rule.rule_type else { continue };
        findings.check(!seen.contains(&(rule_type, range)), &path, "duplicate", "says the same as a rule before it");
        seen.push((rule_type, range));
    }
}

/// A network: its first address, with all host bits zero, and its prefix length.
type Range = (IpAddr, u8);

fn address(rule: &FirewallRule, path: &str, findings: &mut Findings) -> Option<Range> {
    let (field, range) = match (&rule.ip_address, &rule.ip_cidr) {
        (Some(address), None) => ("ip_address", address.parse().ok().map(|address| (address, whole(address)))),
        (None, Some(cidr)) => ("ip_cidr", parse_cidr(cidr)),
        (Some(_), Some(_)) => {
            findings.add(&format!("{path}.ip_cidr"), "one-address", "must not stand beside ip_address");
            return None;
        }
        (None, None) => {
            // A malformed one is a fault of its own, not a missing one.
            if !findings.is_faulted(&format!("{path}.ip_cidr")) {
                findings.add(&format!("{path}.ip_address"), "one-address", "one of ip_address and ip_cidr is required");
            }
            return None;
        }
    };
    let message = "must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length";
    findings.check(range.is_some(), &format!("{path}.{field}"), "address", message);
    range
}

fn parse_cidr(cidr: &str) -> Option<Range> {
    let Some((address, prefix)) = cidr.split_once('/') else {
        return cidr.parse().ok().map(|address| (address, whole(address)));
    };
    let address: IpAddr = address.parse().ok()?;
    let digits = !prefix.is_empty() && prefix.len() <= 3 && prefix.bytes().all(|b| b.is_ascii_digit());
    let prefix: u8 = prefix.parse().ok().filter(|prefix| digits && *prefix <= whole(address))?;
    Some((masked(address, prefix), prefix))
}

fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

pub fn geoip(geoip: &Geoip, findings: &mut Findings) {
    findings.require("rules", geoip.rules.as_ref());
    let rules = geoip.rules.as_deref().unwrap_or_default();
    findings.check(rules.len() <= COUNTRIES, "rules", "rule-count", "must hold at most 249 countries");
    let mut seen: Vec<String> = Vec::new();
    for (index, rule) in rules.iter().take(COUNTRIES).enumerate() {
        let field = format!("rules[{index}].country_code");
        findings.require(&field, rule.country_code.as_ref());
        text::country(rule.country_code.as_deref(), &field, findings);
        let Some(code) = rule.country_code.as_deref().map(str::to_ascii_uppercase) else { continue };
        findings.check(!seen.contains(&code), &field, "duplicate", "stands in a rule before it");
        seen.push(code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidr_notations_of_same_network_are_equal() {
        assert_eq!(parse_cidr("10.9.8.7/8"), parse_cidr("10.0.0.0/8"));
        assert_eq!(parse_cidr("0.0.0.1/0"), parse_cidr("255.0.0.0/0"));
        assert_eq!(parse_cidr("::1/0"), parse_cidr("ffff::/0"));
        assert_eq!(parse_cidr("10.0.0.1/32"), parse_cidr("10.0.0.1"));
        assert_ne!(parse_cidr("10.0.0.0/8"), parse_cidr("10.0.0.0/9"));
        for bad in ["", "/", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "::/129", "10.0.0/8", "10.0.0.0/8/8", "a/8"] {
            assert_eq!(parse_cidr(bad), None, "{bad}");
        }
    }
}
