//! One visitor of a public UDP port.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use culvert_wire::clock::{Clock, Moment};
use culvert_wire::data2::datagram::{CloseReason, Datagram, Open};
use culvert_wire::data2::parts::Parts;
use culvert_wire::node::Counted;
use uuid::Uuid;

use super::bounds::UnprovenAnswers;
use super::socket::PublicSocket;
use crate::admission::AdmittedVisitor;
use crate::carriers::{FlowEnd, Pool};
use crate::lock;
use crate::session::{ActiveRun, SessionRelay, Work};

/// A visitor is proven after so many datagrams over at least this time: then somebody waits for the answers there.
const PROVEN_AFTER: (u64, Duration) = (3, Duration::from_secs(1));
/// Bytes that an unproven visitor may be answered with, for each byte of its own.
const MOST_AMPLIFIED: u64 = 8;

pub(crate) struct Flow {
    /// Its number among all flows of the agent's process.
    pub number: u64,
    pub visitor: SocketAddr,
    /// The public address that the visitor sends to.
    local: SocketAddr,
    port_id: Option<Uuid>,
    state: Mutex<State>,
}

struct State {
    /// `None` when the flow has ended. Nothing is passed on any more then, and nothing counted.
    live: Option<Live>,
    /// Whether the agent knows the flow.
    is_opened: bool,
    born: Moment,
    last: Moment,
    received: u64,
    received_bytes: u64,
    answered_bytes: u64,
    parts: Parts,
}

/// What a flow needs while it lasts.
pub(super) struct Live {
    pub socket: Arc<PublicSocket>,
    pub run: ActiveRun,
    pub pool: Arc<Pool<Work>>,
    pub admission: AdmittedVisitor,
    pub clock: Clock,
    pub unproven: Arc<UnprovenAnswers>,
}

impl Flow {
    pub(super) fn begin(visitor: SocketAddr, local: SocketAddr, port_id: Option<Uuid>, live: Live) -> Arc<Self> {
        let (pool, now) = (live.pool.clone(), live.clock.moment());
        let state = State {
            live: Some(live),
            is_opened: false,
            born: now,
            last: now,
            received: 0,
            received_bytes: 0,
            answered_bytes: 0,
            parts: Parts::default(),
        };
        pool.flows().add(|number| Self { number, visitor, local, port_id, state: Mutex::new(state) })
    }

    /// Passes a visitor's datagram on to the agent. Returns how many of the visitor there were, or `None` if the flow
    /// has ended.
    pub(super) fn pass(&self, payload: &[u8], now: Moment) -> Option<u64> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let live = state.live.as_ref().filter(|live| !live.admission.out.is_cancelled())?;
        (state.last, state.received) = (now, state.received + 1);
        state.received_bytes += payload.len() as u64;
        let (flow, run, bytes) = (self.number, live.run.relay(), payload.len());
        let payload = Bytes::copy_from_slice(payload);
        let datagram = if state.is_opened { Datagram::Data { flow, payload } } else { self.open(run, payload) };
        match live.pool.send(flow, datagram) {
            Ok(()) => {
                run.counters().forth.fetch_add(bytes as u64, Ordering::Relaxed);
                run.counts().datagrams_in.enter();
            }
            Err(dropped) => run.counts().count(Counted::DroppedDatagrams, dropped.cause()),
        }
        Some(state.received)
    }

    fn open(&self, run: &SessionRelay, payload: Bytes) -> Datagram {
        Datagram::Open(Open {
            flow: self.number,
            tunnel_id: run.tunnel_id(),
            epoch: run.epoch(),
            port_id: self.port_id,
            visitor: self.visitor,
            local: self.local,
            payload: Some(payload),
        })
    }

    /// Passes the agent's datagram on to the visitor.
    fn answer(&self, payload: &[u8]) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let Some(live) = state.live.as_ref().filter(|live| !live.admission.out.is_cancelled()) else { return };
        let (run, bytes, now) = (live.run.relay(), payload.len() as u64, live.clock.moment());
        let (number, over) = PROVEN_AFTER;
        let is_proven = state.received >= number && now.since(state.born) >= over;
        if !is_proven {
            let is_allowed = state.answered_bytes + bytes <= state.received_bytes.saturating_mul(MOST_AMPLIFIED);
            if !is_allowed || !live.unproven.take(self.visitor.ip(), payload.len(), now) {
                return run.counts().count(Counted::DroppedDatagrams, "unproven");
            }
            state.answered_bytes += bytes;
        }
        match live.socket.send(self.visitor, Some(self.local.ip()), payload) {
            Ok(()) => {
                state.last = now;
                run.counters().back.fetch_add(bytes, Ordering::Relaxed);
                run.counts().datagrams_out.enter();
            }
            Err(error) => {
                tracing::debug!(%error, visitor = %self.visitor, "a datagram was not taken");
                run.counts().count(Counted::DroppedDatagrams, "socket");
            }
        }
    }

    /// Takes a part of an agent's datagram. Returns the datagram if it is complete.
    fn join(&self, id: u16, is_second: bool, payload: Bytes) -> Option<Bytes> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let live = state.live.as_ref()?;
        let (whole, dropped) = state.parts.take(id, is_second, payload, live.clock.moment());
        (0..dropped).for_each(|_| live.run.relay().counts().count(Counted::DroppedDatagrams, "part"));
        whole
    }

    /// When the flow has been silent for too long, if nothing moves until then; `None` if it has ended.
    pub(super) fn silent_at(&self) -> Option<Moment> {
        let state = lock(&self.state);
        state.live.as_ref().map(|live| state.last.plus(live.run.relay().flow_silence_limit()))
    }

    /// Whether the rules deny the visitor now.
    pub(super) fn is_denied(&self) -> bool {
        lock(&self.state).live.as_ref().is_some_and(|live| live.admission.out.is_cancelled())
    }

    /// Ends the flow. When this returns, nothing more is passed on or counted. The agent is told.
    pub(super) fn end(&self, reason: CloseReason) {
        let ended = lock(&self.state).live.take();
        if let Some(live) = ended {
            live.pool.flows().remove(self.number);
            // Where it is lost, the agent's side ends when it is idle.
            let _ = live.pool.send(self.number, Datagram::Close { flow: self.number, reason });
        }
    }
}

impl FlowEnd for Flow {
    fn take(&self, datagram: Datagram) {
        match datagram {
            Datagram::Data { payload, .. } => self.answer(&payload),
            Datagram::Part { id, is_second, payload, .. } => {
                if let Some(whole) = self.join(id, is_second, payload) {
                    self.answer(&whole);
                }
            }
            Datagram::Opened { .. } => lock(&self.state).is_opened = true,
            Datagram::Close { reason, .. } => {
                tracing::debug!(?reason, visitor = %self.visitor, "the agent has ended a flow");
                self.end(reason);
            }
            // Flows are the node's to open.
            Datagram::Open(_) => {}
        }
    }
}
