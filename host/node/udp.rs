//! Public UDP ports. The datagrams of one visitor are a flow; the agent passes them on from a socket of the flow's own.

mod bounds;
mod flow;
mod socket;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use culvert_wire::clock::{Clock, Moment};
use culvert_wire::data2::datagram::{CloseReason, MOST_PAYLOAD};
use culvert_wire::node::Counted;
use tokio_util::future::FutureExt;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) use bounds::UnprovenAnswers;
use bounds::{Rate, RefusedAddresses};
use flow::{Flow, Live};
use socket::{PublicSocket, Received};

use super::admission::{Admission, AdmissionRefusal, AdmittedVisitor};
use super::agent_listener::ACCEPT_RETRY_DELAY;
use super::bounds::Bound;
use super::session::{ActiveRun, SessionRelay, VisitorKind};
use super::{Shared, lock};

/// An open UDP port of a tunnel.
pub(crate) struct UdpPort {
    number: u16,
    /// `None` for the tunnel's own port.
    id: Option<Uuid>,
    socket: Arc<PublicSocket>,
}

impl UdpPort {
    /// # Errors
    ///
    /// Where the port cannot be bound.
    pub(crate) fn bind(address: SocketAddr, id: Option<Uuid>) -> io::Result<Self> {
        Ok(Self { number: address.port(), id, socket: Arc::new(PublicSocket::bind(address)?) })
    }

