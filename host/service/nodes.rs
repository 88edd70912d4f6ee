//! The nodes that are connected to this host: what each was sent, and what each has reported.
//!
//! A node gets everything that it is to serve when it connects, and after that what changed
//! (`store::assignments`). A change is looked for after each hint, before each wait for a node, and once a second.

mod authority;
pub mod channel;
mod counts;
mod elsewhere;
mod link;
mod plans;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use culvert_domain::error::{Chain, Error, Result};
use culvert_wire::clock::Clock;
use culvert_wire::control::{Failure, NodeAddress};
use culvert_wire::device_token::{self, AgentProcess, DeviceToken};
use culvert_wire::failure_code::FailureCode;
use culvert_wire::lease_token;
use culvert_wire::node::{Assignment, Level, Measured, ToNode, TrafficBatch};
use futures_util::future::join_all;
use tokio::sync::watch;
use uuid::Uuid;

use crate::certificates;
use crate::metrics::{FleetMetrics, NodeMetrics};
use crate::secrets::Secrets;
use counts::ReportedCounts;
use culvert_domain::lease::Lease;
use culvert_store::Store;
use culvert_store::assignments::Assigned;
use culvert_store::error::first_error;
use culvert_store::node_requests::EndsElsewhere;
use elsewhere::Elsewhere;
pub use link::Link;
use link::Sent;

/// How long a node may take to serve a tunnel, or to end a session.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long an answer to a client waits until nodes have applied its change.
const APPLY_WITHIN: Duration = Duration::from_secs(2);

/// When a node is told again what to serve, after a failure.
const RETRY: Duration = Duration::from_secs(1);

pub struct Nodes {
    store: Arc<Store>,
    clock: Clock,
    secrets: Secrets,
    metrics: NodeMetrics,
    fleet_metrics: FleetMetrics,
    counts: ReportedCounts,
    links: Mutex<BTreeMap<Uuid, Arc<Link>>>,
    elsewhere: Elsewhere,
    /// How many nodes have applied their first assignments.
    ready: watch::Sender<usize>,
}

/// Sessions that a node has ended and that the store still shows as open. Until [`Nodes::release`] they are not
/// served again.
#[must_use]
#[derive(Default)]
pub struct EndedSessions {
    sessions: Vec<(Arc<Link>, Uuid, Uuid)>,
    /// The last traffic of the sessions.
    pub traffic: Vec<(Uuid, TrafficBatch)>,
    /// Those of nodes of other hosts, which have to be taken up.
    pub elsewhere: EndsElsewhere,
}

fn report(what: &str, result: Result<()>) {
    if let Err(error) = result {
        tracing::warn!(error = %Chain(&error), "{what}; it is tried again");
    }
}

impl Nodes {
    pub fn new(store: Arc<Store>, secrets: Secrets, (metrics, fleet_metrics): (NodeMetrics, FleetMetrics)) -> Self {
        Self {
            clock: store.clock().clone(),
            secrets,
            store,
            metrics,
            fleet_metrics,
            counts: ReportedCounts::default(),
            links: Mutex::default(),
            elsewhere: Elsewhere::default(),
            ready: watch::Sender::new(0),
        }
    }

    /// The connected nodes.
    pub fn ids(&self) -> Vec<Uuid> {
        lock(&self.links).keys().copied().collect()
    }

    /// Waits until so many nodes serve what they are to serve.
    pub async fn wait_until_ready(&self, count: usize) {
        // This cannot fail: the sender lives as long as `self`.
        let _ = self.ready.subscribe().wait_for(|ready| *ready >= count).await;
    }

    /// The number of tunnels that the connected nodes serve, and of their visitors.
    pub fn load(&self) -> (u64, u64) {
        let loads = self.links().into_iter().map(|link| link.load());
        loads.fold((0, 0), |(tunnels, visitors), (more, others)| (tunnels + more, visitors + others))
    }

    /// How many visitors a tunnel has; `None` if its node is not connected.
    pub fn visitors_of(&self, node_id: Uuid, tunnel_id: Uuid) -> Option<u64> {
        Some(self.link(node_id)?.visitors_of(tunnel_id))
    }

    /// What the connected nodes measure, together.
    pub fn levels(&self) -> Vec<Level> {
        let mut sums: BTreeMap<(Measured, String), u64> = BTreeMap::new();
        for Level { what, label, level } in self.links().into_iter().flat_map(|link| link.levels()) {
            let sum = sums.entry((what, label)).or_default();
            *sum = sum.saturating_add(level);
        }
        sums.into_iter().map(|((what, label), level)| Level { what, label, level }).collect()
    }

