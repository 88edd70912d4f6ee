//! Nodes, which carry the traffic, and the domains that name their tunnels.

use uuid::Uuid;

use super::port::PortRange;
use super::string_enum::string_enum;

string_enum! {
    /// Only an `online` node takes new tunnels.
    NodeStatus {
        Online "online",
        Degraded "degraded",
        Maintenance "maintenance",
        Offline "offline",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub id: Uuid,
    pub name: String,
    /// Where its public ports are reached.
    pub hostname: String,
    /// A slug: `eu-central`.
    pub region: String,
    /// ISO 3166-1 alpha-2.
    pub country: String,
    pub region_flag: Option<String>,
    pub status: NodeStatus,
    pub pro_only: bool,
    /// Whether it knows which country a visitor comes from.
    pub knows_countries: bool,
    /// The public ports that it gives away.
    pub ports: PortRange,
}

/// A domain under which tunnels get names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlatformDomain {
    pub id: Uuid,
    pub domain: String,
    pub is_default: bool,
    pub region: Option<String>,
    pub pro_only: bool,
}

/// Where a tunnel wants to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preference {
    pub region: Option<String>,
    pub country: Option<String>,
    pub premium: bool,
}

/// The node for a new tunnel: region and country are preferences, `pro_only` is a condition.
/// Among equals, the one with the fewest tunnels.
pub fn place<'a>(nodes: impl IntoIterator<Item = (&'a Node, u64)>, wanted: &Preference) -> Option<&'a Node> {
    let eligible =
        nodes.into_iter().filter(|(node, _)| node.status == NodeStatus::Online && (!node.pro_only || wanted.premium));
    let fit = |node: &Node| {
        let region = wanted.region.as_ref().is_some_and(|region| *region == node.region);
        let country = wanted.country.as_ref().is_some_and(|country| country.eq_ignore_ascii_case(&node.country));
        (region, country, node.pro_only == wanted.premium)
    };
    let best =
        eligible.max_by(|(a, busy_a), (b, busy_b)| fit(a).cmp(&fit(b)).then(busy_b.cmp(busy_a)).then(b.id.cmp(&a.id)));
    best.map(|(node, _)| node)
}
