//! The base URL under which agents reach a host.

use url::Url;

use crate::loopback::is_loopback;

/// The longest URL, in bytes.
const LONGEST: usize = 2048;

/// The URL without a slash at its end. Over plain HTTP others on the way would read what is said, so that is for this machine
/// alone.
///
/// # Errors
///
/// What is wrong with it.
pub fn server_url(text: &str) -> Result<String, String> {
    if text.len() > LONGEST {
        return Err(format!("it is longer than {LONGEST} bytes"));
    }
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    match url.scheme() {
        "https" => {}
        "http" if is_local(&url) => {}
        "http" => return Err("http:// is for loopback only; use https://".into()),
        other => return Err(format!("{other}:// is no https:// URL")),
    }
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err("it has a user, a query or a fragment".into());
    }
    Ok(url.as_str().trim_end_matches('/').into())
}

/// Whether a URL leads to this machine.
pub fn is_local(url: &Url) -> bool {
    url.host_str().is_some_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use super::server_url;

    #[test]
    fn plain_http_is_for_loopback_alone() {
        for (text, url) in [
            ("https://culvert.example.com/", "https://culvert.example.com"),
            ("HTTPS://Culvert.example.com:8443/a/", "https://culvert.example.com:8443/a"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://[::1]:8080/", "http://[::1]:8080"),
        ] {
            assert_eq!(server_url(text).as_deref(), Ok(url));
        }
        let long = format!("https://{}.example.com", "a".repeat(2048));
        for text in [
            "",
            "culvert.example.com",
            "http://192.0.2.1",
            "ftp://a",
            "https://a/?b",
            "https://a@b",
            "https://:a@b",
            &long,
        ] {
            assert!(server_url(text).is_err(), "{text}");
        }
    }
}
