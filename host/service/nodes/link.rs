//! The channel to one node: what was sent to it, and what it has reported.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use culvert_wire::clock::Moment;
use culvert_wire::control::NodeAddress;
use culvert_wire::node::{Assignment, Level, NodeHello, QUEUE, ToHost, ToNode, TrafficBatch, TunnelVisitors};
use culvert_wire::tally::Tally;
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

use super::plans::Plans;
use super::{digest, digests, lock};
use culvert_store::assignments::Assigned;

/// Whether a session is served, or why not.
pub(super) type Outcome = Result<(), String>;

/// Levels of a node that are known, at most.
const MOST_LEVELS: usize = 100;

pub struct Link {
    hello: NodeHello,
    sender: mpsc::Sender<ToNode>,
    /// Locked while something is sent that belongs to it, so that frames are sent in the order of their
    /// revisions.
    pub sent: tokio::sync::Mutex<Sent>,
    reported: Mutex<Reported>,
    applied: watch::Sender<Option<u64>>,
    /// The revision that was sent last.
    newest: AtomicU64,
    /// The lowest number of a batch that is not stored yet.
    oldest_traffic: watch::Sender<Option<u64>>,
    /// The queue of traffic that is to be stored, until the channel ends.
    traffic: Mutex<Option<mpsc::Sender<TrafficBatch>>>,
    /// Whether the node does not belong to this host any longer.
    is_lost: AtomicBool,
}

/// What was sent to the node.
#[derive(Default)]
pub struct Sent {
    /// The newest revision that was sent; `None` if the node needs everything.
    pub revision: Option<u64>,
    /// The newest revision at the last check, if it was not applied then.
    unapplied: Option<u64>,
    /// The session and a digest of each tunnel's assignment.
    digests: HashMap<Uuid, (Uuid, u64)>,
    pub plans: Plans,
    /// Sessions that the node was told to end, and that are not sent again; several stops can be under way.
    pub ending: Tally<Uuid>,
    /// Tunnels that have to be sent again.
    pub resend: BTreeSet<Uuid>,
}

impl Sent {
    /// Takes note of assignments, and returns those to send.
    pub fn note(&mut self, found: Vec<Assigned>) -> Vec<Assignment> {
        let mut put = Vec::new();
        for Assigned { assignment, plan } in found {
            if self.ending.of(&assignment.session_id) > 0 {
                continue;
            }
            self.digests.insert(assignment.tunnel_id, (assignment.session_id, digest(&assignment)));
            self.plans.put(assignment.tunnel_id, assignment.scope_id, &plan);
            put.push(assignment);
        }
        put
    }

    /// Whether the node was sent this session of a tunnel.
    pub fn has_session(&self, tunnel_id: Uuid, session_id: Uuid) -> bool {
        self.digests.get(&tunnel_id).is_some_and(|(sent, _)| *sent == session_id)
    }

    pub fn forget(&mut self, tunnel_id: Uuid) {
        self.digests.remove(&tunnel_id);
        self.plans.remove(tunnel_id);
    }

    /// Forgets what was sent, before everything is sent again.
    pub fn clear(&mut self) {
        (self.digests, self.plans) = (HashMap::new(), Plans::default());
    }

    /// The tunnels whose newest state is not what was sent.
    pub fn differences(&self, found: &[Assigned]) -> Vec<Uuid> {
        let ending = |assigned: &&Assigned| self.ending.of(&assigned.assignment.session_id) > 0;
        let ending: HashSet<Uuid> = found.iter().filter(ending).map(|assigned| assigned.assignment.tunnel_id).collect();
        let newest = digests(found);
        let surplus = self.digests.keys().filter(|tunnel_id| !newest.contains_key(tunnel_id));
        let outdated = newest
            .iter()
            .filter(|(tunnel_id, digest)| self.digests.get(tunnel_id).map(|(_, sent)| sent) != Some(digest));
        let all = surplus.chain(outdated.map(|(tunnel_id, _)| tunnel_id));
        all.filter(|tunnel_id| !ending.contains(tunnel_id)).copied().collect()
    }
}

/// What the node has reported.
#[derive(Default)]
struct Reported {
    /// By tunnel: the session that the report is about, and the outcome.
    outcomes: HashMap<Uuid, (Uuid, Outcome)>,
    /// By session: who waits for its outcome.
    serving: HashMap<Uuid, Vec<oneshot::Sender<Outcome>>>,
    /// By session: who waits for its end. The node answers each [`ToNode::End`] once and in order, so an answer is that of the
    /// oldest, although nobody may wait for it any longer.
    ended: HashMap<Uuid, VecDeque<oneshot::Sender<()>>>,
    /// Batches that are not stored yet, by number.
    traffic: BTreeMap<u64, TrafficBatch>,
    tunnels: u64,
    visitors: u64,
    /// The visitors of each tunnel that has some.
    visitors_of: HashMap<Uuid, u64>,
    levels: Vec<Level>,
}

