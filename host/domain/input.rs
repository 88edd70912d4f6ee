//! Request bodies as they were read: every field that was well-formed, and nothing judged yet.
//!
//! A field of the wrong type is absent here; the reader keeps its fault. What is valid is decided
//! by the validation policy, and in the end by the types that these become (`gate/`).

use schemars::JsonSchema;
use serde_json::{Value, json};
use uuid::Uuid;

use super::access::{CountryAction, RuleType};
use super::event::EventKind;
use super::tunnel::Protocol;
use super::webhook::WebhookStatus;

/// Patterns of the description (ECMA-262). The validation policy judges; these say what it says.
const TEXT: &str =
    r"^[^\u0000-\u001f\u007f-\u009f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]*$";
const PASSWORD: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";
const USER: &str =
    r"^[^:\u0000-\u001f\u007f-\u009f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]*$";
const SUBDOMAIN: &str = "^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$";
const HOST: &str = r"^(?![0-9.]+$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?$";
const DOMAIN: &str = r"^([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$";

/// https, a name or an address, perhaps a port, path and query; no user information, no fragment. A
/// name whose last label is a number would be an address (WHATWG URL, "host parsing").
fn url() -> String {
    let label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
    let name = format!(r"({label}\.)*[A-Za-z]([A-Za-z0-9-]{{0,61}}[A-Za-z0-9])?");
    let byte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    format!(r"^https://({name}|{byte}(\.{byte}){{3}}|\[({})\])(:[1-9][0-9]{{0,3}})?([/?][^#\s]*)?$", ipv6())
}

/// A host name, or an address.
fn host() -> Value {
    json!([{"format": "ipv4"}, {"format": "ipv6"}, {"pattern": HOST}])
}

fn address() -> Value {
    json!([{"type": "null"}, {"format": "ipv4"}, {"format": "ipv6"}])
}

/// An address, or one with a prefix length behind it.
fn range() -> Value {
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
fn one_address() -> Value {
    let given = |name: &str| json!({"required": [name], "properties": {name: {"type": "string"}}});
    json!([given("ip_address"), given("ip_cidr")])
}

/// A field that a change may also clear: absent, null, or a value.
pub type Nullable<T> = Option<Option<T>>;

/// Tunnel create input
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "TunnelCreate", extend("required" = ["local_port"], "additionalProperties" = false))]
pub struct NewTunnel {
    /// The port of the service on the device.
    #[schemars(with = "u16", range(min = 1, max = 65535))]
    pub local_port: Option<i64>,
    /// Display name; `<protocol>-<local_port>` where none is given.
    #[schemars(with = "String", length(min = 1, max = 100), extend("pattern" = TEXT))]
    pub name: Option<String>,
    /// tcp where none is given.
    #[schemars(with = "Protocol", extend("default" = "tcp"))]
    pub protocol: Option<Protocol>,
    /// The host of the service, as the device sees it.
    #[schemars(with = "String", length(min = 1, max = 253), extend("default" = "127.0.0.1", "anyOf" = host()))]
    pub local_host: Option<String>,
    /// A preferred region; any other is taken where none fits.
    #[schemars(regex(pattern = r"^[a-z0-9-]{1,32}$"))]
    pub region: Option<String>,
    /// A preferred country (ISO 3166-1 alpha-2); any other is taken where none fits.
    #[schemars(regex(pattern = r"^[A-Za-z]{2}$"))]
    pub country: Option<String>,
    /// A preset from `GET /presets`, which fills in name, protocol and extra ports where they are absent.
    pub game_preset_id: Option<Uuid>,
    /// A platform subdomain: 3 to 63 letters, digits and single inner hyphens.
    #[schemars(length(min = 3, max = 63), extend("pattern" = SUBDOMAIN))]
    pub subdomain: Option<String>,
    /// Managed HTTPS, for http tunnels.
    #[schemars(with = "bool", extend("default" = true))]
    pub http_ssl_enabled: Option<bool>,
    #[schemars(with = "bool", extend("default" = false))]
    pub http_basic_auth_enabled: Option<bool>,
    /// For http tunnels.
    #[schemars(length(min = 1, max = 64), extend("pattern" = USER))]
    pub http_basic_auth_username: Option<String>,
    /// For http tunnels; never returned.
    #[schemars(length(min = 8, max = 128), extend("writeOnly" = true, "pattern" = PASSWORD))]
    pub http_basic_auth_password: Option<String>,
    /// Seconds without a byte in either direction after which one connection is closed; null: the default.
    #[schemars(with = "Option<u32>", range(min = 30, max = 3600))]
    pub idle_timeout: Option<i64>,
    /// Bytes that each direction of a connection is copied with; null: the default.
    #[schemars(with = "Option<u32>", range(min = 1024, max = 1_048_576))]
    pub buffer_size: Option<i64>,
    /// The premium network; true for plans that include it, where it is not given.
    #[schemars(with = "bool")]
    pub pro_network: Option<bool>,
    /// The devices that may run the tunnel; empty: any authorized device.
    #[schemars(with = "Vec<Uuid>", length(max = 100))]
    pub device_ids: Option<Vec<Uuid>>,
    #[schemars(with = "Vec<NewExtraPort>", length(max = 10))]
    pub extra_ports: Option<Vec<NewExtraPort>>,
}