    /// The token by which an agent proves a lease to its node.
    pub fn token(&self, lease: &Lease) -> Vec<u8> {
        let Lease { node_id, tunnel_id, session_id, epoch, .. } = *lease;
        self.secrets.lease_key().sign(&lease_token::Lease { node_id, tunnel_id, session_id, epoch })
    }

    /// The token by which the agent of a lease proves to its node who it is.
    pub fn device_token(&self, lease: &Lease) -> DeviceToken {
        let process = AgentProcess { device_id: lease.device_id, boot_id: lease.boot_id };
        device_token::sign(self.secrets.lease_key(), lease.node_id, process, self.clock.now())
    }

    /// Counts traffic that was stored.
    pub fn count(&self, batch: &TrafficBatch) {
        self.metrics.count(batch);
    }

    /// Removes a link, unless the node has a newer one.
    fn remove(&self, link: &Arc<Link>) {
        let mut links = lock(&self.links);
        if links.get(&link.node_id()).is_some_and(|current| Arc::ptr_eq(current, link)) {
            links.remove(&link.node_id());
        }
    }

    fn links(&self) -> Vec<Arc<Link>> {
        lock(&self.links).values().cloned().collect()
    }

    fn link(&self, node_id: Uuid) -> Option<Arc<Link>> {
        lock(&self.links).get(&node_id).cloned()
    }

    /// Has the lease's node serve it, and returns the address for the agent's data connections. The host of another node has to
    /// answer `within` this time.
    ///
    /// # Errors
    ///
    /// Why the tunnel cannot be served, for the client who asked for it.
    pub async fn serve(&self, lease: &Lease, within: Duration) -> Result<NodeAddress, Failure> {
        let link = self.link(lease.node_id);
        let served = match &link {
            Some(link) => self.serve_here(link, lease.tunnel_id, lease.session_id).await,
            None => self.serve_elsewhere(lease, within).await,
        };
        if served.is_ok() {
            self.metrics.granted(link.is_some());
        }
        served
    }

    async fn serve_here(&self, link: &Link, tunnel_id: Uuid, session_id: Uuid) -> Result<NodeAddress, Failure> {
        let outcome = match link.outcome(tunnel_id, session_id) {
            Ok(known) => known,
            Err(answer) => {
                let deadline = self.clock.moment().plus(ANSWER_WITHIN);
                let synced = self.sync(link).await;
                let is_sent = link.sent.lock().await.has_session(tunnel_id, session_id);
                if let Err(error) = &synced {
                    tracing::warn!(error = %Chain(error), %tunnel_id, "a node could not be told of a tunnel");
                } else if !is_sent {
                    drop(answer);
                    link.forget_waiting(session_id);
                    return Err(not_started("The tunnel's lease ended before the start was done."));
                }
                let answer = self.clock.timeout_at(deadline, answer).await;
                link.forget_waiting(session_id);
                answer.ok().and_then(Result::ok).ok_or_else(unavailable)?
            }
        };
        outcome.map(|()| link.address()).map_err(|detail| not_started(&detail))
    }

    /// Ends leases on their nodes. When this returns, their ports are closed and their visitors are cut off.
    /// They are not served again until [`Nodes::release`].
    ///
    /// # Errors
    ///
    /// If a node does not answer. All of the leases are then served as the store has them.
    pub async fn end(&self, leases: &[Lease]) -> Result<EndedSessions, Failure> {
        let (here, elsewhere): (Vec<_>, Vec<_>) = leases.iter().partition(|lease| self.link(lease.node_id).is_some());
        let (ended, ends) = tokio::join!(self.end_here(here), self.end_elsewhere(&elsewhere));
        let have_ended = ended.is_ok() && ends.is_ok();
        let ended = EndedSessions { elsewhere: ends.unwrap_or_default(), ..ended.unwrap_or_default() };
        if have_ended {
            return Ok(ended);
        }
        self.release(ended).await;
        Err(unavailable())
    }

    async fn end_here(&self, leases: Vec<&Lease>) -> Result<EndedSessions, Failure> {
        let mut ended = EndedSessions::default();
        let mut answers = Vec::new();
        let deadline = self.clock.moment().plus(ANSWER_WITHIN);
        for lease in leases {
            let Some(link) = self.link(lease.node_id) else { continue };
            let Lease { tunnel_id, session_id, epoch, .. } = *lease;
            answers.push(link.end(tunnel_id, session_id, epoch).await);
            ended.sessions.push((link, tunnel_id, session_id));
        }
        let answers = self.clock.timeout_at(deadline, join_all(answers)).await;
        if !answers.is_ok_and(|answers| answers.iter().all(Result::is_ok)) {
            self.release(ended).await;
            return Err(unavailable());
        }
        for (link, _, session_id) in &ended.sessions {
            ended.traffic.extend(link.waiting_traffic(*session_id).into_iter().map(|batch| (link.node_id(), batch)));
        }
        Ok(ended)
    }

