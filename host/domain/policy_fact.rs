//! Facts that a policy can ask for, beside the request that it decides on.

use super::string_enum::{StringEnum, string_enum};

string_enum! {
    /// A fact about a request that policies get if they declare it.
    PolicyFact {
        Credential "credential",
        Now "now",
        TeamName "team.name",
        KeyId "key.id",
        KeyPreset "key.preset",
        KeyScopes "key.scopes",
        KeyCreatedAt "key.created_at",
        CallerAccountId "caller.account_id",
        CallerRole "caller.role",
        TunnelName "tunnel.name",
        TunnelProtocol "tunnel.protocol",
        TunnelRegion "tunnel.region",
        TunnelSubdomain "tunnel.subdomain",
        TunnelLocalPort "tunnel.local_port",
        TunnelCreatedAt "tunnel.created_at",
        TunnelRunning "tunnel.running",
        TunnelRules "tunnel.rules",
        DeviceName "device.name",
        DevicePlatform "device.platform",
        DeviceOwner "device.owner",
        SourceDeviceName "source_device.name",
        SourceDevicePlatform "source_device.platform",
        SourceDeviceOwner "source_device.owner",
        UsageTunnels "usage.tunnels",
        UsageRunningTunnels "usage.running_tunnels",
        UsageCallersTunnels "usage.callers_tunnels",
        UsageCallersRunningTunnels "usage.callers_running_tunnels",
        ClientIp "client.ip",
        RequestMethod "request.method",
        RequestAction "request.action",
        RequestId "request.id",
        InputHostHeader "input.host_header",
        InputLocalScheme "input.local_scheme",
        InputLocalTlsVerify "input.local_tls_verify",
        InputProxyProtocol "input.proxy_protocol",
        InputTlsPassthrough "input.tls_passthrough",
        CurrentHostHeader "current.host_header",
        CurrentLocalScheme "current.local_scheme",
        CurrentLocalTlsVerify "current.local_tls_verify",
        CurrentProxyProtocol "current.proxy_protocol",
        CurrentTlsPassthrough "current.tls_passthrough",
    }
}

impl PolicyFact {
    /// Facts of the devices that a request concerns.
    pub const OF_DEVICES: PolicyFacts = PolicyFacts::of(&[
        Self::DeviceName,
        Self::DevicePlatform,
        Self::DeviceOwner,
        Self::SourceDeviceName,
        Self::SourceDevicePlatform,
        Self::SourceDeviceOwner,
    ]);

    /// Counts that only a query of their own can tell.
    pub const RUNNING_USAGE: PolicyFacts =
        PolicyFacts::of(&[Self::UsageRunningTunnels, Self::UsageCallersTunnels, Self::UsageCallersRunningTunnels]);

