//! The leases that this device holds, and when they expire.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use uuid::Uuid;

use crate::approved_targets::Chosen;
use crate::carrier::{Connections, QuicState, TransportChoice};
use crate::ipc::{NodeStatus, TunnelStatus};
use crate::tunnel::{Probe, Running, TunnelContext};
use culvert_wire::clock::Moment;
use culvert_wire::control::{Grant, NodeAddress};
use culvert_wire::device_token::DeviceToken;
use culvert_wire::target::Target;

pub(super) struct Leases {
    cx: TunnelContext,
    /// How long a lease holds, counted from when its renewal was sent.
    term: Duration,
    held: HashMap<Uuid, Held>,
    /// Renewals without an answer so far, with the time when they were sent.
    renewals: VecDeque<(u64, Moment)>,
    sequence: u64,
}

struct Held {
    running: Running,
    until: Moment,
    serving: bool,
    /// The target that is being looked up, before the tunnel is led there.
    looking_up: Option<Target>,
    /// The target that was refused for the tunnel.
    refused: Option<Target>,
}

impl Leases {
    pub(super) fn new(cx: TunnelContext) -> Self {
        Self { cx, term: Duration::ZERO, held: HashMap::new(), renewals: VecDeque::new(), sequence: 0 }
    }

    pub(super) fn set_term(&mut self, term: Duration) {
        self.term = term;
    }

    pub(super) fn ids(&self) -> Vec<Uuid> {
        self.held.keys().copied().collect()
    }

    /// Runs a tunnel under a new lease. Its first term counts from `since`: when the agent sent the frame
    /// that the host answered with the grant, and so before the host wrote the lease.
    ///
    /// # Errors
    ///
    /// If TLS 1.3 is not available.
    pub(super) fn begin(&mut self, grant: Grant, chosen: Chosen, probe: Probe, since: Moment) -> io::Result<()> {
        let until = since.plus(self.term);
        let lease_id = grant.lease_id;
        let running = Running::start(grant, chosen, probe, self.cx.clone()).map_err(io::Error::other)?;
        self.held.insert(lease_id, Held { running, until, serving: false, looking_up: None, refused: None });
        Ok(())
    }

    /// Stops the tunnel that runs under a lease.
    pub(super) fn end(&mut self, lease_id: Uuid) -> Option<Grant> {
        self.held.remove(&lease_id).map(|held| held.running.into_grant())
    }

    /// The tunnel that runs under a lease.
    pub(super) fn tunnel(&self, lease_id: Uuid) -> Option<Uuid> {
        self.held.get(&lease_id).map(|held| held.running.grant.tunnel_id)
    }

    /// The target of a lease's tunnel, and who chose it.
    pub(super) fn led(&self, lease_id: Uuid) -> Option<(Target, Chosen)> {
        self.held.get(&lease_id).map(|held| (held.running.target(), held.running.chosen()))
    }

    /// Takes new device tokens: those before expire, or the host has new keys.
    pub(super) fn renew_tokens(&self, tokens: Vec<DeviceToken>) {
        self.cx.carriers.renew_tokens(tokens);
    }

    pub(super) fn holds(&self, lease_id: Uuid) -> bool {
        self.held.contains_key(&lease_id)
    }

    /// The lease under which a tunnel runs.
    pub(super) fn of_tunnel(&self, tunnel_id: Uuid) -> Option<Uuid> {
        let held = self.held.values().find(|held| held.running.grant.tunnel_id == tunnel_id);
        held.map(|held| held.running.grant.lease_id)
    }

    /// All running tunnels, as pairs of lease id and tunnel id.
    pub(super) fn tunnels(&self) -> Vec<(Uuid, Uuid)> {
        self.held.values().map(|held| (held.running.grant.lease_id, held.running.grant.tunnel_id)).collect()
    }

    /// The lease of a tunnel, by the tunnel's id, or by its name if only one has it.
    pub(super) fn find(&self, tunnel: &str) -> Option<Uuid> {
        let by_id = self.held.values().find(|held| held.running.grant.tunnel_id.to_string() == tunnel);
        let mut by_name = self.held.values().filter(|held| held.running.grant.name == tunnel);
        let found = by_id.or_else(|| by_name.next().filter(|_| by_name.next().is_none()));
        found.map(|held| held.running.grant.lease_id)
    }