    /// Allows ended sessions to be served again, if the store still has them open.
    pub async fn release(&self, ended: EndedSessions) {
        self.forget(ended.elsewhere.request_ids).await;
        let mut links = BTreeMap::new();
        for (link, tunnel_id, session_id) in ended.sessions {
            let mut sent = link.sent.lock().await;
            sent.ending.end_one(&session_id);
            // A session that has ended has changed the assignment, and is not sent again.
            sent.resend.insert(tunnel_id);
            drop(sent);
            links.insert(link.node_id(), link);
        }
        for link in links.into_values() {
            if let Err(error) = self.resend(&link).await {
                tracing::warn!(error = %Chain(&error), "a node could not be told of a tunnel; it is tried again");
            }
        }
    }

    /// Raises the revisions of the tunnels that have to be sent again. If that fails, it is tried again.
    async fn resend(&self, link: &Link) -> Result<()> {
        let tunnel_ids: Vec<Uuid> = std::mem::take(&mut link.sent.lock().await.resend).into_iter().collect();
        let raised = self.raise_revisions(link.node_id(), &tunnel_ids).await;
        if raised.is_err() {
            link.sent.lock().await.resend.extend(tunnel_ids);
        }
        raised
    }

    async fn raise_revisions(&self, node_id: Uuid, tunnel_ids: &[Uuid]) -> Result<()> {
        let open = self.store.assignments_of(node_id, tunnel_ids).await?;
        let open: Vec<Uuid> = open.iter().map(|assigned| assigned.assignment.tunnel_id).collect();
        if open.is_empty() { Ok(()) } else { self.store.resend_assignments(node_id, open).await }
    }

    /// Sends a node what has changed. Errors are only logged: the next look is at most a second away. False if it is not
    /// connected to this host.
    pub async fn notify(&self, node_id: Uuid) -> bool {
        let Some(link) = self.link(node_id) else { return false };
        report("a node could not be told of a change", self.sync(&link).await.map(drop));
        true
    }

    /// Sends nodes what has changed, and waits a short time until it is in force and the traffic of what has ended is
    /// stored. A caller who waits for it before answering a client can promise that the change is in effect, unless this returns
    /// false.
    pub async fn wait_until_applied(&self, node_ids: impl IntoIterator<Item = Uuid>) -> bool {
        let (mut links, mut elsewhere) = (Vec::new(), Vec::new());
        for node_id in node_ids {
            match self.link(node_id) {
                Some(link) => links.push(link),
                None => elsewhere.push(node_id),
            }
        }
        let here = join_all(links.iter().map(|link| self.apply_here(link)));
        let (here, elsewhere) = tokio::join!(here, self.apply_elsewhere(elsewhere));
        let results: Vec<_> = here.into_iter().chain([elsewhere]).collect();
        let have_applied = results.iter().all(Result::is_ok);
        results.into_iter().for_each(|result| report("a node could not be told of a change", result));
        have_applied
    }

    async fn apply_here(&self, link: &Link) -> Result<()> {
        let revision = self.sync(link).await?;
        let applied = async {
            link.wait_until_applied(revision).await;
            link.wait_until_stored().await;
        };
        let applied = self.clock.timeout(APPLY_WITHIN, applied).await;
        applied.map_err(|_| Error::internal("the node has not applied a change within 2 seconds"))
    }

    /// Has the next look send the nodes all that they are to serve.
    pub async fn send_anew(&self) {
        for link in self.links() {
            link.sent.lock().await.revision = None;
        }
    }

