//! The parts of an absolute URL (RFC 3986, section 3).

/// The parts of a URL, as they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Url<'a> {
    pub scheme: &'a str,
    pub user_info: Option<&'a str>,
    /// A name, an IPv4 address, or an IPv6 address in brackets.
    pub host: &'a str,
    pub port: Option<u16>,
    /// With its slash; empty without one.
    pub path: &'a str,
    pub query: Option<&'a str>,
}

impl<'a> Url<'a> {
    /// Splits a URL with an authority. None where it has no scheme, its host is missing or holds anything but ASCII
    /// letters, digits, dots, hyphens and underscores, or its port is no number. A policy refuses what is none.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let is_scheme = |letter: u8| letter.is_ascii_alphanumeric() || b"+-.".contains(&letter);
        if !scheme.starts_with(|letter: char| letter.is_ascii_alphabetic()) || !scheme.bytes().all(is_scheme) {
            return None;
        }
        let rest = rest.split('#').next().unwrap_or_default();
        // A browser and many libraries take a backslash for a slash, so it ends the authority here as well.
        let (authority, rest) = rest.split_at(rest.find(['/', '?', '\\']).unwrap_or(rest.len()));
        let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
        let (user_info, address) = authority.rsplit_once('@').map_or((None, authority), |(u, rest)| (Some(u), rest));
        let end =
            if address.starts_with('[') { address.find(']')? + 1 } else { address.find(':').unwrap_or(address.len()) };
        let (host, port) = address.split_at(end);
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => None,
            Some("") => None,
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => Some(digits.parse().ok()?),
            _ => return None,
        };
        // What is written otherwise, as `%2E` for a dot, is read differently by different programs.
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'.' || b == b'-' || b == b'_';
        let is_host = host.starts_with('[') || (!host.is_empty() && host.bytes().all(is_plain));
        is_host.then_some(Self { scheme, user_info, host, port, path, query })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_split_into_its_parts() {
        let url = Url::parse("https://ada:secret@hooks.example.com:8443/a/b?c=d/e#f").unwrap();
        assert_eq!(
            url,
            Url {
                scheme: "https",
                user_info: Some("ada:secret"),
                host: "hooks.example.com",
                port: Some(8443),
                path: "/a/b",
                query: Some("c=d/e"),
            }
        );
        let host = |text| Url::parse(text).map(|url| url.host);
        assert_eq!(host("https://[2001:db8::1]:443/"), Some("[2001:db8::1]"));
        assert_eq!(host("https://example.com?to=other.example"), Some("example.com"));
        assert_eq!(host("https://good.example@evil.example/"), Some("evil.example"));
        assert_eq!(host("https://evil.example\\@good.example/"), Some("evil.example"));
    }

    #[test]
    fn text_without_scheme_or_host_is_no_url() {
        for wrong in [
            "",
            "example.com",
            "://example.com",
            "https://",
            "https:///path",
            "https://a:b/",
            "https://[::1",
            "https://evil%2Eexample/",
            "https://evil。example/",
        ] {
            assert_eq!(Url::parse(wrong), None, "{wrong}");
        }
    }
}
