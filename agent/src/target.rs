//! The local service that a tunnel leads to: which addresses are allowed, and dialling them.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};

use crate::clock::Clock;
use crate::socket;
use crate::wire::{Failure, Target};

const DIAL_WITHIN: Duration = Duration::from_secs(10);

/// Whether tunnels may lead to link-local addresses, where clouds keep their instances' secrets.
/// Only the device's own command line allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLocal {
    Refused,
    Allowed,
}

/// Connects to a target.
///
/// # Errors
///
/// `agent_rejected` for an address that the device does not lead to, `local_target_unreachable`
/// where nothing answers.
pub async fn dial(target: &Target, link_local: LinkLocal, clock: &Clock) -> Result<TcpStream, Failure> {
    match clock.timeout(DIAL_WITHIN, connect(target, link_local)).await {
        Ok(connected) => connected,
        Err(_) => Err(unreachable(target, "no answer within 10 seconds")),
    }
}

async fn connect(target: &Target, link_local: LinkLocal) -> Result<TcpStream, Failure> {
    let addresses = lookup_host((target.host.as_str(), target.port)).await.map_err(|e| unreachable(target, e))?;
    let (allowed, refused): (Vec<_>, Vec<_>) =
        addresses.partition(|address| link_local == LinkLocal::Allowed || !is_link_local(address.ip()));
    if allowed.is_empty()
        && let Some(refused) = refused.first()
    {
        let detail = format!(
            "{} is a link-local or metadata address; `culvert-agent run --allow-link-local` permits them.",
            refused.ip()
        );
        return Err(Failure::new("agent_rejected", detail));
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in allowed {
        match open(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(unreachable(target, last))
}

async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    socket::prepare(&stream)?;
    Ok(stream)
}

fn unreachable(target: &Target, why: impl std::fmt::Display) -> Failure {
    Failure::new("local_target_unreachable", format!("{}:{}: {why}", target.host, target.port))
}

/// 169.254.0.0/16, fe80::/10, and the address of a cloud's metadata service over IPv6.
fn is_link_local(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6 == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_addresses_are_link_local_in_every_spelling() {
        for refused in ["169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "fd00:ec2::254"] {
            assert!(is_link_local(refused.parse().unwrap()), "{refused}");
        }
        for allowed in ["127.0.0.1", "10.0.0.1", "192.168.1.1", "::1", "fd00::1"] {
            assert!(!is_link_local(allowed.parse().unwrap()), "{allowed}");
        }
    }
}