/// Extra port input
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "ExtraPortCreate", extend("required" = ["local_port"], "additionalProperties" = false))]
pub struct NewExtraPort {
    #[schemars(with = "u16", range(min = 1, max = 65535))]
    pub local_port: Option<i64>,
    #[schemars(length(max = 255), extend("pattern" = TEXT))]
    pub label: Option<String>,
    /// The tunnel's protocol where none is given (tcp for an http tunnel).
    #[schemars(with = "Protocol")]
    pub protocol: Option<Protocol>,
}

/// Tunnel update input: at least one field. Only supplied fields change.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "TunnelUpdate", extend("required" = [], "minProperties" = 1, "additionalProperties" = false))]
pub struct TunnelPatch {
    #[schemars(with = "String", length(min = 1, max = 100), extend("pattern" = TEXT))]
    pub name: Option<String>,
    #[schemars(with = "String", length(min = 1, max = 253), extend("anyOf" = host()))]
    pub local_host: Option<String>,
    #[schemars(with = "u16", range(min = 1, max = 65535))]
    pub local_port: Option<i64>,
    #[schemars(with = "bool")]
    pub http_ssl_enabled: Option<bool>,
    #[schemars(with = "bool")]
    pub http_basic_auth_enabled: Option<bool>,
    #[schemars(with = "Option<String>", length(min = 1, max = 64), extend("pattern" = USER))]
    pub http_basic_auth_username: Nullable<String>,
    /// Never returned.
    #[schemars(with = "Option<String>", length(min = 8, max = 128), extend("writeOnly" = true, "pattern" = PASSWORD))]
    pub http_basic_auth_password: Nullable<String>,
    /// Seconds without a byte in either direction after which one connection is closed; null: the default.
    #[schemars(with = "Option<u32>", range(min = 30, max = 3600))]
    pub idle_timeout: Nullable<i64>,
    /// Bytes that each direction of a connection is copied with; null: the default.
    #[schemars(with = "Option<u32>", range(min = 1024, max = 1_048_576))]
    pub buffer_size: Nullable<i64>,
    #[schemars(with = "bool")]
    pub pro_network: Option<bool>,
}

/// Device allowlist input: replaces the whole list.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "DeviceBindingsInput", extend("required" = ["device_ids"], "additionalProperties" = false))]
pub struct BindDevices {
    /// Empty: any authorized device; one: the tunnel is pinned to it.
    #[schemars(with = "Vec<Uuid>", length(max = 100))]
    pub device_ids: Option<Vec<Uuid>>,
}

/// Start input
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "TunnelStart", extend("required" = [], "additionalProperties" = false))]
pub struct StartTunnel {
    /// Required while the tunnel is not running.
    #[schemars(with = "Uuid")]
    pub device_id: Option<Uuid>,
    /// Stop the tunnel where it runs, and go on at the requested device.
    #[schemars(with = "bool", extend("default" = false))]
    pub handoff: Option<bool>,
}

/// Device update input: one field or both.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "DeviceUpdate", extend("required" = [], "minProperties" = 1, "additionalProperties" = false))]
pub struct DevicePatch {
    #[schemars(with = "String", length(min = 1, max = 100), extend("pattern" = TEXT))]
    pub name: Option<String>,
    /// Only `false` is accepted: remote control is turned on at the device itself.
    #[schemars(with = "bool", extend("const" = false))]
    pub remote_control_enabled: Option<bool>,
}

/// Custom domain to verify
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "DomainVerify", extend("required" = ["domain"], "additionalProperties" = false))]
pub struct VerifyDomain {
    /// A host name of at least two labels whose CNAME is the tunnel's `cname_target`.
    #[schemars(with = "String", length(max = 253), extend("format" = "hostname", "pattern" = DOMAIN))]
    pub domain: Option<String>,
}