impl Link {
    /// Returns the link with the queue of traffic to store.
    pub fn new(hello: NodeHello, sender: mpsc::Sender<ToNode>) -> (Self, mpsc::Receiver<TrafficBatch>) {
        let (traffic, batches) = mpsc::channel(QUEUE);
        let link = Self {
            hello,
            sender,
            sent: tokio::sync::Mutex::default(),
            reported: Mutex::default(),
            applied: watch::Sender::new(None),
            newest: AtomicU64::new(0),
            oldest_traffic: watch::Sender::new(None),
            traffic: Mutex::new(Some(traffic)),
            is_lost: AtomicBool::new(false),
        };
        (link, batches)
    }

    pub fn node_id(&self) -> Uuid {
        self.hello.node_id
    }

    pub fn boot_id(&self) -> Uuid {
        self.hello.boot_id
    }

    pub fn address(&self) -> NodeAddress {
        self.hello.address.clone()
    }

    /// Sends a frame. It is lost if the node has gone: with its next channel, everything is sent again.
    pub async fn send(&self, frame: ToNode) {
        let _ = self.sender.send(frame).await;
    }

    /// Tells the node until when it may serve, where that has a limit. A node that takes nothing is not waited for: its time
    /// runs.
    pub fn extend_authority(&self, until: Option<Moment>) {
        let until = if self.is_lost.load(Ordering::Relaxed) { Some(Moment::default()) } else { until };
        if let Some(until) = until {
            let _ = self.sender.try_send(ToNode::Authority { until_ms: until.as_millis() });
        }
    }

    /// The node does not belong to this host any longer. Returns whether that is new.
    pub fn lose(&self) -> bool {
        !self.is_lost.swap(true, Ordering::Relaxed)
    }

    /// Ends the queue of traffic.
    pub fn close(&self) {
        lock(&self.traffic).take();
    }

    pub fn receive(&self, frame: ToHost) {
        match frame {
            ToHost::Serving { tunnel_id, session_id, .. } => self.note_outcome(tunnel_id, session_id, Ok(())),
            ToHost::Failed { tunnel_id, session_id, detail, .. } => {
                self.note_outcome(tunnel_id, session_id, Err(detail));
            }
            ToHost::Ended { tunnel_id, session_id, .. } => {
                let mut reported = lock(&self.reported);
                if reported.outcomes.get(&tunnel_id).is_some_and(|(known, _)| *known == session_id) {
                    reported.outcomes.remove(&tunnel_id);
                }
                if let Entry::Occupied(mut waiting) = reported.ended.entry(session_id) {
                    let oldest = waiting.get_mut().pop_front();
                    if waiting.get().is_empty() {
                        waiting.remove();
                    }
                    let _ = oldest.map(|oldest| oldest.send(()));
                }
            }
            // What was sent before the database went back does not count any longer.
            ToHost::Applied { revision } => {
                let newest = self.newest.load(Ordering::Relaxed);
                let revision = (revision <= newest).then_some(revision);
                self.applied.send_modify(|applied| *applied = (*applied).max(revision));
            }
            ToHost::Traffic(batch) => self.take_traffic(batch),
            ToHost::Visitors(changes) => {
                let known = &mut lock(&self.reported).visitors_of;
                for TunnelVisitors { tunnel_id, visitors, .. } in changes {
                    match visitors {
                        0 => known.remove(&tunnel_id),
                        _ => known.insert(tunnel_id, visitors),
                    };
                }
            }
            ToHost::Load { tunnels, visitors, mut levels, .. } => {
                levels.truncate(MOST_LEVELS);
                let mut reported = lock(&self.reported);
                (reported.tunnels, reported.visitors, reported.levels) = (tunnels, visitors, levels);
            }
            ToHost::Hello(_) | ToHost::Resync { .. } => {}
        }
    }

    /// Queues a batch, unless it waits already. A full queue drops it: the node sends it again.
    fn take_traffic(&self, batch: TrafficBatch) {
        let mut is_known = false;
        self.update_traffic(|traffic| is_known = traffic.insert(batch.number, batch.clone()).is_some());
        if is_known {
            return;
        }
        let queued = lock(&self.traffic).as_ref().is_some_and(|queue| queue.try_send(batch.clone()).is_ok());
        if !queued {
            self.give_up(&batch);
        }
    }

    fn note_outcome(&self, tunnel_id: Uuid, session_id: Uuid, outcome: Outcome) {
        let mut reported = lock(&self.reported);
        reported.outcomes.insert(tunnel_id, (session_id, outcome.clone()));
        for waiting in reported.serving.remove(&session_id).unwrap_or_default() {
            let _ = waiting.send(outcome.clone());
        }
    }

    /// The reported outcome of a session, or a receiver of the next report.
    ///
    /// # Errors
    ///
    /// The receiver, if no outcome of the session was reported yet.
    pub fn outcome(&self, tunnel_id: Uuid, session_id: Uuid) -> Result<Outcome, oneshot::Receiver<Outcome>> {
        let mut reported = lock(&self.reported);
        match reported.outcomes.get(&tunnel_id) {
            Some((known, outcome)) if *known == session_id => Ok(outcome.clone()),
            _ => {
                let (sender, outcome) = oneshot::channel();
                let waiting = reported.serving.entry(session_id).or_default();
                waiting.retain(|sender| !sender.is_closed());
                waiting.push(sender);
                Err(outcome)
            }
        }
    }

