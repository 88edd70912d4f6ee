//! Patterns of the API's description (ECMA-262). The validation policy judges; these describe what it accepts.

use serde_json::{Value, json};

pub(crate) const TEXT: &str =
    r"^[^\u0000-\u001f\u007f-\u009f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]*$";

pub(crate) const PASSWORD: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";

pub(crate) const USER: &str =
    r"^[^:\u0000-\u001f\u007f-\u009f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]*$";

pub(crate) const SUBDOMAIN: &str = "^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$";

const HOST: &str = r"^(?![0-9.]+$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?$";

pub(crate) const DOMAIN: &str =
    r"^([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$";

/// https, a name or an address, perhaps a port, path and query; no user information, no fragment. A
/// name whose last label is a number would be an address (WHATWG URL, "host parsing").
pub(crate) fn url() -> String {
    let label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
    let name = format!(r"({label}\.)*[A-Za-z]([A-Za-z0-9-]{{0,61}}[A-Za-z0-9])?");
    let byte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    format!(r"^https://({name}|{byte}(\.{byte}){{3}}|\[({})\])(:[1-9][0-9]{{0,3}})?([/?][^#\s]*)?$", ipv6())
}

/// A name or an address, with a port or without.
pub(crate) fn host_header() -> String {
    let port = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]";
    format!(r"^([A-Za-z0-9._-]+|\[({})\])(:({port}))?$", ipv6())
}

/// A host name, or an address.
pub(crate) fn host() -> Value {
    json!([{"format": "ipv4"}, {"format": "ipv6"}, {"pattern": HOST}])
}

pub(crate) fn address() -> Value {
    json!([{"type": "null"}, {"format": "ipv4"}, {"format": "ipv6"}])
}

/// An address, or one with a prefix length behind it.
pub(crate) fn range() -> Value {
    let byte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    let four = format!(r"^{byte}(\.{byte}){{3}}/(3[0-2]|[12]?[0-9])$");
    let six = format!("^({})/(12[0-8]|1[01][0-9]|[1-9]?[0-9])$", ipv6());
    json!([{"type": "null"}, {"format": "ipv4"}, {"format": "ipv6"}, {"pattern": four}, {"pattern": six}])
}

/// IPv6 in hexadecimal, with at most one run of zeros left out (RFC 4291, section 2.2).
fn ipv6() -> String {
    let word = "[0-9A-Fa-f]{1,4}";
    let cut = |before: usize| format!("({word}:){{1,{before}}}(:{word}){{1,{}}}", 7 - before);
    let cuts: Vec<String> = (1..=6).map(cut).collect();
    format!("({word}:){{7}}{word}|({word}:){{1,7}}:|{}|:((:{word}){{1,7}}|:)", cuts.join("|"))
}

/// Exactly one of the two is a text, and so the other null or absent.
pub(crate) fn one_address() -> Value {
    let given = |name: &str| json!({"required": [name], "properties": {name: {"type": "string"}}});
    json!([given("ip_address"), given("ip_cidr")])
}
