//! The path of a request in one spelling, for everything that looks at paths but the router, which
//! reads all spellings of one.

use percent_encoding::percent_decode_str;
use salvo::Depot;

/// The normalised path of a request.
#[derive(Clone)]
pub(crate) struct Path(pub String);

impl Path {
    pub(crate) fn of(depot: &Depot) -> &str {
        depot.get_typed::<Path>().map_or("/", |path| path.0.as_str())
    }
}

/// Percent-decoded (RFC 3986, section 2.1), and without doubled slashes or one at the end.
pub(crate) fn normalised(path: &str) -> String {
    let mut normal = String::with_capacity(path.len());
    for part in path.split('/').filter(|part| !part.is_empty()) {
        normal.push('/');
        match percent_decode_str(part).decode_utf8() {
            // An encoded slash is part of a segment and separates none.
            Ok(decoded) if !decoded.contains('/') => normal.push_str(&decoded),
            _ => normal.push_str(part),
        }
    }
    if normal.is_empty() { "/".into() } else { normal }
}

#[cfg(test)]
mod tests {
    use super::normalised;

    #[test]
    fn equivalent_paths_normalise_to_one_spelling() {
        for (path, normal) in [
            ("/", "/"),
            ("//", "/"),
            ("/v1/", "/v1"),
            ("//v1//tunnels/", "/v1/tunnels"),
            ("/%761/tunnels", "/v1/tunnels"),
            ("/v2/%74unnels", "/v2/tunnels"),
            ("/v2/a%2fb", "/v2/a%2fb"),
            ("/v2/%ff", "/v2/%ff"),
        ] {
            assert_eq!(normalised(path), normal, "{path}");
        }
    }
}
