//! The name that a request is for (RFC 9110, section 7.2).

use hyper::header::HOST;
use hyper::{Request, Version};

/// Most characters of a host name (RFC 1035, section 2.3.4).
const LONGEST: usize = 253;

/// The name that a request is for, in lower case, without its port and without a final dot. `None` if the request
/// names none, more than one, or one that no tunnel can have.
pub(super) fn name_of<B>(request: &Request<B>) -> Option<String> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = match hosts.next() {
        Some(host) => Some(name_in(host.to_str().ok()?)?),
        None => None,
    };
    if hosts.next().is_some() {
        return None;
    }
    // A request in absolute form names its authority twice. Those of HTTP/2 may do so (RFC 9113, section 8.3.1), but need
    // no Host.
    let authority = match request.uri().authority() {
        Some(authority) => Some(name_in(authority.as_str())?),
        None => None,
    };
    match (host, authority) {
        (Some(host), Some(authority)) => (host == authority).then_some(host),
        (None, authority) => authority.filter(|_| request.version() == Version::HTTP_2),
        (host, None) => host,
    }
}

fn name_in(authority: &str) -> Option<String> {
    let (name, port) = authority.split_once(':').map_or((authority, None), |(name, port)| (name, Some(port)));
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse().is_ok_and(|port: u16| port > 0);
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_name = !name.is_empty()
        && name.len() <= LONGEST
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
    (is_name && port.is_none_or(is_port)).then(|| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(uri: &str, hosts: &[&str]) -> Option<String> {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        name_of(&request.body(()).unwrap())
    }

    #[test]
    fn names_are_normalised() {
        for host in ["hello.example.com", "HELLO.example.com:8081", "hello.example.com.", "Hello.Example.Com.:80"] {
            assert_eq!(found("/", &[host]).as_deref(), Some("hello.example.com"), "{host}");
        }
        assert_eq!(found("http://a.example:81/x", &["a.example"]).as_deref(), Some("a.example"));
    }

    #[test]
    fn unusable_names_are_refused() {
        let long = "a".repeat(254);
        let unusable = [
            "", ".", ":80", "a:0", "a:", "a:65536", "a:8x", "a:+1", "a b", "a,b", "a@b", "a%2eb", "[::1]", "[::1",
            "a/b", &long,
        ];
        for host in unusable {
            assert_eq!(found("/", &[host]), None, "{host}");
        }
        assert_eq!(found("/", &[]), None);
        assert_eq!(found("http://a.example/", &[]), None, "HTTP/1.1 needs a Host");
        assert_eq!(found("/", &["a", "a"]), None);
        assert_eq!(found("http://b.example/", &["a.example"]), None);
    }
}