/// Custom domain to assign
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "DomainAssign", extend("required" = ["domain"], "additionalProperties" = false))]
pub struct AssignDomain {
    /// A domain that was verified.
    #[schemars(with = "String", length(max = 253), extend("format" = "hostname", "pattern" = DOMAIN))]
    pub domain: Option<String>,
}

/// Firewall rules input: replaces every rule.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "FirewallInput", extend("required" = ["rules"], "additionalProperties" = false))]
pub struct ReplaceFirewall {
    #[schemars(with = "Vec<NewFirewallRule>", length(max = 200))]
    pub rules: Option<Vec<NewFirewallRule>>,
}

/// Firewall rule input: exactly one of `ip_address` and `ip_cidr`.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(
    rename = "FirewallRuleInput",
    extend("required" = ["rule_type"], "additionalProperties" = false, "oneOf" = one_address())
)]
pub struct NewFirewallRule {
    #[schemars(with = "RuleType")]
    pub rule_type: Option<RuleType>,
    /// One IPv4 or IPv6 address.
    #[schemars(extend("anyOf" = address()))]
    pub ip_address: Option<String>,
    /// An IPv4 or IPv6 address or CIDR range.
    #[schemars(extend("anyOf" = range()))]
    pub ip_cidr: Option<String>,
    #[schemars(length(max = 255), extend("pattern" = TEXT))]
    pub description: Option<String>,
}

/// GeoIP rules input: replaces every rule.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "GeoipInput", extend("required" = ["rules"], "additionalProperties" = false))]
pub struct ReplaceGeoip {
    #[schemars(with = "Vec<NewGeoipRule>", length(max = 249))]
    pub rules: Option<Vec<NewGeoipRule>>,
}

/// GeoIP rule input
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "GeoipRuleInput", extend("required" = ["country_code"], "additionalProperties" = false))]
pub struct NewGeoipRule {
    /// ISO 3166-1 alpha-2, in either case.
    #[schemars(with = "String", regex(pattern = r"^[A-Za-z]{2}$"))]
    pub country_code: Option<String>,
    /// block where none is given.
    #[schemars(with = "CountryAction", extend("default" = "block"))]
    pub action: Option<CountryAction>,
}

/// Move input
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "TunnelMove", extend("required" = ["node_id"], "additionalProperties" = false))]
pub struct MoveTunnel {
    /// A node of `GET /nodes`.
    #[schemars(with = "Uuid")]
    pub node_id: Option<Uuid>,
}

/// Webhook create input
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "WebhookCreate", extend("required" = ["url", "events"], "additionalProperties" = false))]
pub struct NewWebhook {
    /// Where events are sent to: https, on a public address, without user information or fragment.
    #[schemars(with = "String", length(max = 2048), extend("format" = "uri", "pattern" = url()))]
    pub url: Option<String>,
    /// What it is to hear of.
    #[schemars(with = "Vec<EventKind>", length(min = 1), extend("uniqueItems" = true))]
    pub events: Option<Vec<String>>,
    #[schemars(length(max = 255), extend("pattern" = TEXT))]
    pub description: Option<String>,
}

/// Webhook update input: at least one field. Only supplied fields change.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(rename = "WebhookUpdate", extend("required" = [], "minProperties" = 1, "additionalProperties" = false))]
pub struct WebhookPatch {
    #[schemars(with = "String", length(max = 2048), extend("format" = "uri", "pattern" = url()))]
    pub url: Option<String>,
    #[schemars(with = "Vec<EventKind>", length(min = 1), extend("uniqueItems" = true))]
    pub events: Option<Vec<String>>,
    #[schemars(with = "Option<String>", length(max = 255), extend("pattern" = TEXT))]
    pub description: Nullable<String>,
    /// What waits for an endpoint that is disabled is canceled, and not sent later.
    #[schemars(with = "WebhookStatus")]
    pub status: Option<WebhookStatus>,
}

/// One request body, as the validation policy is asked about it.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    TunnelCreate(&'a NewTunnel),
    TunnelUpdate(&'a TunnelPatch),
    DeviceBindings(&'a BindDevices),
    TunnelStart(&'a StartTunnel),
    ExtraPortCreate(&'a NewExtraPort),
    DomainAssign(&'a AssignDomain),
    DomainVerify(&'a VerifyDomain),
    FirewallReplace(&'a ReplaceFirewall),
    GeoipReplace(&'a ReplaceGeoip),
    TunnelMove(&'a MoveTunnel),
    DeviceUpdate(&'a DevicePatch),
    WebhookCreate(&'a NewWebhook),
    WebhookUpdate(&'a WebhookPatch),
}
