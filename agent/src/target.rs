//! The local target of a tunnel: which addresses are allowed, and connecting to them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, lookup_host};

use crate::approved_targets::Chosen;
use crate::proxy_header;
use crate::service_stream::ServiceStream;
use crate::service_tls;
use crate::targets::Targets;
use culvert_wire::allowed_target::{exactly, is_reserved, not_allowed, ports};
use culvert_wire::clock::Clock;
use culvert_wire::control::Failure;
use culvert_wire::data2::visit::{Accepted, H2, Visit, VisitKind};
use culvert_wire::failure_code::FailureCode;
use culvert_wire::socket;
use culvert_wire::target::Target;

const DIAL_WITHIN: Duration = Duration::from_secs(10);
/// How long a service may take to make TLS. With the time to connect, it is less than the node waits.
const TLS_WITHIN: Duration = Duration::from_secs(4);

/// Whether tunnels may lead to link-local addresses, where clouds serve the secrets of their instances. Only
/// the device's own command line can allow it, and only for targets chosen at the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLocal {
    Refused,
    Allowed,
}

/// What decides which addresses may be dialled.
pub struct Bounds<'a> {
    pub chosen: Chosen,
    pub link_local: LinkLocal,
    pub targets: &'a Targets,
}

impl Bounds<'_> {
    fn admit(&self, host: &str, address: SocketAddr) -> bool {
        let ordinary = self.link_local == LinkLocal::Allowed || !is_reserved(address.ip());
        (self.chosen == Chosen::Here && ordinary) || self.targets.admits(host, address.ip(), address.port())
    }

    /// The addresses of a host that may be dialled.
    fn sift(&self, host: &str, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Failure> {
        let (allowed, refused): (Vec<_>, Vec<_>) =
            addresses.into_iter().partition(|address| self.admit(host, *address));
        match refused.first() {
            Some(refused) if allowed.is_empty() => Err(self.refusal(host, *refused)),
            _ => Ok(allowed),
        }
    }

    fn refusal(&self, host: &str, address: SocketAddr) -> Failure {
        let (ip, port) = (address.ip().to_canonical(), address.port());
        if self.chosen == Chosen::Here {
            let detail = format!(
                "{ip} is a link-local or metadata address; `culvert-agent run --allow-link-local` permits them."
            );
            return Failure::new(FailureCode::AgentRejected, detail);
        }
        // An entry with a name never allows a reserved address, so the message names the address.
        let by_host = !is_reserved(ip) && exactly(host, port).is_some();
        let detail = if by_host { not_allowed(host, port) } else { not_allowed(&ip.to_string(), port) };
        Failure::new(FailureCode::TargetNotAllowed, detail)
    }
}

/// Why a target was not reached.
#[derive(Clone, Debug)]
pub struct Unreached {
    pub failure: Failure,
    /// Whether it has not answered in time.
    pub is_silent: bool,
}

impl From<Failure> for Unreached {
    fn from(failure: Failure) -> Self {
        Self { failure, is_silent: false }
    }
}

impl From<Unreached> for Failure {
    fn from(unreached: Unreached) -> Self {
        unreached.failure
    }
}

/// Connects to a target.
///
/// # Errors
///
/// `target_not_allowed` or `agent_rejected` for an address that is not allowed, `local_target_unreachable` if
/// nothing answers.
pub async fn dial(target: &Target, bounds: &Bounds<'_>, clock: &Clock) -> Result<TcpStream, Unreached> {
    match clock.timeout(DIAL_WITHIN, connect(target, bounds)).await {
        Ok(connected) => Ok(connected?),
        Err(_) => Err(Unreached { failure: unreachable(target, "no answer within 10 seconds"), is_silent: true }),
    }
}

/// Begins a visit on a connection to its service: says who the visitor is, and makes TLS. Returns also what the node is
/// told of it.
///
/// # Errors
///
/// `local_target_unreachable` if the connection has ended, `local_tls_failed` if TLS is not to be had.
pub(crate) async fn begin(
    mut stream: TcpStream,
    target: &Target,
    visit: &Visit,
    clock: &Clock,
) -> Result<(ServiceStream, Accepted), Failure> {
    if let Some(header) = proxy_header::of_visit(target.proxy_protocol, visit) {
        // It always fits the socket's buffer.
        stream.write_all(&header).await.map_err(|error| unreachable(target, error))?;
    }
    if visit.kind != VisitKind::Http || !target.tls {
        return Ok((ServiceStream::Plain(stream), Accepted { alpn: None, target_version: target.version }));
    }
    let address = stream.peer_addr().map_err(|error| unreachable(target, error))?;
    let verifies = target.tls_verify.unwrap_or_else(|| !service_tls::is_near(address.ip()));
    let name = target.server_name.as_deref().unwrap_or(&target.host);
    let offers_h2 = visit.alpn.as_deref() == Some(H2);
    let made = clock.timeout(TLS_WITHIN, service_tls::connect(stream, name, verifies, offers_h2)).await;
    let stream = made.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|error| {
        let detail = format!("{}:{} makes no TLS for {name}: {error}", target.host, target.port);
        Failure::new(FailureCode::LocalTlsFailed, detail)
    })?;
    let accepted = Accepted { alpn: service_tls::chosen_protocol(&stream), target_version: target.version };
    Ok((ServiceStream::Tls(Box::new(stream)), accepted))
}

/// Opens a socket for datagrams to a target. Whether anybody listens there shows with the first datagram.
///
/// # Errors
///
/// As [`dial`].
pub async fn connect_datagrams(target: &Target, bounds: &Bounds<'_>, clock: &Clock) -> Result<UdpSocket, Failure> {
    let resolved = clock.timeout(DIAL_WITHIN, resolve(target)).await;
    let addresses = resolved.map_err(|_| unreachable(target, "the name was not found within 10 seconds"))?;
    let addresses = addresses.map_err(|error| unreachable(target, error))?;
    let address = bounds.sift(&target.host, addresses)?.into_iter().next();
    let address = address.ok_or_else(|| unreachable(target, "the name has no address"))?;
    open_datagrams(address).await.map_err(|error| unreachable(target, error))
}

async fn open_datagrams(address: SocketAddr) -> io::Result<UdpSocket> {
    let local: SocketAddr =
        if address.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(address).await?;
    // From here on, it can be written without waiting.
    socket.writable().await?;
    Ok(socket)
}

/// Looks up a target without dialling it. If the lookup fails, the target is checked when it is dialled.
///
/// # Errors
///
/// As [`dial`], if none of its addresses is allowed for one of its ports.
pub async fn look_up(target: &Target, bounds: &Bounds<'_>, clock: &Clock) -> Result<(), Failure> {
    let Ok(Ok(found)) = clock.timeout(DIAL_WITHIN, resolve(target)).await else { return Ok(()) };
    for port in ports(target) {
        let addresses = found.iter().map(|address| SocketAddr::new(address.ip(), port)).collect();
        bounds.sift(&target.host, addresses)?;
    }
    Ok(())
}

async fn resolve(target: &Target) -> io::Result<Vec<SocketAddr>> {
    Ok(lookup_host((target.host.as_str(), target.port)).await?.collect())
}

async fn connect(target: &Target, bounds: &Bounds<'_>) -> Result<TcpStream, Failure> {
    let addresses = resolve(target).await.map_err(|error| unreachable(target, error))?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in bounds.sift(&target.host, addresses)? {
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
    Failure::new(FailureCode::LocalTargetUnreachable, format!("{}:{}: {why}", target.host, target.port))
}
