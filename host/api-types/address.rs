//! Public addresses.

use schemars::JsonSchema;
use serde::Serialize;

use culvert_domain::tunnel::PublicAddress;

/// Where visitors reach it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "PublicAddress")]
pub struct AddressResponse {
    hostname: String,
    port: u16,
    /// For http tunnels.
    url: Option<String>,
    ipv4: Option<String>,
    ipv6: Option<String>,
}

impl From<PublicAddress> for AddressResponse {
    fn from(address: PublicAddress) -> Self {
        let PublicAddress { hostname, port, url, ipv4, ipv6 } = address;
        Self { hostname, port, url, ipv4: ipv4.map(|ip| ip.to_string()), ipv6: ipv6.map(|ip| ip.to_string()) }
    }
}