    /// The type of its value as JSON, and what it says.
    pub fn meaning(self) -> (&'static str, &'static str) {
        const TEXT: &str = "string";
        const MAYBE_TEXT: &str = "string or null";
        const MAYBE_FLAG: &str = "boolean or null";
        const TIME: &str = "string, RFC 3339 in UTC";
        const COUNT: &str = "number";
        match self {
            Self::Credential => (
                TEXT,
                "what the caller has shown: `key`, or `device` for a command at a device; `session` and `console` may follow",
            ),
            Self::Now => (TIME, "when the request came, by the host's clock; the same for all modules"),
            Self::TeamName => (MAYBE_TEXT, "the Team's name; null in a personal scope"),
            Self::KeyId => (MAYBE_TEXT, "the API key's UUID; null for a device"),
            Self::KeyPreset => (MAYBE_TEXT, "the preset that has just the key's scopes: `read_only`, `full_access`"),
            Self::KeyScopes => ("list of strings", "the key's API scopes: `tunnels:write`; none for a device"),
            Self::KeyCreatedAt => ("string, RFC 3339 in UTC, or null", "when the key was made"),
            Self::CallerAccountId => (TEXT, "the caller's account, a UUID"),
            Self::CallerRole => (MAYBE_TEXT, "`owner`, `admin` or `member`; null in a personal scope"),
            Self::TunnelName => (MAYBE_TEXT, "the tunnel that is acted on; null where the request is about none"),
            Self::TunnelProtocol => (MAYBE_TEXT, "`tcp`, `udp`, `both` or `http`"),
            Self::TunnelRegion => (MAYBE_TEXT, "the region that it was created for"),
            Self::TunnelSubdomain => (MAYBE_TEXT, "its subdomain, for http"),
            Self::TunnelLocalPort => ("number or null", "the port on the device"),
            Self::TunnelCreatedAt => ("string, RFC 3339 in UTC, or null", "when it was created"),
            Self::TunnelRunning => ("boolean or null", "whether it runs or is being started"),
            Self::TunnelRules => (
                "object or null",
                "`firewall`, a list of `{rule_type, ip_address, ip_cidr}`, and `geoip`, a list of `{country_code, \
                 action}`, as the API shows them",
            ),
            Self::DeviceName => (MAYBE_TEXT, "the first device among the targets of the request; null without one"),
            Self::DevicePlatform => (MAYBE_TEXT, "its platform, as its agent says: `linux/x86_64`"),
            Self::DeviceOwner => (MAYBE_TEXT, "the account that enrolled it, a UUID"),
            Self::SourceDeviceName => (MAYBE_TEXT, "the device that a handoff takes the tunnel from"),
            Self::SourceDevicePlatform => (MAYBE_TEXT, "the platform of that device"),
            Self::SourceDeviceOwner => (MAYBE_TEXT, "the account that enrolled that device, a UUID"),
            Self::UsageTunnels => (COUNT, "tunnels of the scope"),
            Self::UsageRunningTunnels => (COUNT, "those that run or are being started"),
            Self::UsageCallersTunnels => (COUNT, "tunnels of the scope that the caller created"),
            Self::UsageCallersRunningTunnels => (COUNT, "those of the caller that run or are being started"),
            Self::ClientIp => (MAYBE_TEXT, "the client's address, behind trusted proxies the one that they name"),
            Self::RequestMethod => (MAYBE_TEXT, "the HTTP method: `POST`"),
            Self::RequestAction => (TEXT, "what the request does: `tunnels.start`"),
            Self::InputHostHeader => (MAYBE_TEXT, "the body's field; null without one"),
            Self::InputLocalScheme => {
                (MAYBE_TEXT, "the body's field: `auto`, `http`, `https` or `h2c`; null without one")
            }
            Self::InputLocalTlsVerify | Self::InputTlsPassthrough => (MAYBE_FLAG, "the body's field; null without one"),
            Self::InputProxyProtocol => (MAYBE_TEXT, "the body's field: `none`, `v1`, `v2` or `spp`; null without one"),
            Self::CurrentHostHeader => (MAYBE_TEXT, "`host_header` of the tunnel that is acted on"),
            Self::CurrentLocalScheme => (MAYBE_TEXT, "`local_scheme` of the tunnel that is acted on"),
            Self::CurrentLocalTlsVerify => (MAYBE_FLAG, "`local_tls_verify` of the tunnel that is acted on"),
            Self::CurrentProxyProtocol => (MAYBE_TEXT, "`proxy_protocol` of the tunnel that is acted on"),
            Self::CurrentTlsPassthrough => (MAYBE_FLAG, "`tls_passthrough` of the tunnel that is acted on"),
            Self::RequestId => (MAYBE_TEXT, "the request's UUID, as `X-Request-Id` has it"),
        }
    }

    const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// A set of facts, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyFacts(u64);

impl PolicyFacts {
    pub const NONE: Self = Self(0);

    pub const fn of(facts: &[PolicyFact]) -> Self {
        let (mut bits, mut index) = (0, 0);
        while index < facts.len() {
            bits |= facts[index].bit();
            index += 1;
        }
        Self(bits)
    }

    pub fn contains(self, fact: PolicyFact) -> bool {
        self.0 & fact.bit() != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub fn union(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// Whether the sets have a fact in common.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub fn iter(self) -> impl Iterator<Item = PolicyFact> {
        PolicyFact::ALL.iter().copied().filter(move |fact| self.contains(*fact))
    }
}

impl FromIterator<PolicyFact> for PolicyFacts {
    fn from_iter<I: IntoIterator<Item = PolicyFact>>(facts: I) -> Self {
        Self(facts.into_iter().fold(0, |bits, fact| bits | fact.bit()))
    }
}
