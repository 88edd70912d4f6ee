//! Nodes, which carry the traffic, and the domains that name their tunnels.

use uuid::Uuid;

use super::port::PortRange;
use super::string_enum::string_enum;

// From the best to the worst.
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
    /// As the operator has set it.
    pub status: NodeStatus,
    /// `degraded` while its host is not heard of and it may serve still, `offline` afterwards.
    pub reach: NodeStatus,
    pub pro_only: bool,
    /// Whether it knows which country a visitor comes from.
    pub knows_countries: bool,
    /// The public ports that it gives away.
    pub ports: PortRange,
    /// The domain whose subdomains its http tunnels get. Without one, it takes none.
    pub domain_id: Option<Uuid>,
    /// Where visitors reach its http tunnels in the clear.
    pub http_port: Option<u16>,
    /// The same by HTTPS.
    pub https_port: Option<u16>,
}

impl Node {
    /// The worse of what the operator says and of what its host says.
    pub fn shown_status(&self) -> NodeStatus {
        self.status.max(self.reach)
    }

    /// Whether its host is heard of.
    pub fn is_online(&self) -> bool {
        self.reach == NodeStatus::Online
    }

    /// The public port of all http tunnels on this node.
    pub fn web_port(&self, https: bool) -> u16 {
        if https { self.https_port.unwrap_or(443) } else { self.http_port.unwrap_or(80) }
    }

    /// Whether http tunnels can be reached here.
    pub fn takes_http(&self, https: bool) -> bool {
        self.domain_id.is_some() && if https { self.https_port.is_some() } else { self.http_port.is_some() }
    }
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
    /// For an http tunnel: whether it is reached by HTTPS.
    pub https: Option<bool>,
}

/// The node for a new tunnel: region and country are preferences, `pro_only` and reaching http tunnels are conditions.
/// Among equals, the one with the fewest tunnels.
pub fn place<'a>(nodes: impl IntoIterator<Item = (&'a Node, u64)>, wanted: &Preference) -> Option<&'a Node> {
    let eligible = nodes
        .into_iter()
        .filter(|(node, _)| node.shown_status() == NodeStatus::Online && (!node.pro_only || wanted.premium));
    let eligible = eligible.filter(|(node, _)| wanted.https.is_none_or(|https| node.takes_http(https)));
    let fit = |node: &Node| {
        let region = wanted.region.as_ref().is_some_and(|region| *region == node.region);
        let country = wanted.country.as_ref().is_some_and(|country| country.eq_ignore_ascii_case(&node.country));
        (region, country, node.pro_only == wanted.premium)
    };
    let best =
        eligible.max_by(|(a, busy_a), (b, busy_b)| fit(a).cmp(&fit(b)).then(busy_b.cmp(busy_a)).then(b.id.cmp(&a.id)));
    best.map(|(node, _)| node)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A node in a region, which is its name as well.
    pub(crate) fn node(number: u128, region: &str, country: &str) -> Node {
        Node {
            id: Uuid::from_u128(number),
            name: region.into(),
            hostname: format!("{region}.example.com"),
            region: region.into(),
            country: country.into(),
            region_flag: None,
            status: NodeStatus::Online,
            reach: NodeStatus::Online,
            pro_only: false,
            knows_countries: false,
            ports: PortRange { first: 20_000, last: 20_009 },
            domain_id: None,
            http_port: None,
            https_port: None,
        }
    }

    fn placed(nodes: &[(Node, u64)], wanted: &Preference) -> Option<u128> {
        place(nodes.iter().map(|(node, load)| (node, *load)), wanted).map(|node| node.id.as_u128())
    }

    #[test]
    fn placement_prefers_region_then_country_then_fewest_tunnels() {
        let nodes = [
            (node(1, "berlin", "DE"), 9),
            (node(2, "munich", "DE"), 3),
            (node(3, "oslo", "NO"), 0),
            (node(4, "oslo", "NO"), 0),
        ];
        let wanted = |region: Option<&str>, country: Option<&str>| Preference {
            region: region.map(String::from),
            country: country.map(String::from),
            premium: false,
            https: None,
        };
        assert_eq!(placed(&nodes, &wanted(Some("berlin"), Some("NO"))), Some(1), "region before country");
        assert_eq!(placed(&nodes, &wanted(Some("nowhere"), Some("de"))), Some(2), "country, in either case");
        assert_eq!(placed(&nodes, &wanted(None, None)), Some(3), "the fewest tunnels, then the lowest id");
        assert_eq!(placed(&[], &wanted(None, None)), None);
    }

    #[test]
    fn placement_takes_only_online_nodes_of_the_network() {
        let mut premium = (node(1, "berlin", "DE"), 0);
        premium.0.pro_only = true;
        let mut resting = (node(2, "berlin", "DE"), 0);
        resting.0.status = NodeStatus::Maintenance;
        let nodes = [premium, resting, (node(3, "berlin", "DE"), 7)];
        let wanted = |premium| Preference { premium, ..Preference::default() };
        assert_eq!(placed(&nodes, &wanted(false)), Some(3));
        assert_eq!(placed(&nodes, &wanted(true)), Some(1));
        assert_eq!(placed(&nodes[1..2], &wanted(true)), None);
    }
}