    /// Passes datagrams on until `stop` is cancelled. When this returns, other tunnels can bind the port.
    pub(crate) async fn listen(
        self,
        run: Arc<Mutex<Arc<SessionRelay>>>,
        flows: Arc<Flows>,
        stop: CancellationToken,
        shared: &Shared,
    ) {
        let listening = async {
            loop {
                let received = self.socket.receive(|received| {
                    let run = lock(&run).clone();
                    flows.pass(&self, &run, &received, shared);
                });
                let received = received.await;
                if let Err(error) = received {
                    shared.log_unaccepted(&error);
                    shared.clock.sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        };
        listening.with_cancellation_token(&stop).await;
        flows.end_port(self.number);
    }
}

/// The flows of one tunnel.
pub(crate) struct Flows {
    access: Arc<Admission>,
    unproven: Arc<UnprovenAnswers>,
    table: Mutex<Table>,
    ended: CancellationToken,
}

/// A public port, and who sends to it.
type Key = (u16, SocketAddr);

struct Table {
    by_visitor: HashMap<Key, Arc<Flow>>,
    /// Flows with a single datagram, by number. Whoever forges addresses makes such ones: they go first when there are too
    /// many.
    young: BTreeMap<u64, Key>,
    /// When to look whether a flow is silent, by number.
    looks: BTreeSet<(Moment, u64, Key)>,
    /// Whether a task ends the silent flows.
    is_watched: bool,
    births: Rate,
    refused: RefusedAddresses,
}

/// Why a new visitor's datagram is not passed on, as in metrics.
type Cause = &'static str;

impl Flows {
    pub(crate) fn new(access: Arc<Admission>, shared: &Shared) -> Arc<Self> {
        let table = Table {
            by_visitor: HashMap::new(),
            young: BTreeMap::new(),
            looks: BTreeSet::new(),
            is_watched: false,
            births: Rate::new(shared.bounds.new_flows_per_second),
            refused: RefusedAddresses::new(),
        };
        let unproven = shared.unproven_answers.clone();
        Arc::new(Self { access, unproven, table: Mutex::new(table), ended: shared.stop.child_token() })
    }

    /// Passes a visitor's datagram on, in the visitor's flow or in a new one.
    fn pass(self: &Arc<Self>, port: &UdpPort, run: &Arc<SessionRelay>, received: &Received<'_>, shared: &Shared) {
        // Agents take no such datagrams. Nobody can be answered at port 0 (RFC 768), and IPv6 has longer ones.
        if received.from.port() == 0 || received.payload.len() > MOST_PAYLOAD {
            return run.counts().count(Counted::DroppedDatagrams, "malformed");
        }
        let (key, now) = ((port.number, received.from), shared.clock.moment());
        let known = lock(&self.table).by_visitor.get(&key).cloned();
        if let Some(flow) = known {
            if let Some(received) = flow.pass(received.payload, now) {
                if received == 2 {
                    lock(&self.table).young.remove(&flow.number);
                }
                return;
            }
            lock(&self.table).remove(&key);
            flow.end(CloseReason::Refused);
        }
        match self.begin(port, run, received, &shared.clock) {
            Ok(flow) => drop(flow.pass(received.payload, now)),
            Err(cause) => run.counts().count(Counted::DroppedDatagrams, cause),
        }
    }

    /// Begins a flow, if the visitor may come.
    fn begin(
        self: &Arc<Self>,
        port: &UdpPort,
        run: &Arc<SessionRelay>,
        received: &Received<'_>,
        clock: &Clock,
    ) -> Result<Arc<Flow>, Cause> {
        let pool = run.pool().ok_or("no_connection")?;
        let (visitor, now) = (received.from, clock.moment());
        let mut table = lock(&self.table);
        if table.refused.contains(visitor.ip(), now) {
            return Err("rules");
        }
        if !table.births.take(1, now) {
            return Err("bounds");
        }
        let admission = self.admit(&mut table, visitor, now)?;
        let local = SocketAddr::new(received.to.unwrap_or(visitor.ip()), port.number);
        let live = Live {
            socket: port.socket.clone(),
            run: ActiveRun::new(run.clone(), VisitorKind::Udp),
            pool,
            admission,
            clock: clock.clone(),
            unproven: self.unproven.clone(),
        };
        let flow = Flow::begin(visitor, local, port.id, live);
        let key = (port.number, visitor);
        table.looks.insert((now.plus(run.flow_silence_limit()), flow.number, key));
        table.young.insert(flow.number, key);
        table.by_visitor.insert(key, flow.clone());
        if !std::mem::replace(&mut table.is_watched, true) {
            tokio::spawn(self.clone().end_silent(clock.clone()));
        }
        Ok(flow)
    }

    /// Admits a new visitor. Where there are too many, the oldest flow with a single datagram goes first.
    fn admit(&self, table: &mut Table, visitor: SocketAddr, now: Moment) -> Result<AdmittedVisitor, Cause> {
        match self.access.enter_flow(visitor.ip()) {
            Err(AdmissionRefusal::Bound(Bound::Tunnel | Bound::Node)) => {
                let (_, oldest) = table.young.pop_first().ok_or("bounds")?;
                if let Some(flow) = table.remove(&oldest) {
                    flow.end(CloseReason::Bounds);
                }
                self.access.enter_flow(visitor.ip()).map_err(|_| "bounds")
            }
            Err(AdmissionRefusal::Bound(_)) => Err("bounds"),
            Err(AdmissionRefusal::Rules) => {
                table.refused.add(visitor.ip(), now);
                Err("rules")
            }
            Ok(admitted) => Ok(admitted),
        }
    }

    /// The rules have changed: ends the flows that they deny, and forgets whom the former ones have refused.
    pub(crate) fn reevaluate(&self) {
        let denied = {
            let mut table = lock(&self.table);
            table.refused.clear();
            table.take_all(|_, flow| flow.is_denied())
        };
        denied.iter().for_each(|flow| flow.end(CloseReason::Refused));
    }

    /// Ends the flows of a port.
    fn end_port(&self, number: u16) {
        let ended = lock(&self.table).take_all(|(port, _), _| *port == number);
        ended.iter().for_each(|flow| flow.end(CloseReason::UnknownPort));
    }

    /// Ends all flows: the run that they belong to has ended.
    pub(crate) fn end_run(&self) {
        let ended = lock(&self.table).take_all(|_, _| true);
        ended.iter().for_each(|flow| flow.end(CloseReason::Fenced));
    }

    /// Ends all flows for good.
    pub(crate) fn close(&self) {
        self.end_run();
        self.ended.cancel();
    }

    /// Ends flows that have been silent for too long, as long as there are flows.
    async fn end_silent(self: Arc<Self>, clock: Clock) {
        while let Some(next) = self.look(clock.moment()) {
            if clock.until(next).with_cancellation_token(&self.ended).await.is_none() {
                return;
            }
        }
    }

    /// Ends the flows that are silent now. Returns when to look again; `None` if there are no flows.
    fn look(&self, now: Moment) -> Option<Moment> {
        let mut silent = Vec::new();
        let next = {
            let mut table = lock(&self.table);
            while let Some(first) = table.looks.first().filter(|(at, ..)| *at <= now).copied() {
                table.looks.remove(&first);
                let (_, number, key) = first;
                let Some(flow) = table.by_visitor.get(&key).filter(|flow| flow.number == number) else { continue };
                match flow.silent_at().filter(|at| *at > now) {
                    Some(at) => drop(table.looks.insert((at, number, key))),
                    None => silent.extend(table.remove(&key)),
                }
            }
            let next = table.looks.first().map(|(at, ..)| *at);
            table.is_watched = next.is_some();
            next
        };
        silent.iter().for_each(|flow| flow.end(CloseReason::Idle));
        next
    }
}

impl Table {
    fn remove(&mut self, key: &Key) -> Option<Arc<Flow>> {
        let flow = self.by_visitor.remove(key)?;
        self.young.remove(&flow.number);
        Some(flow)
    }

    fn take_all(&mut self, which: impl Fn(&Key, &Flow) -> bool) -> Vec<Arc<Flow>> {
        let keys: Vec<Key> =
            self.by_visitor.iter().filter(|(key, flow)| which(key, flow)).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }
}
