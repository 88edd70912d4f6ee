//! The visitors of UDP ports: each is a flow, with a socket of its own towards the local service. So the service sees one
//! port for each visitor, and its answers find their way back.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use culvert_wire::clock::{Clock, Moment};
use culvert_wire::control::Failure;
use culvert_wire::data2::close_limit::CloseLimit;
use culvert_wire::data2::datagram::{CloseReason, Datagram, MOST_PAYLOAD, Open};
use culvert_wire::data2::lane::{Dropped, Lane, Lanes, Receiver, TlsLane};
use culvert_wire::data2::parts::Parts;
use culvert_wire::failure_code::FailureCode;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, watch};
use tokio_util::future::FutureExt;

use super::served::Served;
use super::visit::VisitContext;
use crate::proxy_header::FlowHeader;

/// Datagrams that wait while a flow's socket is being opened.
const MOST_WAITING: usize = 32;
/// How much longer than the node the agent waits for a silent flow: the node says when it ends.
const LONGER: Duration = Duration::from_secs(30);
/// Most flows of a node.
const MOST_FLOWS: usize = 100_000;

thread_local! {
    static SPACE: RefCell<Vec<u8>> = RefCell::new(vec![0; MOST_PAYLOAD]);
}

/// The flows of one node's connections.
pub(super) struct Flows {
    visits: Arc<VisitContext>,
    table: Mutex<HashMap<u64, Arc<Flow>>>,
    lanes: watch::Sender<Lanes>,
    closes: CloseLimit,
}

struct Flow {
    served: Served,
    state: Mutex<State>,
    /// When something has last moved, in milliseconds after the flow began.
    begun: Moment,
    last: AtomicU64,
    /// The node has ended the flow.
    closed: Notify,
    /// A datagram was refused, which showed with the next one.
    refused: Notify,
}

#[derive(Default)]
struct State {
    /// `None` while it is being opened.
    socket: Option<Arc<UdpSocket>>,
    waiting: Vec<Bytes>,
    parts: Parts,
    header: FlowHeader,
}

impl Flows {
    pub(super) fn new(visits: Arc<VisitContext>) -> Arc<Self> {
        let closes = CloseLimit::new(visits.clock.clone());
        Arc::new(Self { visits, table: Mutex::default(), lanes: watch::Sender::default(), closes })
    }

    fn clock(&self) -> &Clock {
        &self.visits.clock
    }

    /// What takes the datagrams of the node.
    pub(super) fn receiver(self: &Arc<Self>) -> FlowReceiver {
        FlowReceiver(Arc::downgrade(self))
    }

    /// Sends by QUIC until the result is dropped.
    pub(super) fn use_quic(self: &Arc<Self>, lane: Lane) -> UsedLane {
        self.lanes.send_modify(|lanes| lanes.quic = Some(lane));
        UsedLane { flows: self.clone(), tls: None }
    }

    /// Sends on a TLS connection where there is no QUIC, until the result is dropped.
    pub(super) fn use_tls(self: &Arc<Self>, lane: &Arc<TlsLane>) -> UsedLane {
        self.lanes.send_modify(|lanes| lanes.tls.push(lane.clone()));
        UsedLane { flows: self.clone(), tls: Some(lane.clone()) }
    }

    /// Waits until something carries datagrams to the node.
    pub(super) fn carried(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut lanes = self.lanes.subscribe();
        async move {
            // It fails only where the connections to the node have ended, and then nobody waits.
            let _ = lanes.wait_for(|lanes| !lanes.is_empty()).await;
        }
    }

    fn send(&self, datagram: Datagram) -> Result<(), Dropped> {
        let lane = self.lanes.borrow().find(datagram.flow()).ok_or(Dropped::NoConnection)?;
        lane.send(datagram)
    }

    fn find(&self, number: u64) -> Option<Arc<Flow>> {
        lock(&self.table).get(&number).cloned()
    }