    pub(super) fn status(&self, lease_id: Uuid) -> Option<TunnelStatus> {
        let running = &self.held.get(&lease_id)?.running;
        let Target { host, port, tls, proxy_protocol, .. } = running.target();
        let traffic = running.traffic();
        Some(TunnelStatus {
            tunnel_id: running.grant.tunnel_id,
            name: running.grant.name.clone(),
            public_address: running.grant.public_address.clone(),
            local_target: format!("{host}:{port}"),
            local_tls: tls,
            proxy_protocol,
            target_error: running.target_error(),
            visitors: traffic.visitors(),
            bytes_in: traffic.bytes.forth.load(Ordering::Relaxed),
            bytes_out: traffic.bytes.back.load(Ordering::Relaxed),
            dropped_datagrams: traffic.dropped(),
        })
    }

    pub(super) fn retarget(&mut self, lease_id: Uuid, target: Target, chosen: Chosen) {
        if let Some(held) = self.held.get_mut(&lease_id) {
            (held.looking_up, held.refused) = (None, None);
            held.running.retarget(target, chosen);
        }
    }

    /// Refuses a new target. The tunnel keeps its target and reports why.
    pub(super) fn refuse(&mut self, lease_id: Uuid, target: Target, detail: String) {
        if let Some(held) = self.held.get_mut(&lease_id) {
            (held.looking_up, held.refused) = (None, Some(target));
            held.running.refuse(detail);
        }
    }

    /// Looks up a target. Only the result of the latest lookup counts.
    pub(super) fn look_up(&mut self, lease_id: Uuid, target: Target) {
        if let Some(held) = self.held.get_mut(&lease_id) {
            held.looking_up = Some(target.clone());
            held.running.look_up(target);
        }
    }

    /// Whether this target is that of the latest lookup. If so, the lookup is completed.
    pub(super) fn has_looked_up(&mut self, lease_id: Uuid, target: &Target) -> bool {
        let held = self.held.get_mut(&lease_id);
        held.is_some_and(|held| held.looking_up.take_if(|waited| *waited == *target).is_some())
    }

    /// The refused targets, by lease.
    pub(super) fn refused(&self) -> Vec<(Uuid, Target)> {
        self.held.iter().filter_map(|(id, held)| held.refused.clone().map(|target| (*id, target))).collect()
    }

    /// What is wrong with the target of a lease's tunnel.
    pub(super) fn target_error(&self, lease_id: Uuid) -> Option<String> {
        self.held.get(&lease_id)?.running.target_error()
    }

    pub(super) fn set_serving(&mut self, lease_id: Uuid) {
        if let Some(held) = self.held.get_mut(&lease_id) {
            held.serving = true;
        }
    }

    pub(super) fn is_serving(&self, lease_id: Uuid) -> bool {
        self.held.get(&lease_id).is_some_and(|held| held.serving)
    }

    /// Whether all tunnels are ready.
    pub(super) fn all_serving(&self) -> bool {
        self.held.values().all(|held| held.serving)
    }

    /// The sequence number and the leases of a renewal that is sent now.
    pub(super) fn renewal(&mut self, now: Moment) -> (u64, Vec<Uuid>) {
        self.sequence += 1;
        self.renewals.retain(|(_, sent)| now.since(*sent) < self.term);
        self.renewals.push_back((self.sequence, now));
        (self.sequence, self.ids())
    }

    /// The host has renewed leases. Their new term counts from when the renewal was sent. The host counts
    /// from a later time, so this device stops a tunnel before the host gives it to another device. An answer
    /// that took longer than a heartbeat still extends the lease to the end of that term.
    pub(super) fn renewed(&mut self, sequence: u64, lease_ids: &[Uuid]) {
        let sent = self.renewals.iter().find(|(sent, _)| *sent == sequence).map(|(_, at)| *at);
        self.renewals.retain(|(sent, _)| *sent > sequence);
        let Some(sent) = sent else { return };
        let until = sent.plus(self.term);
        for lease_id in lease_ids {
            if let Some(held) = self.held.get_mut(lease_id) {
                held.until = held.until.max(until);
            }
        }
    }

    pub(super) fn next_expiry(&self) -> Option<Moment> {
        self.held.values().map(|held| held.until).min()
    }

    pub(super) fn expired(&self, now: Moment) -> Vec<Uuid> {
        self.held.iter().filter(|(_, held)| held.until <= now).map(|(id, _)| *id).collect()
    }

