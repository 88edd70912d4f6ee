//! The node's end of the channel to its host: frames in their order, and what is due every second.

use std::collections::HashMap;
use std::time::Duration;

use culvert_wire::clock::Moment;
use culvert_wire::node::{NodeEnd, NodeHello, SessionTraffic, ToHost, ToNode, TrafficBatch, TunnelVisitors};
use tokio_util::future::FutureExt;
use uuid::Uuid;

use super::assignments::WebChange;
use super::journal::Resend;
use super::public_listener::Tunnel;
use super::{Node, lock};

const TICK: Duration = Duration::from_secs(1);
/// Ticks between two reports of the traffic of running sessions.
const TRAFFIC_EVERY: u64 = 5;

impl Node {
    /// Serves a host until the channel ends. What the node serves then goes on until the next channel says
    /// otherwise.
    pub async fn serve(&self, channel: NodeEnd) {
        let NodeEnd { sender, mut receiver } = channel;
        *lock(&self.host) = Some(sender);
        let revision = self.assignments.lock().await.reconnected();
        let hello = NodeHello {
            node_id: self.id,
            boot_id: self.boot_id,
            revision,
            address: self.address.clone(),
            has_countries: self.shared.countries.are_known(),
        };
        lock(&self.visitors).clear();
        self.send(ToHost::Hello(hello)).await;
        self.resend_batches(Resend::All).await;
        while let Some(frame) = receiver.recv().await {
            self.receive(frame).await;
        }
        *lock(&self.host) = None;
    }

    /// Does what is due every second, until the node's process stops.
    pub async fn keep_time(&self) {
        // Whatever else takes time, the end of the authority is kept.
        tokio::join!(self.keep_authority(), self.keep_ticking());
    }

    async fn keep_authority(&self) {
        while self.shared.clock.sleep(TICK).with_cancellation_token(&self.shared.stop).await.is_some() {
            self.end_without_authority().await;
        }
    }

    async fn keep_ticking(&self) {
        let mut next = self.shared.clock.moment().plus(TICK);
        for ticks in 1.. {
            if self.shared.clock.until(next).with_cancellation_token(&self.shared.stop).await.is_none() {
                return;
            }
            next = self.shared.clock.moment().plus(TICK);
            self.tick(ticks).await;
        }
    }

    /// Does what is due; `ticks` counts the calls.
    pub async fn tick(&self, ticks: u64) {
        self.refresh_countries().await;
        self.front.tick();
        self.retry().await;
        if ticks.is_multiple_of(TRAFFIC_EVERY) {
            self.report_visitors().await;
            self.report_traffic().await;
        }
        self.resend_batches(Resend::Due).await;
        for (bound, number) in self.shared.bounds.take_refused() {
            tracing::warn!(number, bound = bound.name(), "connections were refused in the last second");
        }
        let (tunnels, visitors) = self.load();
        let counts = &self.shared.counts;
        let (counts, levels, times) = (counts.all(), counts.levels(), counts.times());
        self.send(ToHost::Load { tunnels, visitors, counts, levels, times }).await;
    }

    async fn receive(&self, frame: ToNode) {
        match frame {
            ToNode::Welcome { keys, .. } => *lock(&self.shared.keys) = keys.into(),
            ToNode::Desired { revision, assignments, routes, identities } => {
                self.apply_desired(revision, assignments, routes, identities).await;
            }
            ToNode::Change { from, revision, put, drop, put_routes, drop_routes, put_identities, drop_identities } => {
                let web = WebChange { put_routes, drop_routes, put_identities, drop_identities };
                self.apply_change(from, revision, put, drop, web).await;
            }
            ToNode::Authority { until_ms } => self.extend_authority(Moment::from_millis(until_ms)).await,
            ToNode::End { tunnel_id, session_id, epoch } => self.end(tunnel_id, session_id, epoch).await,
            ToNode::TrafficApplied { boot_id, numbers } => lock(&self.journal).acknowledge(boot_id, &numbers),
        }
    }

