//! Formats of single fields.

use std::net::IpAddr;

use crate::country;
use crate::findings::Findings;

/// Names that would mislead as somebody's subdomain, or that the platform needs itself.
pub const RESERVED_SUBDOMAINS: [&str; 20] = [
    "www",
    "api",
    "admin",
    "mail",
    "smtp",
    "imap",
    "pop",
    "ftp",
    "ns*",
    "cname",
    "dns",
    "docs",
    "status",
    "support",
    "help",
    "blog",
    "app",
    "dashboard",
    "auth",
    "login",
];

pub fn port(port: Option<i64>, field: &str, findings: &mut Findings) {
    let holds = port.is_none_or(|port| (1..=65_535).contains(&port));
    findings.check(holds, field, "port", "must be between 1 and 65535");
}

pub fn name(name: Option<&str>, field: &str, findings: &mut Findings) {
    let message = "must have 1 to 100 characters, none of them a control character";
    findings.check(name.is_none_or(|name| is_text(name, 1, 100)), field, "name", message);
}

pub fn label(label: Option<&str>, field: &str, findings: &mut Findings) {
    let message = "must have at most 255 characters, none of them a control character";
    findings.check(label.is_none_or(|label| is_text(label, 0, 255)), field, "label", message);
}

pub fn local_host(host: Option<&str>, findings: &mut Findings) {
    let holds = host.is_none_or(|host| host.parse::<IpAddr>().is_ok() || is_host_name(host));
    findings.check(holds, "local_host", "local-host", "must be a host name or an IP address of at most 253 characters");
}

pub fn region(region: Option<&str>, findings: &mut Findings) {
    let slug = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let holds = region.is_none_or(|region| (1..=32).contains(&region.len()) && region.chars().all(slug));
    findings.check(holds, "region", "region", "must have 1 to 32 characters of a-z, 0-9 and -");
}

pub fn country(code: Option<&str>, field: &str, findings: &mut Findings) {
    let message = "must be an ISO 3166-1 alpha-2 country code";
    findings.check(code.is_none_or(country::exists), field, "country", message);
}

pub fn subdomain(subdomain: Option<&str>, reserved: &[String], findings: &mut Findings) {
    let Some(subdomain) = subdomain.map(str::to_ascii_lowercase) else { return };
    let holds = (3..=63).contains(&subdomain.len()) && is_label(&subdomain) && !subdomain.contains("--");
    let message = "must have 3 to 63 characters of a-z, 0-9 and single inner hyphens";
    findings.check(holds, "subdomain", "subdomain", message);
    findings.check(!is_reserved(&subdomain, reserved), "subdomain", "reserved-subdomain", "is reserved");
}

fn is_reserved(subdomain: &str, reserved: &[String]) -> bool {
    reserved.iter().any(|reserved| match reserved.strip_suffix('*') {
        Some(prefix) => subdomain.starts_with(prefix),
        None => subdomain == reserved,
    })
}

pub fn is_text(text: &str, shortest: usize, longest: usize) -> bool {
    (shortest..=longest).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

/// RFC 1123, section 2.1; an underscore passes too, since names in private networks have them.
pub fn is_host_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let numbers_only = name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    (1..=253).contains(&name.len()) && !numbers_only && name.split('.').all(label)
}

/// A DNS label in lower case.
pub fn is_label(label: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_name_check_accepts_only_valid_names() {
        let long = "a".repeat(64);
        for good in ["localhost", "db.internal", "my_service", "a-b.c", "example.com.", "1and1.de"] {
            assert!(is_host_name(good), "{good}");
        }
        for bad in ["", ".", "a..b", "-a", "a-", "a b", "a/b", "ä.de", "1.2.3", "127.1", long.as_str()] {
            assert!(!is_host_name(bad), "{bad}");
        }
        assert!(is_host_name(&["a"; 126].join(".")) && !is_host_name(&["a"; 128].join(".")));
    }

    #[test]
    fn text_length_is_counted_in_characters() {
        assert!(is_text(&"ü".repeat(100), 1, 100) && !is_text(&"u".repeat(101), 1, 100));
        assert!(!is_text("a\u{85}b", 1, 100) && !is_text("a\tb", 1, 100));
    }

    #[test]
    fn wildcard_reserves_all_subdomains_with_its_prefix() {
        let reserved = RESERVED_SUBDOMAINS.map(String::from);
        for taken in ["www", "ns", "ns1", "nsfw"] {
            assert!(is_reserved(taken, &reserved), "{taken}");
        }
        assert!(!is_reserved("www2", &reserved) && !is_reserved("on", &reserved));
    }
}