    /// Does what is due every second: sends what no hint has told of. `revisions` are those of all nodes in the database,
    /// added up.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn tick(&self, revisions: u64) -> Result<()> {
        let mut result = Ok(());
        let mut sent = Some(0);
        for link in self.links() {
            result = first_error(result, self.resend(&link).await);
            let revision = link.sent.lock().await.revision;
            sent = sent.zip(revision).map(|(sent, revision)| sent + revision);
        }
        if sent == Some(revisions) { result } else { first_error(result, self.sync_all().await) }
    }

    /// Sends the nodes what has changed.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn sync_all(&self) -> Result<()> {
        let mut result = Ok(());
        for link in self.links() {
            result = first_error(result, self.sync(&link).await.map(drop));
        }
        result
    }

    /// Sends a node what has changed since it was last sent something. Returns the revision that it then knows.
    async fn sync(&self, link: &Link) -> Result<u64> {
        let mut sent = link.sent.lock().await;
        let Some(from) = sent.revision else { return self.send_all(link, &mut sent).await };
        let changes = self.store.assignment_changes(link.node_id(), from).await?;
        if changes.revision == from {
            return Ok(from);
        }
        if changes.revision < from || changes.pruned > from {
            return self.send_all(link, &mut sent).await;
        }
        let item_ids = changes.item_ids;
        let found = self.store.assignments_of(link.node_id(), &item_ids).await?;
        let put_routes = self.store.routes_of(link.node_id(), &item_ids).await?;
        let put_identities = certificates::identities(
            &self.secrets,
            self.store.served_certificates_of(link.node_id(), &item_ids).await?,
        );
        let put = sent.note(found);
        let drop = others(&item_ids, put.iter().map(|assignment| assignment.tunnel_id));
        drop.iter().for_each(|tunnel_id| sent.forget(*tunnel_id));
        link.forget_outcomes(&drop);
        let change = ToNode::Change {
            from,
            revision: changes.revision,
            drop,
            drop_routes: others(&item_ids, put_routes.iter().map(|route| route.tunnel_id)),
            drop_identities: others(&item_ids, put_identities.iter().map(|identity| identity.owner_id)),
            put,
            put_routes,
            put_identities,
        };
        link.sends(changes.revision);
        link.send(change).await;
        sent.revision = Some(changes.revision);
        Ok(changes.revision)
    }

    /// Sends a node everything. The revision is read first: a state that is newer than its revision is sent
    /// again, which does no harm.
    async fn send_all(&self, link: &Link, sent: &mut Sent) -> Result<u64> {
        let revision = self.store.assignment_changes(link.node_id(), u64::MAX >> 1).await?.revision;
        let found = self.store.assignments(link.node_id()).await?;
        let routes = self.store.routes(link.node_id()).await?;
        let identities = certificates::identities(&self.secrets, self.store.served_certificates(link.node_id()).await?);
        sent.clear();
        link.forget_all_outcomes();
        let assignments = sent.note(found);
        link.sends(revision);
        link.send(ToNode::Desired { revision, assignments, routes, identities }).await;
        sent.revision = Some(revision);
        Ok(revision)
    }

    /// Compares everything that nodes are to serve with what they were sent. A difference is an error of this
    /// program; it is logged, counted and corrected. A node that has not applied what it was sent gets everything.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn check(&self) -> Result<()> {
        for link in self.links() {
            link.forget_unapplied().await;
            let sent = link.sent.lock().await.revision;
            let revision = if let Some(sent) = sent { sent } else { self.sync(&link).await? };
            let found = self.store.assignments(link.node_id()).await?;
            let mut sent = link.sent.lock().await;
            // Another change meanwhile explains every difference.
            if self.store.assignment_changes(link.node_id(), revision).await?.revision != revision {
                continue;
            }
            let different = sent.differences(&found);
            if different.is_empty() {
                continue;
            }
            for tunnel_id in &different {
                tracing::error!(%tunnel_id, node_id = %link.node_id(), "a node was not sent a tunnel's newest state");
                self.metrics.corrected();
            }
            sent.resend.extend(different);
            drop(sent);
            self.resend(&link).await?;
            self.sync(&link).await?;
        }
        Ok(())
    }

    /// The plans of what the nodes serve.
    pub async fn plans(&self) -> BTreeSet<String> {
        let mut plans = BTreeSet::new();
        for link in self.links() {
            plans.extend(link.sent.lock().await.plans.names().map(String::from));
        }
        plans
    }

    /// The scopes under a plan of which the nodes serve something.
    pub async fn scopes_of(&self, plan: &str) -> BTreeSet<Uuid> {
        let mut scopes = BTreeSet::new();
        for link in self.links() {
            scopes.extend(link.sent.lock().await.plans.scopes(plan));
        }
        scopes
    }
}

/// Those of the changed items that are not among these.
fn others(item_ids: &[Uuid], these: impl Iterator<Item = Uuid>) -> Vec<Uuid> {
    let these: BTreeSet<Uuid> = these.collect();
    item_ids.iter().filter(|item_id| !these.contains(item_id)).copied().collect()
}

fn not_started(detail: &str) -> Failure {
    Failure::new(FailureCode::TunnelStartFailed, detail)
}

pub(crate) fn unavailable() -> Failure {
    Failure::new(FailureCode::NodeUnavailable, "The tunnel's node did not answer in time.")
}

fn digest(assignment: &Assignment) -> u64 {
    let mut hasher = DefaultHasher::new();
    assignment.hash(&mut hasher);
    hasher.finish()
}

/// The newest state of tunnels, by tunnel.
fn digests(found: &[Assigned]) -> HashMap<Uuid, u64> {
    found.iter().map(|assigned| (assigned.assignment.tunnel_id, digest(&assigned.assignment))).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