    /// Sends a frame. Without a host it is lost: the next channel begins with the state of both sides.
    pub(super) async fn send(&self, frame: ToHost) {
        let host = lock(&self.host).clone();
        if let Some(host) = host {
            // The host's end is gone while the channel ends.
            let _ = host.send(frame).await;
        }
    }

    /// Reports how many visitors tunnels have.
    pub async fn report_visitors(&self) {
        let changes = {
            let tunnels = lock(&self.shared.tunnels);
            let now = tunnels.iter().map(|(tunnel_id, tunnel)| TunnelVisitors {
                tunnel_id: *tunnel_id,
                scope_id: tunnel.run().scope_id(),
                visitors: tunnel.access.visitors(),
            });
            lock(&self.visitors).changes(now)
        };
        if !changes.is_empty() {
            self.send(ToHost::Visitors(changes)).await;
        }
    }

    /// Reports the traffic of running sessions.
    pub async fn report_traffic(&self) {
        // A session that ends meanwhile would be reported as ended before its traffic.
        let _state = self.assignments.lock().await;
        let runs: Vec<_> = lock(&self.shared.tunnels).values().map(Tunnel::run).collect();
        let waits = |scope_id| lock(&self.journal).waits_for(scope_id);
        let rows = runs.iter().filter(|run| !waits(run.scope_id())).map(|run| (run.scope_id(), run.take_traffic()));
        self.record(rows.collect()).await;
    }

    /// Adds traffic to the journal, and sends it.
    pub(super) async fn record(&self, rows: Vec<(Uuid, SessionTraffic)>) {
        let mut by_scope: HashMap<Uuid, Vec<SessionTraffic>> = HashMap::new();
        for (scope_id, row) in rows.into_iter().filter(|(_, row)| row.bytes_in + row.bytes_out > 0) {
            by_scope.entry(scope_id).or_default().push(row);
        }
        let now = self.shared.clock.moment();
        let batches: Vec<TrafficBatch> = {
            let mut journal = lock(&self.journal);
            by_scope.into_iter().flat_map(|(scope_id, rows)| journal.add(scope_id, &rows, now)).collect()
        };
        self.send_batches(batches).await;
    }

    async fn resend_batches(&self, resend: Resend) {
        let due = lock(&self.journal).due(self.shared.clock.moment(), resend);
        self.send_batches(due).await;
    }

    async fn send_batches(&self, batches: Vec<TrafficBatch>) {
        for batch in batches {
            self.send(ToHost::Traffic(batch)).await;
        }
    }

    /// Sends all traffic that the host has not stored, until it has stored it.
    pub async fn flush(&self) {
        while self.shared.clock.timeout(TICK, self.traffic_stored()).await.is_err() {
            self.resend_batches(Resend::All).await;
        }
    }

    /// Waits until the host has stored all traffic that was reported.
    pub async fn traffic_stored(&self) {
        let mut waiting = lock(&self.journal).waiting();
        // This cannot fail: the sender lives as long as `self`.
        let _ = waiting.wait_for(|waiting| *waiting == 0).await;
    }

    /// The number of served tunnels, and of their visitors.
    pub fn load(&self) -> (u64, u64) {
        let counts = &self.shared.counts;
        let visitors = counts.tcp_visitors.get() + counts.http_visitors.get();
        (lock(&self.shared.tunnels).len() as u64, visitors)
    }

    /// Reads the country database again if it has changed, and applies the rules again to all visitors.
    async fn refresh_countries(&self) {
        let countries = self.shared.countries.clone();
        let generation = tokio::task::spawn_blocking(move || countries.refresh()).await;
        let Ok(generation) = generation else { return };
        if self.assignments.lock().await.evaluated(generation) {
            lock(&self.shared.tunnels).values().for_each(Tunnel::reevaluate);
        }
    }
}