    /// The nodes of the tunnels, and the connections to them.
    pub(super) fn nodes(&self) -> Vec<NodeStatus> {
        let now = self.cx.clock.moment();
        let choice = self.cx.carriers.choice();
        let status = |(node, connections, quic): (NodeAddress, Connections, QuicState)| NodeStatus {
            address: format!("{}:{}", node.host, node.port),
            transport: transport(choice, quic, now),
            warm: connections.warm,
            busy: connections.busy + connections.streams,
            round_trip_ms: connections.round_trip.map(|time| time.as_secs_f64() * 1000.0),
        };
        let mut nodes: Vec<_> = self.cx.carriers.nodes().into_iter().map(status).collect();
        nodes.sort_by(|a, b| a.address.cmp(&b.address));
        nodes
    }

    /// The nodes of the tunnels.
    pub(super) fn node_addresses(&self) -> Vec<NodeAddress> {
        self.cx.carriers.nodes().into_iter().map(|(node, ..)| node).collect()
    }

    /// Ends the back-off of all connections, because the host is reachable again.
    pub(super) fn dial_now(&self) {
        self.cx.carriers.dial_now();
    }

    pub(super) fn probe_again(&self) {
        self.held.values().for_each(|held| held.running.probe_again());
    }
}

/// What carries visitors, in words.
fn transport(choice: TransportChoice, quic: QuicState, now: Moment) -> String {
    let blocked = |until: Moment| {
        let seconds = until.since(now).as_secs();
        let next = if seconds < 60 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) };
        format!("UDP blocked, next try in {next}")
    };
    match (choice, quic) {
        (TransportChoice::Quic, QuicState::Connected) => "QUIC".into(),
        (TransportChoice::Quic, QuicState::Off) => "none: the node does not offer QUIC".into(),
        (TransportChoice::Quic, QuicState::Connecting) => "none yet".into(),
        (TransportChoice::Quic, QuicState::Blocked { until }) => format!("none: {}", blocked(until)),
        (_, QuicState::Connected) => "TLS + QUIC".into(),
        (_, QuicState::Off | QuicState::Connecting) => "TLS".into(),
        (_, QuicState::Blocked { until }) => format!("TLS only: {}", blocked(until)),
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use tokio::sync::mpsc;

    use super::*;
    use crate::carrier::{Carriers, TransportChoice};
    use crate::state_dir::StateDir;
    use crate::target::LinkLocal;
    use crate::targets::Targets;
    use culvert_wire::base64_bytes::Base64Bytes;
    use culvert_wire::clock::Clock;

    fn grant() -> Grant {
        let target = Target::new("127.0.0.1", 1);
        Grant {
            lease_id: Uuid::from_u128(1),
            tunnel_id: Uuid::from_u128(2),
            name: "tunnel".into(),
            epoch: 1,
            token: Base64Bytes(Vec::new()),
            device_token: None,
            public_address: "node:20000".into(),
            node: NodeAddress {
                host: "127.0.0.1".into(),
                port: 1,
                udp_port: None,
                fingerprint: Base64Bytes(vec![0; 32]),
            },
            target,
        }
    }

    /// An answer that takes longer than a heartbeat must not stop the tunnel.
    #[tokio::test]
    async fn delayed_renewal_answer_extends_lease_from_request_time() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let (reports, _reported) = mpsc::channel(1);
        let folder = tempfile::tempdir().unwrap();
        let targets = Targets::open(&StateDir::open(folder.path()).unwrap(), false).unwrap();
        let carriers = Carriers::new(clock.clone(), TransportChoice::Auto);
        let cx = TunnelContext { clock: clock.clone(), link_local: LinkLocal::Refused, targets, reports, carriers };
        let mut leases = Leases::new(cx);
        leases.set_term(Duration::from_secs(30));
        let id = grant().lease_id;
        leases.begin(grant(), Chosen::Here, Probe::Skipped, clock.moment()).unwrap();

        clock.advance(Duration::from_secs(10));
        let (first, asked) = leases.renewal(clock.moment());
        assert_eq!(asked, [id]);
        clock.advance(Duration::from_secs(10));
        let (second, _) = leases.renewal(clock.moment());
        leases.renewed(first, &asked);
        clock.advance(Duration::from_secs(15));
        assert!(leases.expired(clock.moment()).is_empty(), "renewed at 10 s, it holds until 40 s");
        clock.advance(Duration::from_secs(5));
        assert_eq!(leases.expired(clock.moment()), [id]);
        leases.renewed(second, &asked);
        assert!(leases.expired(clock.moment()).is_empty(), "the second answer holds until 50 s");
        leases.renewed(first, &asked);
        assert_eq!(leases.next_expiry(), Some(clock.moment().plus(Duration::from_secs(10))));
    }
}