    /// Nobody waits for the outcome of this session any longer, whose receivers were dropped.
    pub fn forget_waiting(&self, session_id: Uuid) {
        let mut reported = lock(&self.reported);
        if let Some(waiting) = reported.serving.get_mut(&session_id) {
            waiting.retain(|sender| !sender.is_closed());
            if waiting.is_empty() {
                reported.serving.remove(&session_id);
            }
        }
    }

    /// Forgets the outcomes of all tunnels, before everything is sent again.
    pub fn forget_all_outcomes(&self) {
        lock(&self.reported).outcomes.clear();
    }

    pub fn forget_outcomes(&self, tunnel_ids: &[Uuid]) {
        let mut reported = lock(&self.reported);
        tunnel_ids.iter().for_each(|tunnel_id| drop(reported.outcomes.remove(tunnel_id)));
    }

    /// Tells the node to end a session, and returns the receiver of its answer. The session is marked first, so
    /// that nothing that is sent afterwards serves it again.
    pub async fn end(&self, tunnel_id: Uuid, session_id: Uuid, epoch: i64) -> oneshot::Receiver<()> {
        let (sender, answer) = oneshot::channel();
        let mut sent = self.sent.lock().await;
        let place = self.sender.reserve().await;
        // From here on nothing waits: who asks is noted if and only if the node is asked.
        sent.ending.add(session_id, 1);
        // A node that has gone does not answer.
        let Ok(place) = place else { return answer };
        let mut reported = lock(&self.reported);
        reported.outcomes.remove(&tunnel_id);
        reported.ended.entry(session_id).or_default().push_back(sender);
        place.send(ToNode::End { tunnel_id, session_id, epoch });
        answer
    }

    /// The batches with traffic of a session that are not stored yet.
    pub fn waiting_traffic(&self, session_id: Uuid) -> Vec<TrafficBatch> {
        let has_session = |batch: &&TrafficBatch| batch.rows.iter().any(|row| row.session_id == session_id);
        lock(&self.reported).traffic.values().filter(has_session).cloned().collect()
    }

    /// A batch was stored; the node may forget it.
    pub async fn acknowledge(&self, batch: &TrafficBatch) {
        self.give_up(batch);
        self.send(ToNode::TrafficApplied { boot_id: batch.boot_id, numbers: vec![batch.number] }).await;
    }

    /// A batch does not wait to be stored any longer. If it was not acknowledged, the node sends it again.
    pub fn give_up(&self, batch: &TrafficBatch) {
        self.update_traffic(|traffic| drop(traffic.remove(&batch.number)));
    }

    fn update_traffic(&self, change: impl FnOnce(&mut BTreeMap<u64, TrafficBatch>)) {
        let mut reported = lock(&self.reported);
        change(&mut reported.traffic);
        self.oldest_traffic.send_replace(reported.traffic.first_key_value().map(|(number, _)| *number));
    }

    /// Notes the revision that is sent next. It is a lower one only where the database went back.
    pub fn sends(&self, revision: u64) {
        self.newest.store(revision, Ordering::Relaxed);
        self.applied.send_if_modified(|applied| {
            let is_of_the_past = *applied > Some(revision);
            if is_of_the_past {
                *applied = None;
            }
            is_of_the_past
        });
    }

    /// The newest revision that is in force.
    pub fn applied(&self) -> Option<u64> {
        *self.applied.borrow()
    }

    /// Has everything sent again if the node has not applied what was sent at the last call.
    pub async fn forget_unapplied(&self) {
        let mut sent = self.sent.lock().await;
        let applied = self.applied();
        if sent.unapplied > applied {
            sent.revision = None;
        }
        sent.unapplied = sent.revision.filter(|revision| Some(*revision) > applied);
    }

    /// Waits until the traffic that was reported so far is stored, or given up.
    pub async fn wait_until_stored(&self) {
        let newest = lock(&self.reported).traffic.last_key_value().map(|(number, _)| *number);
        let Some(newest) = newest else { return };
        let is_stored = |oldest: &Option<u64>| oldest.is_none_or(|oldest| oldest > newest);
        // This cannot fail: the sender lives as long as `self`.
        let _ = self.oldest_traffic.subscribe().wait_for(is_stored).await;
    }

    pub async fn wait_until_applied(&self, revision: u64) {
        // This cannot fail: the sender lives as long as `self`.
        let _ = self.applied.subscribe().wait_for(|applied| *applied >= Some(revision)).await;
    }

    /// What the node measures.
    pub fn levels(&self) -> Vec<Level> {
        lock(&self.reported).levels.clone()
    }

    /// How many visitors a tunnel has.
    pub fn visitors_of(&self, tunnel_id: Uuid) -> u64 {
        lock(&self.reported).visitors_of.get(&tunnel_id).copied().unwrap_or_default()
    }

    /// The number of served tunnels, and of their visitors.
    pub fn load(&self) -> (u64, u64) {
        let reported = lock(&self.reported);
        (reported.tunnels, reported.visitors)
    }
}
