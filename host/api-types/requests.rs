//! Request bodies as they were read: every field that was well-formed, and nothing judged yet.
//!
//! A field of the wrong type is absent here; the reader keeps its fault. What is valid is decided
//! by the validation policy, and in the end by the types that these become in the service's `gate`.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use uuid::Uuid;

use crate::patterns::{DOMAIN, PASSWORD, SUBDOMAIN, TEXT, USER, address, host, host_header, one_address, range, url};
use crate::read::{FieldReader, FromJsonTree, Nullable, flag, id, integer, string_enum, text};
use culvert_domain::access::{CountryAction, RuleType};
use culvert_domain::event::EventKind;
use culvert_domain::local_service::{LocalScheme, ProxyProtocol};
use culvert_domain::protocol::Protocol;
use culvert_domain::webhook::WebhookStatus;

/// A request body: its struct and schema, how each field is read, and the fields that the API returns with the
/// resource and does not take. One line a field: `name: type = reader(parser)`.
macro_rules! request {
    ($(#[$meta:meta])* $name:ident ignores [$($ignored:expr),*] {
        $($(#[$field_meta:meta])* $field:ident: $type:ty = $read:ident($parse:expr),)*
    }) => {
        #[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
        $(#[$meta])*
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl FromJsonTree for $name {
            const SCHEMA: Option<fn(&mut SchemaGenerator) -> Schema> =
                Some(|generator| generator.subschema_for::<$name>());

            fn read(fields: &mut FieldReader<'_>) -> Self {
                $(fields.ignore(&$ignored);)*
                Self { $($field: fields.$read(stringify!($field), $parse),)* }
            }
        }
    };
}

/// What a tunnel is returned with and cannot be asked for.
const TUNNEL_MADE: [&str; 14] = [
    "id",
    "remote_port",
    "status",
    "runtime",
    "bindings",
    "node",
    "custom_domain",
    "public_address",
    "created_by",
    "created_at",
    "updated_at",
    "current_device",
    "authorized_devices",
    "authorized_devices_total",
];

/// What can be asked for with a new tunnel, and cannot be changed by `PATCH`.
const TUNNEL_FIXED: [&str; 6] = ["protocol", "subdomain", "region", "country", "game_preset_id", "extra_ports"];

request! {
    /// Tunnel create input
    #[schemars(rename = "TunnelCreate", extend("required" = ["local_port"], "additionalProperties" = false))]
    NewTunnel ignores [TUNNEL_MADE] {
        /// The port of the service on the device.
        #[schemars(with = "u16", range(min = 1, max = 65535))]
        local_port: Option<i64> = read(integer),
        /// Display name; `<protocol>-<local_port>` where none is given.
        #[schemars(with = "String", length(min = 1, max = 100), extend("pattern" = TEXT))]
        name: Option<String> = read(text),
        /// tcp where none is given.
        #[schemars(with = "Protocol", extend("default" = "tcp"))]
        protocol: Option<Protocol> = read(string_enum),
        /// The host of the service, as the device sees it.
        #[schemars(with = "String", length(min = 1, max = 253), extend("default" = "127.0.0.1", "anyOf" = host()))]
        local_host: Option<String> = read(text),
        /// A preferred region; any other is taken where none fits.
        #[schemars(regex(pattern = r"^[a-z0-9-]{1,32}$"))]
        region: Option<String> = read_or_null(text),
        /// A preferred country (ISO 3166-1 alpha-2); any other is taken where none fits.
        #[schemars(regex(pattern = r"^[A-Za-z]{2}$"))]
        country: Option<String> = read_or_null(text),
        /// A preset from `GET /presets`, which fills in name, protocol and extra ports where they are absent.
        game_preset_id: Option<Uuid> = read_or_null(id),
        /// A platform subdomain: 3 to 63 letters, digits and single inner hyphens.
        #[schemars(length(min = 3, max = 63), extend("pattern" = SUBDOMAIN))]
        subdomain: Option<String> = read_or_null(text),
        /// Managed HTTPS, for http tunnels.
        #[schemars(with = "bool", extend("default" = true))]
        http_ssl_enabled: Option<bool> = read(flag),
        #[schemars(with = "bool", extend("default" = false))]
        http_basic_auth_enabled: Option<bool> = read(flag),
        /// For http tunnels.
        #[schemars(length(min = 1, max = 64), extend("pattern" = USER))]
        http_basic_auth_username: Option<String> = read_or_null(text),
        /// For http tunnels; never returned.
        #[schemars(length(min = 8, max = 128), extend("writeOnly" = true, "pattern" = PASSWORD))]
        http_basic_auth_password: Option<String> = read_or_null(text),
        /// Seconds without a byte in either direction after which one connection is closed; null: the default.
        #[schemars(with = "Option<u32>", range(min = 30, max = 3600))]
        idle_timeout: Option<i64> = read_or_null(integer),
        /// Bytes that each direction of a connection is copied with; null: the default.
        #[schemars(with = "Option<u32>", range(min = 1024, max = 1_048_576))]
        buffer_size: Option<i64> = read_or_null(integer),
        /// The Host header of requests to the service, for http tunnels; null: the visitor's.
        #[schemars(length(max = 255), extend("pattern" = host_header()))]
        host_header: Option<String> = read_or_null(text),
        /// How the service of an http tunnel is spoken to: `auto` is `https` for the ports 443 and 8443, else `http`;
        /// `h2c` is HTTP/2 without TLS.
        #[schemars(with = "LocalScheme", extend("default" = "auto"))]
        local_scheme: Option<LocalScheme> = read(string_enum),
        /// Whether the service's certificate is verified, for http tunnels; null: unless its address is loopback or
        /// private.
        local_tls_verify: Option<bool> = read_or_null(flag),
        /// How the service is told who a visitor is. tcp and http: none, v1, v2; udp: none, v2, spp; both: none, v2.
        #[schemars(with = "ProxyProtocol", extend("default" = "none"))]
        proxy_protocol: Option<ProxyProtocol> = read(string_enum),
        /// Whether visitors make TLS with the service itself, for http tunnels without basic auth.
        #[schemars(with = "bool", extend("default" = false))]
        tls_passthrough: Option<bool> = read(flag),
        /// The premium network; true for plans that include it, where it is not given.
        #[schemars(with = "bool")]
        pro_network: Option<bool> = read(flag),
        /// The devices that may run the tunnel; empty: any authorized device.
        #[schemars(with = "Vec<Uuid>", length(max = 100))]
        device_ids: Option<Vec<Uuid>> = list(id),
        #[schemars(with = "Vec<NewExtraPort>", length(max = 10))]
        extra_ports: Option<Vec<NewExtraPort>> = objects(NewExtraPort::read),
    }
}

request! {
    /// Extra port input
    #[schemars(rename = "ExtraPortCreate", extend("required" = ["local_port"], "additionalProperties" = false))]
    NewExtraPort ignores [["id", "remote_port", "public_address"]] {
        #[schemars(with = "u16", range(min = 1, max = 65535))]
        local_port: Option<i64> = read(integer),
        #[schemars(length(max = 255), extend("pattern" = TEXT))]
        label: Option<String> = read_or_null(text),
        /// The tunnel's protocol where none is given (tcp for an http tunnel).
        #[schemars(with = "Protocol")]
        protocol: Option<Protocol> = read(string_enum),
    }
}

request! {
    /// Tunnel update input: at least one field. Only supplied fields change.
    #[schemars(rename = "TunnelUpdate", extend("required" = [], "minProperties" = 1, "additionalProperties" = false))]
    TunnelPatch ignores [TUNNEL_MADE, TUNNEL_FIXED] {
        #[schemars(with = "String", length(min = 1, max = 100), extend("pattern" = TEXT))]
        name: Option<String> = read(text),
        #[schemars(with = "String", length(min = 1, max = 253), extend("anyOf" = host()))]
        local_host: Option<String> = read(text),
        #[schemars(with = "u16", range(min = 1, max = 65535))]
        local_port: Option<i64> = read(integer),
        #[schemars(with = "bool")]
        http_ssl_enabled: Option<bool> = read(flag),
        #[schemars(with = "bool")]
        http_basic_auth_enabled: Option<bool> = read(flag),
        #[schemars(with = "Option<String>", length(min = 1, max = 64), extend("pattern" = USER))]
        http_basic_auth_username: Nullable<String> = read_or_clear(text),
        /// Never returned.
        #[schemars(with = "Option<String>", length(min = 8, max = 128), extend("writeOnly" = true, "pattern" = PASSWORD))]
        http_basic_auth_password: Nullable<String> = read_or_clear(text),
        /// Seconds without a byte in either direction after which one connection is closed; null: the default.
        #[schemars(with = "Option<u32>", range(min = 30, max = 3600))]
        idle_timeout: Nullable<i64> = read_or_clear(integer),
        /// Bytes that each direction of a connection is copied with; null: the default.
        #[schemars(with = "Option<u32>", range(min = 1024, max = 1_048_576))]
        buffer_size: Nullable<i64> = read_or_clear(integer),
        /// The Host header of requests to the service, for http tunnels; null: the visitor's.
        #[schemars(with = "Option<String>", length(max = 255), extend("pattern" = host_header()))]
        host_header: Nullable<String> = read_or_clear(text),
        /// How the service of an http tunnel is spoken to: `auto` is `https` for the ports 443 and 8443, else `http`;
        /// `h2c` is HTTP/2 without TLS.
        #[schemars(with = "LocalScheme")]
        local_scheme: Option<LocalScheme> = read(string_enum),
        /// Whether the service's certificate is verified, for http tunnels; null: unless its address is loopback or
        /// private.
        #[schemars(with = "Option<bool>")]
        local_tls_verify: Nullable<bool> = read_or_clear(flag),
        /// How the service is told who a visitor is. tcp and http: none, v1, v2; udp: none, v2, spp; both: none, v2.
        #[schemars(with = "ProxyProtocol")]
        proxy_protocol: Option<ProxyProtocol> = read(string_enum),
        /// Whether visitors make TLS with the service itself, for http tunnels without basic auth.
        #[schemars(with = "bool")]
        tls_passthrough: Option<bool> = read(flag),
        #[schemars(with = "bool")]
        pro_network: Option<bool> = read(flag),
    }
}

request! {
    /// Device allowlist input: replaces the whole list.
    #[schemars(rename = "DeviceBindingsInput", extend("required" = ["device_ids"], "additionalProperties" = false))]
    BindDevices ignores [["unrestricted", "stopped_device_id"]] {
        /// Empty: any authorized device; one: the tunnel is pinned to it.
        #[schemars(with = "Vec<Uuid>", length(max = 100))]
        device_ids: Option<Vec<Uuid>> = list(id),
    }
}

request! {
    /// Start input
    #[schemars(rename = "TunnelStart", extend("required" = [], "additionalProperties" = false))]
    StartTunnel ignores [] {
        /// Required while the tunnel is not running.
        #[schemars(with = "Uuid")]
        device_id: Option<Uuid> = read(id),
        /// Stop the tunnel where it runs, and go on at the requested device.
        #[schemars(with = "bool", extend("default" = false))]
        handoff: Option<bool> = read(flag),
    }
}

request! {
    /// Device update input: one field or both.
    #[schemars(rename = "DeviceUpdate", extend("required" = [], "minProperties" = 1, "additionalProperties" = false))]
    DevicePatch ignores [["id", "owner_id", "platform", "version", "online", "capabilities", "last_seen_at"]] {
        #[schemars(with = "String", length(min = 1, max = 100), extend("pattern" = TEXT))]
        name: Option<String> = read(text),
        /// Only `false` is accepted: remote control is turned on at the device itself.
        #[schemars(with = "bool", extend("const" = false))]
        remote_control_enabled: Option<bool> = read(flag),
    }
}

request! {
    /// Custom domain to verify
    #[schemars(rename = "DomainVerify", extend("required" = ["domain"], "additionalProperties" = false))]
    VerifyDomain ignores [] {
        /// A host name of at least two labels whose CNAME is the tunnel's `cname_target`.
        #[schemars(with = "String", length(max = 253), extend("format" = "hostname", "pattern" = DOMAIN))]
        domain: Option<String> = read(text),
    }
}

request! {
    /// Custom domain to assign
    #[schemars(rename = "DomainAssign", extend("required" = ["domain"], "additionalProperties" = false))]
    AssignDomain ignores [["status", "cname_target", "verified_at", "last_checked_at", "error", "certificate"]] {
        /// A domain that was verified.
        #[schemars(with = "String", length(max = 253), extend("format" = "hostname", "pattern" = DOMAIN))]
        domain: Option<String> = read(text),
    }
}

request! {
    /// Firewall rules input: replaces every rule.
    #[schemars(rename = "FirewallInput", extend("required" = ["rules"], "additionalProperties" = false))]
    ReplaceFirewall ignores [["enforced"]] {
        #[schemars(with = "Vec<NewFirewallRule>", length(max = 200))]
        rules: Option<Vec<NewFirewallRule>> = objects(NewFirewallRule::read),
    }
}

request! {
    /// Firewall rule input: exactly one of `ip_address` and `ip_cidr`.
    #[schemars(
        rename = "FirewallRuleInput",
        extend("required" = ["rule_type"], "additionalProperties" = false, "oneOf" = one_address())
    )]
    NewFirewallRule ignores [["id", "created_at"]] {
        #[schemars(with = "RuleType")]
        rule_type: Option<RuleType> = read(string_enum),
        /// One IPv4 or IPv6 address.
        #[schemars(extend("anyOf" = address()))]
        ip_address: Option<String> = read_or_null(text),
        /// An IPv4 or IPv6 address or CIDR range.
        #[schemars(extend("anyOf" = range()))]
        ip_cidr: Option<String> = read_or_null(text),
        #[schemars(length(max = 255), extend("pattern" = TEXT))]
        description: Option<String> = read_or_null(text),
    }
}

request! {
    /// GeoIP rules input: replaces every rule.
    #[schemars(rename = "GeoipInput", extend("required" = ["rules"], "additionalProperties" = false))]
    ReplaceGeoip ignores [["enforced"]] {
        #[schemars(with = "Vec<NewGeoipRule>", length(max = 249))]
        rules: Option<Vec<NewGeoipRule>> = objects(NewGeoipRule::read),
    }
}

request! {
    /// GeoIP rule input
    #[schemars(rename = "GeoipRuleInput", extend("required" = ["country_code"], "additionalProperties" = false))]
    NewGeoipRule ignores [] {
        /// ISO 3166-1 alpha-2, in either case.
        #[schemars(with = "String", regex(pattern = r"^[A-Za-z]{2}$"))]
        country_code: Option<String> = read(text),
        /// block where none is given.
        #[schemars(with = "CountryAction", extend("default" = "block"))]
        action: Option<CountryAction> = read(string_enum),
    }
}

request! {
    /// Move input
    #[schemars(rename = "TunnelMove", extend("required" = ["node_id"], "additionalProperties" = false))]
    MoveTunnel ignores [] {
        /// A node of `GET /nodes`.
        #[schemars(with = "Uuid")]
        node_id: Option<Uuid> = read(id),
    }
}

request! {
    /// Webhook create input
    #[schemars(rename = "WebhookCreate", extend("required" = ["url", "events"], "additionalProperties" = false))]
    NewWebhook ignores [["id", "last_delivery", "created_at", "updated_at"]] {
        /// Where events are sent to: https, on a public address, without user information or fragment.
        #[schemars(with = "String", length(max = 2048), extend("format" = "uri", "pattern" = url()))]
        url: Option<String> = read(text),
        /// What it is to hear of.
        #[schemars(with = "Vec<EventKind>", length(min = 1), extend("uniqueItems" = true))]
        events: Option<Vec<String>> = list(text),
        #[schemars(length(max = 255), extend("pattern" = TEXT))]
        description: Option<String> = read_or_null(text),
    }
}

request! {
    /// Webhook update input: at least one field. Only supplied fields change.
    #[schemars(rename = "WebhookUpdate", extend("required" = [], "minProperties" = 1, "additionalProperties" = false))]
    WebhookPatch ignores [["id", "last_delivery", "created_at", "updated_at"]] {
        #[schemars(with = "String", length(max = 2048), extend("format" = "uri", "pattern" = url()))]
        url: Option<String> = read(text),
        #[schemars(with = "Vec<EventKind>", length(min = 1), extend("uniqueItems" = true))]
        events: Option<Vec<String>> = list(text),
        #[schemars(with = "Option<String>", length(max = 255), extend("pattern" = TEXT))]
        description: Nullable<String> = read_or_clear(text),
        /// What waits for an endpoint that is disabled is canceled, and not sent later.
        #[schemars(with = "WebhookStatus")]
        status: Option<WebhookStatus> = read(string_enum),
    }
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
