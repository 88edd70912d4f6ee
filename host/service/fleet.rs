//! Where this host stands among the hosts on its database, by its last heartbeat.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert_domain::error::Result;
use culvert_domain::fleet::{self, Cluster, WINDOW};
use culvert_store::fleet::Heartbeat;
use culvert_wire::clock::{Clock, Moment};
use tokio::sync::watch;
use uuid::Uuid;

use crate::metrics::FleetLevels;

pub struct Fleet {
    /// The same after every start.
    host_id: Uuid,
    clock: Clock,
    lost_nodes: LostNodes,
    /// Where agents find this host and the others.
    agent_urls: watch::Sender<Arc<[String]>>,
    /// None before the first heartbeat, and on a database that is one host's alone: it may do everything.
    membership: watch::Sender<Option<Membership>>,
    end_cause: watch::Sender<Option<EndCause>>,
}

/// Why a host ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// The database needs a newer version of this program.
    Outdated,
    /// The place that it took among the hosts is not its own any longer.
    Replaced,
    /// All hosts use the key of this number, which its file does not have.
    KeyMissing(u8),
}

/// What becomes of nodes whose host is not heard of any longer.
#[derive(Clone, Copy, Debug)]
pub struct LostNodes {
    /// How long they serve after its last heartbeat.
    pub after: Duration,
    /// Whether their tunnels go to other nodes then.
    pub are_replaced: bool,
}

#[derive(Clone, Debug)]
struct Membership {
    /// The last heartbeat; None before the first one.
    last: Option<Heartbeat>,
    /// When it was sent, by a clock that the sleep of the machine does not stop.
    sent: Moment,
    /// Whether the others have taken it for dead since.
    is_ended: bool,
}

impl Membership {
    fn says(&self, question: impl FnOnce(&Heartbeat) -> bool) -> bool {
        self.last.as_ref().is_some_and(question)
    }
}

impl Fleet {
    /// `agent_url` is where agents find this host. Where the process has taken its place among other hosts, at this moment since the machine was started, it needs heartbeats from then on.
    pub fn new(
        host_id: Uuid,
        agent_url: Option<String>,
        lost_nodes: LostNodes,
        clock: Clock,
        claimed: Option<Moment>,
    ) -> Self {
        let agent_urls = watch::Sender::new(agent_url.into_iter().collect());
        let membership = claimed.map(|sent| Membership { last: None, sent, is_ended: false });
        let (membership, end_cause) = (watch::Sender::new(membership), watch::Sender::new(None));
        Self { host_id, clock, lost_nodes, agent_urls, membership, end_cause }
    }

    pub fn host_id(&self) -> Uuid {
        self.host_id
    }

    /// Where agents find hosts, and when that changes.
    pub fn agent_urls(&self) -> watch::Receiver<Arc<[String]>> {
        self.agent_urls.subscribe()
    }

    /// Notes what came of a heartbeat that was sent at this moment since the machine was started.
    pub(crate) fn renewed(&self, heartbeat: &Heartbeat, sent: Moment) {
        let agent_urls = &heartbeat.agent_urls;
        self.agent_urls.send_if_modified(|known| {
            let changed = **known != **agent_urls;
            if changed {
                *known = agent_urls.as_slice().into();
            }
            changed
        });
        let membership = Membership { last: Some(heartbeat.clone()), sent, is_ended: false };
        // Two may be under way at once: the one that was sent last counts.
        self.membership.send_if_modified(|known| {
            let is_newer = known.as_ref().is_none_or(|known| known.sent <= sent);
            if is_newer {
                *known = Some(membership);
            }
            is_newer
        });
    }

    /// The others have taken this host for dead: it may do nothing until it has started anew.
    pub(crate) fn ended(&self) {
        self.membership.send_modify(|membership| {
            if let Some(membership) = membership {
                membership.is_ended = true;
            }
        });
    }

    /// Until when the nodes of this host may serve, since the machine was started; None without a limit.
    pub(crate) fn node_authority(&self) -> Option<Moment> {
        Some(self.membership.borrow().as_ref()?.sent.plus(self.lost_nodes.after))
    }

    /// Whether the nodes of this host may not serve any longer.
    pub fn is_node_authority_over(&self) -> bool {
        self.node_authority().is_some_and(|until| until <= self.clock.since_boot())
    }

