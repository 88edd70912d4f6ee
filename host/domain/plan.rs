//! What a plan includes, as the plan-access policy says it.

/// An absent number is unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entitlement {
    pub api_access: bool,
    pub tunnel_limit: Option<u32>,
    /// Payload bytes, both ways together, in a calendar month (UTC).
    pub bandwidth_limit_bytes: Option<u64>,
    /// The remote actions that it includes, by name.
    pub remote_actions: Vec<String>,
    pub premium_network: bool,
    pub custom_domains: bool,
    pub webhook_endpoints: Option<u32>,
    pub extra_ports_per_tunnel: Option<u32>,
}