    fn open(self: &Arc<Self>, mut open: Open) {
        let (number, payload) = (open.flow, open.payload.take());
        let close = |reason| {
            let _ = self.send(Datagram::Close { flow: number, reason });
        };
        if let Some(flow) = self.find(number) {
            // The node has not heard yet that the flow is open.
            if flow.pass(payload, self.clock()) {
                let _ = self.send(Datagram::Opened { flow: number });
            }
            return;
        }
        let Some(served) = self.visits.served.find(open.tunnel_id, open.epoch) else {
            return close(CloseReason::Fenced);
        };
        let mut table = lock(&self.table);
        if table.len() >= MOST_FLOWS {
            drop(table);
            return close(CloseReason::Bounds);
        }
        let header = FlowHeader::of(served.target.target().proxy_protocol, &open);
        let state = State { waiting: payload.into_iter().collect(), header, ..State::default() };
        let begun = self.clock().moment();
        let flow = Arc::new(Flow {
            served,
            state: Mutex::new(state),
            begun,
            last: AtomicU64::new(0),
            closed: Notify::new(),
            refused: Notify::new(),
        });
        table.insert(number, flow.clone());
        drop(table);
        let flows = self.clone();
        tokio::spawn(async move {
            let stop = flow.served.stop.clone();
            let reason = flows.serve(number, &flow, open).with_cancellation_token(&stop).await;
            lock(&flows.table).remove(&number);
            if let Some(Some(reason)) = reason {
                let _ = flows.send(Datagram::Close { flow: number, reason });
            }
        });
    }

    /// Serves a flow until it ends. Returns the reason if the node does not know it.
    async fn serve(&self, number: u64, flow: &Flow, open: Open) -> Option<CloseReason> {
        let (target, is_own) = (&flow.served.target, open.port_id.is_none());
        let socket = match target.connect_datagrams(open.port_id).await {
            Ok(socket) => Arc::new(socket),
            Err(failure) => {
                tracing::debug!(detail = failure.detail, visitor = %open.visitor, "a flow was refused");
                let reason = refusal(&failure);
                if is_own {
                    target.note(Some(failure)).await;
                }
                return Some(reason);
            }
        };
        let _open = flow.served.traffic.enter();
        flow.begin(socket.clone(), self.clock());
        let _ = self.send(Datagram::Opened { flow: number });
        tokio::select! {
            () = self.pass_answers(number, flow, &socket, is_own) => None,
            () = flow.silence(self.clock()) => Some(CloseReason::Idle),
            () = flow.closed.notified() => None,
        }
    }

    /// Passes what the service says on to the visitor.
    async fn pass_answers(&self, number: u64, flow: &Flow, socket: &UdpSocket, is_own: bool) {
        loop {
            let refused = async {
                flow.refused.notified().await;
                Err(io::ErrorKind::ConnectionRefused.into())
            };
            let received = tokio::select! {
                received = receive(socket) => received,
                refused = refused => refused,
            };
            match received {
                Ok(answer) => {
                    let payload = answer.slice(lock(&flow.state).header.length_in(&answer)..);
                    if is_own && flow.served.target.is_silent() {
                        flow.served.target.note(None).await;
                    }
                    flow.note(self.clock());
                    let length = payload.len() as u64;
                    match self.send(Datagram::Data { flow: number, payload }) {
                        Ok(()) => drop(flow.served.traffic.bytes.back.fetch_add(length, Ordering::Relaxed)),
                        Err(dropped) => flow.served.traffic.drop_datagram(dropped.cause()),
                    }
                }
                // Nobody listens there (ICMP port unreachable). The next datagram may find somebody, who has heard nothing yet.
                Err(error) => {
                    lock(&flow.state).header.note_sent(false);
                    tracing::debug!(%error, "a service does not take datagrams");
                    if is_own {
                        let failure = Failure::new(FailureCode::LocalTargetUnreachable, format!("no answer: {error}"));
                        flow.served.target.note(Some(failure)).await;
                    }
                }
            }
        }
    }
}

/// Waits for a datagram. All flows of a thread share the space for it: a silent flow takes little memory.
async fn receive(socket: &UdpSocket) -> io::Result<Bytes> {
    loop {
        let ready = socket.ready(Interest::READABLE | Interest::ERROR).await?;
        if ready.is_error() {
            let blocks = || io::Error::from(io::ErrorKind::WouldBlock);
            match socket.try_io(Interest::ERROR, || Err(socket.take_error()?.unwrap_or_else(blocks))) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                told => told?,
            }
        }
        let received = SPACE
            .with_borrow_mut(|space| socket.try_recv(space).map(|length| Bytes::copy_from_slice(&space[..length])));
        match received {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            received => return received,
        }
    }
}

fn try_send(socket: &UdpSocket, payload: &[u8], header: &FlowHeader) -> io::Result<usize> {
    match header.bytes() {
        [] => socket.try_send(payload),
        bytes => socket.try_send(&[bytes, payload].concat()),
    }
}

