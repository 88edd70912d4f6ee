//! The public ports of one tunnel. New visitors go to the newest run.

use std::cmp::Ordering;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use culvert_wire::client_network::is_trusted;
use culvert_wire::data2::visit::VisitKind;
use culvert_wire::node::{Assignment, Transport};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::future::FutureExt;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::admission::{Admission, AdmissionRefusal};
use super::agent_listener::ACCEPT_RETRY_DELAY;
use super::bounds::Bound;
use super::proxy_header::{self, Begin, Proxied};
use super::session::{SessionRelay, Visited};
use super::udp::{Flows, UdpPort};
use super::{Shared, lock};

pub(crate) struct Tunnel {
    run: Arc<Mutex<Arc<SessionRelay>>>,
    pub access: Arc<Admission>,
    /// `None` until the tunnel's first UDP port is opened.
    pub flows: Option<Arc<Flows>>,
    ports: Vec<Port>,
}

/// An open port.
struct Port {
    spec: PortSpec,
    listening: JoinHandle<()>,
    stop: CancellationToken,
}

/// The result of [`Tunnel::switch_to`].
pub(crate) enum EpochChange {
    /// A newer epoch is served already.
    Outdated,
    Serving {
        former: Option<Arc<SessionRelay>>,
    },
}

/// A port that should be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortSpec {
    pub port: u16,
    pub transport: Transport,
    pub id: Option<Uuid>,
}

impl PortSpec {
    /// The ports of an assignment.
    pub(crate) fn of(assignment: &Assignment) -> Vec<Self> {
        let ports = assignment.ports.iter();
        ports.map(|port| Self { port: port.port, transport: port.transport, id: port.port_id }).collect()
    }
}

/// A port that is bound.
pub(crate) enum BoundPort {
    Tcp(TcpListener),
    Udp(UdpPort),
}

impl Tunnel {
    pub(crate) fn new(assignment: &Assignment, access: Arc<Admission>, shared: &Shared) -> Self {
        let run = SessionRelay::new(assignment.clone(), shared);
        Self { run: Arc::new(Mutex::new(run)), access, flows: None, ports: Vec::new() }
    }

    pub(crate) fn run(&self) -> Arc<SessionRelay> {
        lock(&self.run).clone()
    }

    /// Takes over an assignment of this tunnel. If it has a newer epoch, the former run ends at once: everything
    /// older than the newest epoch is fenced off.
    pub(crate) fn switch_to(&self, assignment: &Assignment, shared: &Arc<Shared>) -> EpochChange {
        let mut run = lock(&self.run);
        match assignment.epoch.cmp(&run.epoch()) {
            Ordering::Less => EpochChange::Outdated,
            Ordering::Equal => {
                run.follow(assignment);
                EpochChange::Serving { former: None }
            }
            Ordering::Greater => {
                let former = std::mem::replace(&mut *run, SessionRelay::new(assignment.clone(), shared));
                former.end();
                self.flows.iter().for_each(|flows| flows.end_run());
                EpochChange::Serving { former: Some(former) }
            }
        }
    }

    /// Applies the rules again, after the country database has changed.
    pub(crate) fn reevaluate(&self) {
        self.access.reevaluate();
        self.flows.iter().for_each(|flows| flows.reevaluate());
    }

    /// The wanted ports that are not open yet.
    pub(crate) fn ports_to_open(&self, wanted: &[PortSpec]) -> Vec<PortSpec> {
        let is_open = |wanted: &PortSpec| self.ports.iter().any(|port| port.spec == *wanted);
        wanted.iter().filter(|wanted| !is_open(wanted)).copied().collect()
    }

    /// Starts to accept visitors on a port.
    pub(crate) fn listen(&mut self, wanted: PortSpec, bound: BoundPort, shared: Arc<Shared>) {
        let stop = CancellationToken::new();
        let (run, tasks) = (self.run.clone(), shared.tasks.clone());
        let listening = match bound {
            BoundPort::Tcp(listener) => {
                let access = self.access.clone();
                let listening = PublicListener { port_id: wanted.id, run, access, stop: stop.clone(), shared };
                let listening = Arc::new(listening);
                tasks.spawn(async move {
                    listening.listen(&listener).with_cancellation_token(&listening.stop).await;
                })
            }
            BoundPort::Udp(port) => {
                let flows = self.flows.get_or_insert_with(|| Flows::new(self.access.clone(), &shared)).clone();
                let stop = stop.clone();
                tasks.spawn(async move { port.listen(run, flows, stop, &shared).await })
            }
        };
        // Most tunnels have one port, and a vector makes room for four.
        self.ports.reserve_exact(1);
        self.ports.push(Port { spec: wanted, listening, stop });
    }

    /// Removes the ports that are no longer wanted. [`ClosingPorts::close`] closes them.
    pub(crate) fn ports_to_close(&mut self, wanted: &[PortSpec]) -> ClosingPorts {
        ClosingPorts(self.ports.extract_if(.., |port| !wanted.contains(&port.spec)).collect())
    }