    /// Whether the others take this host for alive. Outside of that time it grants and decides nothing.
    pub fn is_alive(&self) -> bool {
        let now = self.clock.since_boot();
        let membership = self.membership.borrow();
        membership.as_ref().is_none_or(|membership| !membership.is_ended && now < membership.sent.plus(WINDOW))
    }

    /// # Errors
    ///
    /// That the host may not answer, for the database has not heard of it for too long.
    pub fn check(&self) -> Result<()> {
        if self.is_alive() {
            return Ok(());
        }
        Err(fleet::away())
    }

    /// Whether there are other hosts on the database.
    pub fn has_others(&self) -> bool {
        self.says(|last| last.has_others)
    }

    /// Whether this host is to be stopped, and another one takes its work.
    pub fn drains(&self) -> bool {
        self.says(|last| last.drains)
    }

    /// Whether hosts have other settings than others, of those that are to be the same.
    pub(crate) fn settings_differ(&self) -> bool {
        self.says(|last| last.settings_differ)
    }

    /// Until when this host has its lease by its last heartbeat.
    pub(crate) fn lease_until(&self) -> Option<DateTime<Utc>> {
        Some(self.membership.borrow().as_ref()?.last.as_ref()?.lease_until)
    }

    /// Waits until this host drains, or does not any longer.
    pub(crate) async fn until_drains(&self, drains: bool) {
        let has_come = |membership: &Option<Membership>| {
            membership.as_ref().is_some_and(|it| it.says(|last| last.drains) == drains)
        };
        // The sender is this one.
        let _ = self.membership.subscribe().wait_for(has_come).await;
    }

    /// Has the process end.
    pub(crate) fn end_for(&self, cause: EndCause) {
        self.end_cause.send_replace(Some(cause));
    }

    /// Waits until the process must end.
    pub async fn until_it_ends(&self) -> EndCause {
        let mut causes = self.end_cause.subscribe();
        let cause = causes.wait_for(Option::is_some).await.map(|cause| *cause);
        match cause {
            Ok(Some(cause)) => cause,
            // The sender is this one.
            _ => std::future::pending().await,
        }
    }

    /// Whether it does what is done once for all hosts.
    pub fn leads(&self) -> bool {
        self.is_alive() && self.asks(|cluster| cluster.leads(self.host_id, self.clock.now()))
    }

    /// Whether it moves the tunnels of lost nodes to other ones.
    pub(crate) fn replaces_nodes(&self) -> bool {
        self.lost_nodes.are_replaced && self.leads()
    }

    /// Whether it ends what is connected to it and was silent for too long.
    pub fn may_end_own(&self) -> bool {
        self.is_alive() && self.asks(|cluster| !cluster.is_in_grace(self.clock.now()))
    }

    /// Whether it ends what was silent for too long at any host.
    pub fn may_end(&self) -> bool {
        self.is_alive() && self.asks(|cluster| cluster.may_end(self.host_id, self.clock.now()))
    }

    /// For `/metrics`. A host without others to hear of it is alive for good.
    pub fn levels(&self) -> FleetLevels {
        let now = self.clock.since_boot();
        let (sent, term) = match &*self.membership.borrow() {
            Some(Membership { last, sent, .. }) => (*sent, last.as_ref().map_or(0, |last| last.cluster.leader.term)),
            None => (now, 0),
        };
        FleetLevels {
            lease_seconds: if self.is_alive() { sent.plus(WINDOW).since(now).as_secs() } else { 0 },
            leads: self.leads(),
            term,
            in_grace: !self.asks(|cluster| !cluster.is_in_grace(self.clock.now())),
            drains: self.drains(),
            settings_differ: self.settings_differ(),
            waits_for_standby: self.says(|last| last.waits_for_standby),
        }
    }

    /// What the last heartbeat says.
    fn says(&self, question: impl FnOnce(&Heartbeat) -> bool) -> bool {
        self.membership.borrow().as_ref().is_some_and(|membership| membership.says(question))
    }

    /// A host that is alone is asked nothing.
    fn asks(&self, question: impl FnOnce(&Cluster) -> bool) -> bool {
        match &*self.membership.borrow() {
            None => true,
            Some(Membership { last: Some(last), .. }) => question(&last.cluster),
            Some(Membership { last: None, .. }) => question(&Cluster::default()),
        }
    }
}