fn refusal(failure: &Failure) -> CloseReason {
    match failure.code {
        FailureCode::AgentRejected | FailureCode::TargetNotAllowed => CloseReason::Refused,
        _ => CloseReason::TargetRefused,
    }
}

impl Flow {
    /// The service is reached by this socket: sends what has waited.
    fn begin(&self, socket: Arc<UdpSocket>, clock: &Clock) {
        let mut state = lock(&self.state);
        for payload in std::mem::take(&mut state.waiting) {
            self.send(&socket, &payload, &mut state.header, clock);
        }
        state.socket = Some(socket);
    }

    /// Passes a visitor's datagram on to the service. Returns whether the flow is open.
    fn pass(&self, payload: Option<Bytes>, clock: &Clock) -> bool {
        let mut state = lock(&self.state);
        let state = &mut *state;
        match (&state.socket, payload) {
            (Some(socket), Some(payload)) => self.send(socket, &payload, &mut state.header, clock),
            (Some(_) | None, None) => {}
            (None, Some(payload)) if state.waiting.len() < MOST_WAITING => state.waiting.push(payload),
            (None, Some(_)) => self.served.traffic.drop_datagram("queue"),
        }
        state.socket.is_some()
    }

    fn send(&self, socket: &UdpSocket, payload: &[u8], header: &mut FlowHeader, clock: &Clock) {
        // The error of an earlier datagram is told here. Then this one was not sent yet.
        let sent = try_send(socket, payload, header).or_else(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                self.refused.notify_one();
                header.note_sent(false);
                try_send(socket, payload, header)
            }
            _ => Err(error),
        });
        match sent {
            Ok(_) => {
                header.note_sent(true);
                self.note(clock);
                self.served.traffic.bytes.forth.fetch_add(payload.len() as u64, Ordering::Relaxed);
            }
            Err(_) => self.served.traffic.drop_datagram("socket"),
        }
    }

    fn take_part(&self, id: u16, is_second: bool, payload: Bytes, clock: &Clock) {
        let (whole, dropped) = lock(&self.state).parts.take(id, is_second, payload, clock.moment());
        (0..dropped).for_each(|_| self.served.traffic.drop_datagram("part"));
        if whole.is_some() {
            self.pass(whole, clock);
        }
    }

    fn note(&self, clock: &Clock) {
        let since = clock.moment().since(self.begun).as_millis();
        self.last.store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Waits until nothing has moved for the idle timeout. The node ends such a flow before, unless its word is lost.
    async fn silence(&self, clock: &Clock) {
        loop {
            let timeout = self.served.target.flow_idle_timeout() + LONGER;
            let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            let end = self.begun.plus(last).plus(timeout);
            if clock.moment() >= end {
                return;
            }
            clock.until(end).await;
        }
    }
}

/// A lane that is used until this is dropped.
pub(super) struct UsedLane {
    flows: Arc<Flows>,
    /// `None` for the one of QUIC.
    tls: Option<Arc<TlsLane>>,
}

impl Drop for UsedLane {
    fn drop(&mut self) {
        self.flows.lanes.send_modify(|lanes| match &self.tls {
            Some(lane) => lanes.remove_tls(lane),
            None => lanes.quic = None,
        });
    }
}

/// Takes the datagrams of a node.
#[derive(Clone)]
pub(super) struct FlowReceiver(Weak<Flows>);

impl Receiver for FlowReceiver {
    fn take(&self, datagram: Datagram) {
        let Some(flows) = self.0.upgrade() else { return };
        let number = datagram.flow();
        let known = flows.find(number);
        match (datagram, known) {
            (Datagram::Open(open), _) => flows.open(open),
            (Datagram::Data { payload, .. }, Some(flow)) => drop(flow.pass(Some(payload), flows.clock())),
            (Datagram::Part { id, is_second, payload, .. }, Some(flow)) => {
                flow.take_part(id, is_second, payload, flows.clock());
            }
            (Datagram::Close { .. }, Some(flow)) => flow.closed.notify_one(),
            (Datagram::Data { .. } | Datagram::Part { .. }, None) if flows.closes.allows(number) => {
                // The node opens it again with the visitor's next datagram.
                let _ = flows.send(Datagram::Close { flow: number, reason: CloseReason::Idle });
            }
            _ => {}
        }
    }

    fn dropped(&self, why: Dropped) {
        tracing::debug!(cause = why.cause(), "a datagram was dropped");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