    /// Ends the run and closes the ports. When this returns, other tunnels can bind them.
    pub(crate) async fn close(mut self) -> Arc<SessionRelay> {
        let run = self.run();
        run.end();
        self.flows.iter().for_each(|flows| flows.close());
        self.ports_to_close(&[]).close().await;
        run
    }
}

/// Ports that are no longer wanted, with their visitors.
#[must_use]
pub(crate) struct ClosingPorts(Vec<Port>);

impl ClosingPorts {
    /// Closes the ports and disconnects their visitors. When this returns, other tunnels can bind the ports.
    pub(crate) async fn close(self) {
        for Port { listening, stop, .. } in self.0 {
            stop.cancel();
            if let Err(error) = listening.await {
                tracing::warn!(%error, "the listener of a port has ended badly");
            }
        }
    }
}

/// Binds a public port.
pub(crate) async fn open(wanted: PortSpec, shared: &Shared) -> io::Result<BoundPort> {
    let address = SocketAddr::new(shared.bind, wanted.port);
    match wanted.transport {
        Transport::Tcp => TcpListener::bind(address).await.map(BoundPort::Tcp),
        Transport::Udp => UdpPort::bind(address, wanted.id).map(BoundPort::Udp),
    }
}

/// The listener for the visitors of one TCP port.
struct PublicListener {
    /// `None` for the tunnel's own port.
    port_id: Option<Uuid>,
    run: Arc<Mutex<Arc<SessionRelay>>>,
    access: Arc<Admission>,
    /// Cancelled when the port closes. Its visitors are then disconnected.
    stop: CancellationToken,
    shared: Arc<Shared>,
}

impl PublicListener {
    async fn listen(self: &Arc<Self>, listener: &TcpListener) {
        let shared = &self.shared;
        loop {
            // Meanwhile, new visitors wait in the listener's backlog.
            while shared.bounds.is_short_of_descriptors(listener) {
                self.wait_to_accept().await;
            }
            // `accept` would keep more for each port that waits for a visitor.
            match poll_fn(|context| listener.poll_accept(context)).await {
                // `accept` may have waited long, and free descriptors may have run short meanwhile.
                Ok((visitor, _)) if shared.bounds.is_in_reserve(&visitor) => {
                    culvert_wire::socket::reset(&visitor);
                    shared.bounds.refused(Bound::Node);
                }
                Ok((visitor, address)) if is_trusted(address.ip(), &shared.trusted_proxies) => {
                    tokio::spawn(self.clone().relay_proxied(visitor, address));
                }
                Ok((visitor, address)) => match visitor.local_addr() {
                    Ok(local) => self.relay_visitor(visitor, Proxied { visitor: address, local }),
                    Err(error) => tracing::debug!(%error, %address, "a visitor has gone"),
                },
                Err(error) => {
                    shared.log_unaccepted(&error);
                    self.wait_to_accept().await;
                }
            }
        }
    }

    /// Waits after a port could not accept, in a box that is there meanwhile.
    fn wait_to_accept(&self) -> Pin<Box<impl Future<Output = ()>>> {
        Box::pin(self.shared.clock.sleep(ACCEPT_RETRY_DELAY))
    }

    /// Relays a visitor whom a trusted proxy brings. It must say who that is.
    async fn relay_proxied(self: Arc<Self>, mut stream: TcpStream, proxy: SocketAddr) {
        let read = proxy_header::read(&mut stream, &self.shared.clock).with_cancellation_token(&self.stop).await;
        let came = match read {
            Some(Ok(Begin::Header(proxied))) => proxied,
            // A proxy that looks whether the port is open is a visitor itself.
            Some(Ok(Begin::Anonymous)) => match stream.local_addr() {
                Ok(local) => Proxied { visitor: proxy, local },
                Err(_) => return,
            },
            other => {
                tracing::debug!(?other, %proxy, "a trusted proxy did not say who its visitor is");
                return culvert_wire::socket::reset(&stream);
            }
        };
        self.relay_visitor(stream, came);
    }

    fn relay_visitor(&self, visitor: TcpStream, came: Proxied) {
        let address = came.visitor;
        match self.access.enter(address.ip(), &self.stop) {
            Ok(inside) => {
                let run = lock(&self.run).clone();
                let visited = Visited {
                    port_id: self.port_id,
                    visitor: address,
                    local: came.local,
                    kind: VisitKind::Tcp,
                    name: None,
                    alpn: None,
                };
                run.relay_visitor(visitor, visited, inside, None);
            }
            Err(turned_away) => {
                culvert_wire::socket::reset(&visitor);
                if let AdmissionRefusal::Bound(bound) = turned_away {
                    self.shared.bounds.refused(bound);
                }
                tracing::debug!(%address, ?turned_away, "a visitor was turned away");
            }
        }
    }
}
