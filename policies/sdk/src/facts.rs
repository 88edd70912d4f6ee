//! Facts about a request, which a policy declares with `facts: […]` in [`policy!`](crate::policy) and then reads from
//! the request's `attributes`.
//!
//! ```ignore
//! let name = facts::TUNNEL_NAME.of(&ask.attributes);
//! ```

use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use crate::time::Time;

/// A fact whose value is a `T`.
pub struct Fact<T> {
    name: &'static str,
    value: PhantomData<fn() -> T>,
}

/// An attribute of a request; `policy!` implements it for the contract's type.
pub trait Attribute {
    fn name(&self) -> &str;

    /// A JSON text.
    fn value(&self) -> &str;
}

impl<T: DeserializeOwned> Fact<T> {
    const fn new(name: &'static str) -> Self {
        Self { name, value: PhantomData }
    }

    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The fact's value; none where it does not apply to the request, or the policy has not declared it.
    pub fn of(&self, attributes: &[impl Attribute]) -> Option<T> {
        let attribute = attributes.iter().find(|attribute| attribute.name() == self.name)?;
        serde_json::from_str::<Option<T>>(attribute.value()).ok().flatten()
    }
}

macro_rules! facts {
    ($($(#[$about:meta])* $constant:ident: $type:ty = $name:literal,)*) => {
        $($(#[$about])* pub const $constant: Fact<$type> = Fact::new($name);)*

        /// The names of all facts.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

facts! {
    /// What the caller has shown: `key`, or `device` for a command at a device.
    CREDENTIAL: String = "credential",
    /// When the request came.
    NOW: Time = "now",
    TEAM_NAME: String = "team.name",
    KEY_ID: String = "key.id",
    KEY_PRESET: String = "key.preset",
    KEY_SCOPES: Vec<String> = "key.scopes",
    KEY_CREATED_AT: Time = "key.created_at",
    CALLER_ACCOUNT_ID: String = "caller.account_id",
    CALLER_ROLE: String = "caller.role",
    TUNNEL_NAME: String = "tunnel.name",
    TUNNEL_PROTOCOL: String = "tunnel.protocol",
    TUNNEL_REGION: String = "tunnel.region",
    TUNNEL_SUBDOMAIN: String = "tunnel.subdomain",
    TUNNEL_LOCAL_PORT: u16 = "tunnel.local_port",
    TUNNEL_CREATED_AT: Time = "tunnel.created_at",
    TUNNEL_RUNNING: bool = "tunnel.running",
    TUNNEL_RULES: TunnelRules = "tunnel.rules",
    DEVICE_NAME: String = "device.name",
    DEVICE_PLATFORM: String = "device.platform",
    DEVICE_OWNER: String = "device.owner",
    SOURCE_DEVICE_NAME: String = "source_device.name",
    SOURCE_DEVICE_PLATFORM: String = "source_device.platform",
    SOURCE_DEVICE_OWNER: String = "source_device.owner",
    USAGE_TUNNELS: u32 = "usage.tunnels",
    USAGE_RUNNING_TUNNELS: u32 = "usage.running_tunnels",
    USAGE_CALLERS_TUNNELS: u32 = "usage.callers_tunnels",
    USAGE_CALLERS_RUNNING_TUNNELS: u32 = "usage.callers_running_tunnels",
    CLIENT_IP: String = "client.ip",
    REQUEST_METHOD: String = "request.method",
    REQUEST_ACTION: String = "request.action",
    REQUEST_ID: String = "request.id",
    INPUT_HOST_HEADER: String = "input.host_header",
    INPUT_LOCAL_SCHEME: String = "input.local_scheme",
    INPUT_LOCAL_TLS_VERIFY: bool = "input.local_tls_verify",
    INPUT_PROXY_PROTOCOL: String = "input.proxy_protocol",
    INPUT_TLS_PASSTHROUGH: bool = "input.tls_passthrough",
    CURRENT_HOST_HEADER: String = "current.host_header",
    CURRENT_LOCAL_SCHEME: String = "current.local_scheme",
    CURRENT_LOCAL_TLS_VERIFY: bool = "current.local_tls_verify",
    CURRENT_PROXY_PROTOCOL: String = "current.proxy_protocol",
    CURRENT_TLS_PASSTHROUGH: bool = "current.tls_passthrough",
}

/// Which visitors a tunnel lets in.
#[derive(Debug, serde::Deserialize)]
pub struct TunnelRules {
    pub firewall: Vec<FirewallRule>,
    pub geoip: Vec<GeoipRule>,
}

#[derive(Debug, serde::Deserialize)]
pub struct FirewallRule {
    /// `whitelist` or `blacklist`.
    pub rule_type: String,
    pub ip_address: Option<String>,
    pub ip_cidr: Option<String>,
}

#[derive(Debug, serde::Deserialize)]
pub struct GeoipRule {
    /// ISO 3166-1 alpha-2, in upper case.
    pub country_code: String,
    /// `allow` or `block`.
    pub action: String,
}

/// A settings schema that declares the facts that its policy wants.
pub fn declare(schema: &str, names: &[&str]) -> String {
    let Some(rest) = schema.trim_start().strip_prefix('{').filter(|_| !names.is_empty()) else {
        return schema.into();
    };
    let names = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(",");
    let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
    format!("{{\"x-culvert-facts\":[{names}]{comma}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Given(&'static str, &'static str);

    impl Attribute for Given {
        fn name(&self) -> &str {
            self.0
        }

        fn value(&self) -> &str {
            self.1
        }
    }

    #[test]
    fn fact_is_read_by_its_name_and_type() {
        let given = [Given("tunnel.name", "\"web\""), Given("usage.tunnels", "3"), Given("team.name", "null")];
        assert_eq!(TUNNEL_NAME.of(&given).as_deref(), Some("web"));
        assert_eq!(USAGE_TUNNELS.of(&given), Some(3));
        assert_eq!(TEAM_NAME.of(&given), None);
        assert_eq!(KEY_ID.of(&given), None);
    }

    #[test]
    fn declared_facts_are_a_keyword_of_the_schema() {
        let schema = declare("{ \"type\": \"object\" }", &["now", "team.name"]);
        assert_eq!(schema, "{\"x-culvert-facts\":[\"now\",\"team.name\"], \"type\": \"object\" }");
        assert_eq!(declare("{}", &["now"]), "{\"x-culvert-facts\":[\"now\"]}");
        assert_eq!(declare("{}", &[]), "{}");
    }
}
