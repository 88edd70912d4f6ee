//! The notifier: tells the other hosts on the database that there is something for them. Whatever comes while a notification
//! is under way goes with the next one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use culvert_domain::error::Result;
use culvert_domain::fleet::ForHost;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::future::FutureExt;
use uuid::Uuid;

use super::Jobs;
use super::outage::Outage;

/// How often a host hears itself, which proves that it hears the others.
const ECHO_EVERY: Duration = Duration::from_secs(1);
/// Least time between two notifications of what pages show.
const BETWEEN_SCOPES: Duration = Duration::from_millis(100);

pub struct Notifier {
    hosts: Waiting<(Uuid, ForHost)>,
    nodes: Waiting<Uuid>,
    scopes: Waiting<Uuid>,
    /// Echoes are numbered by the milliseconds since then.
    begun: Instant,
}

impl Default for Notifier {
    #[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
    fn default() -> Self {
        let begun = Instant::now();
        Self { hosts: Waiting::default(), nodes: Waiting::default(), scopes: Waiting::default(), begun }
    }
}

/// What is to be told.
struct Waiting<T> {
    all: Mutex<BTreeSet<T>>,
    added: Notify,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { all: Mutex::default(), added: Notify::new() }
    }
}

impl<T: Ord> Waiting<T> {
    fn add(&self, one: T) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).insert(one);
        self.added.notify_one();
    }

    async fn take(&self) -> Vec<T> {
        self.added.notified().await;
        let all = std::mem::take(&mut *self.all.lock().unwrap_or_else(PoisonError::into_inner));
        all.into_iter().collect()
    }
}

impl Notifier {
    /// There is something for a host.
    pub(super) fn tell_host(&self, host_id: Uuid, what: ForHost) {
        self.hosts.add((host_id, what));
    }

    /// There is something for a node of another host.
    pub(super) fn tell_node(&self, node_id: Uuid) {
        self.nodes.add(node_id);
    }

    /// How long ago an echo of this number was sent.
    pub(super) fn since(&self, sent: u64) -> Duration {
        self.begun.elapsed().saturating_sub(Duration::from_millis(sent))
    }

    /// Something that pages show of a scope has changed.
    pub(super) fn scope_changed(&self, scope_id: Uuid) {
        self.scopes.add(scope_id);
    }
}

/// Runs until the host stops.
pub async fn run(jobs: Arc<Jobs>) {
    let both = async { tokio::join!(notify_hosts(&jobs), notify_of_scopes(&jobs)) };
    both.with_cancellation_token(&jobs.stop).await;
}

#[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
async fn notify_hosts(jobs: &Jobs) {
    let (store, host_id) = (&jobs.service.store, jobs.service.fleet.host_id());
    let (mut outage, mut next_echo) = (Outage::default(), Instant::now());
    loop {
        let result = tokio::select! {
            hosts = jobs.notifier.hosts.take() => store.notify_hosts(&hosts).await,
            node_ids = jobs.notifier.nodes.take() => store.notify_of_nodes(host_id, &node_ids).await,
            () = sleep_until(next_echo) => {
                next_echo = Instant::now() + ECHO_EVERY;
                let sent = u64::try_from(jobs.notifier.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                store.notify_itself(host_id, sent).await
            }
        };
        report(jobs, &mut outage, result);
    }
}

#[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
async fn notify_of_scopes(jobs: &Jobs) {
    let (store, host_id) = (&jobs.service.store, jobs.service.fleet.host_id());
    let mut outage = Outage::default();
    loop {
        let scope_ids = jobs.notifier.scopes.take().await;
        report(jobs, &mut outage, store.notify_of_scopes(host_id, &scope_ids).await);
        sleep(BETWEEN_SCOPES).await;
    }
}

fn report(jobs: &Jobs, outage: &mut Outage, result: Result<()>) {
    match result {
        Ok(()) => outage.works(&jobs.clock, "the other hosts are notified again"),
        Err(error) => outage.failed(&jobs.clock, &error, "the other hosts cannot be notified; they look every second"),
    }
}
