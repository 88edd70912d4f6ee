//! The hosts on one database: which are alive, which one leads, and when nothing may be taken for dead. All times are the
//! database's. The rules are here, so that what the store applies to its rows is what the tests explore.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::error::{Code, Error};
use super::string_enum::string_enum;

/// How often a host says that it is alive.
pub const HEARTBEAT_EVERY: Duration = Duration::from_secs(3);
/// How often after a heartbeat that failed.
pub const RETRY_EVERY: Duration = Duration::from_secs(1);
/// How long the database has for a heartbeat.
pub const HEARTBEAT_WAIT: Duration = Duration::from_secs(2);
/// How long a host is taken for alive after a heartbeat.
pub const LEASE: TimeDelta = TimeDelta::seconds(15);
/// How long a host takes itself for alive, by its own clock, from when it sent its heartbeat. The second less is for clocks
/// that do not run alike.
pub const WINDOW: Duration = Duration::from_secs(14);
/// If no host was heard of for longer, the database was away: what could not be renewed meanwhile is not over.
pub const OUTAGE: TimeDelta = TimeDelta::seconds(10);
/// How long after an outage nothing is taken for dead: a lease of an agent, and what a silent device has to come back.
pub const GRACE: TimeDelta = TimeDelta::seconds(75);
/// How long after its lease a host is ended: it renewed its agents' leases for the last time when its own ended, and they
/// last 30 seconds.
pub const END_AFTER: TimeDelta = TimeDelta::seconds(33);
/// How long the nodes of a host serve after its last heartbeat that the database has heard of, if the operator does not say.
pub const AUTHORITY: Duration = Duration::from_mins(10);
/// How much longer the others wait for them: clocks do not run alike, a failover may have lost a heartbeat, and the database's
/// time may have jumped by less than an [`OUTAGE`].
pub const AUTHORITY_MARGIN: TimeDelta = TimeDelta::seconds(15);
/// How long a leader that took over from one that was lost ends nothing.
pub const TAKEOVER: TimeDelta = TimeDelta::seconds(30);

string_enum! {
    /// What there is for a host.
    ForHost {
        /// Hints for the agents that are connected to it.
        Agents "agents",
        /// Changes of what its nodes are to serve.
        Nodes "nodes",
        /// Requests to its nodes.
        Requests "requests",
        /// Answers to what it has asked.
        Answers "answers",
        /// Another generation of the policies, or one that is proposed.
        Policies "policies",
    }
}

string_enum! {
    /// Whether a host runs, as its database knows it.
    HostState {
        Alive "alive",
        /// Alive, but other hosts are to take its work: it is to be stopped.
        Draining "draining",
        /// It was not heard of for the length of its lease.
        Silent "silent",
        Ended "ended",
    }
}

impl HostState {
    /// Whether it is heard of.
    pub fn is_alive(self) -> bool {
        matches!(self, Self::Alive | Self::Draining)
    }
}

/// What all hosts on a database share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cluster {
    pub leader: Leader,
    /// The newest heartbeat of any host; None before the first one.
    pub alive_at: Option<DateTime<Utc>>,
    /// Until then, nothing is ended for its silence.
    pub grace_until: DateTime<Utc>,
}

/// Who does what is done once for all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Leader {
    pub host_id: Option<Uuid>,
    /// Raised with each other leader.
    pub term: u64,
    pub until: DateTime<Utc>,
    /// From when on it ends what is due.
    pub ends_from: DateTime<Utc>,
}

/// A host, as the others see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostLease {
    pub id: Uuid,
    pub until: DateTime<Utc>,
    /// It was taken for dead, or has stopped. It must start anew.
    pub ended: bool,
    /// Another host is to lead in its place.
    pub drains: bool,
}

/// What came of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    Renewed,
    /// The host was ended meanwhile. Nothing has changed.
    Ended,
}

impl Cluster {
    /// A host says that it is alive.
    pub fn heartbeat(&mut self, host: &mut HostLease, now: DateTime<Utc>) -> Beat {
        if host.ended {
            return Beat::Ended;
        }
        host.until = now + LEASE;
        // A time that has jumped says as little of what was silent as none.
        if self.alive_at.is_some_and(|alive_at| (now - alive_at).abs() > OUTAGE) {
            self.grace_until = now + GRACE;
        }
        self.alive_at = Some(now);
        if host.drains {
            self.leader.release(host.id, now);
        } else {
            self.leader.take_or_keep(host, now);
        }
        Beat::Renewed
    }

    /// The database is an older state of itself, as after a failover that has lost its last writes: what was renewed since then
    /// is not over.
    pub fn went_back(&mut self, now: DateTime<Utc>) {
        self.grace_until = now + GRACE;
    }

    /// A host stops: it will not be waited for.
    pub fn stop(&mut self, host: &mut HostLease, now: DateTime<Utc>) {
        (host.until, host.ended) = (now, true);
        self.leader.release(host.id, now);
    }

    /// Whether nothing may be taken for dead now.
    pub fn is_in_grace(&self, now: DateTime<Utc>) -> bool {
        now < self.grace_until
    }

    /// Whether this host may end what other hosts were to keep alive.
    pub fn may_end(&self, host_id: Uuid, now: DateTime<Utc>) -> bool {
        self.leads(host_id, now) && !self.is_in_grace(now) && self.leader.ends_from <= now
    }

    /// Whether the nodes of a host may serve, although it may not be heard of any longer. Their authority is counted from its
    /// last heartbeat. A grace begins where the database was away, or its time has jumped: then nobody knows how long ago that
    /// was, and the whole authority is waited for from then on. It is 0 where the host has stopped.
    pub fn nodes_may_serve(&self, host: &HostLease, authority: TimeDelta, now: DateTime<Utc>) -> bool {
        let of_heartbeat = host.until - LEASE + authority + AUTHORITY_MARGIN;
        let of_grace = self.grace_until + (authority + AUTHORITY_MARGIN - GRACE).max(TimeDelta::zero());
        now < of_heartbeat || (authority > TimeDelta::zero() && now < of_grace)
    }

    pub fn leads(&self, host_id: Uuid, now: DateTime<Utc>) -> bool {
        self.leader.host_id == Some(host_id) && now < self.leader.until
    }
}

/// What a host answers that the others do not take for alive.
pub fn away() -> Error {
    let away = "This host does not reach its database right now; try again.";
    Error::new(Code::ServiceUnavailable, away).after(HEARTBEAT_EVERY)
}

/// What a host that drains says to those who ask whether it is ready.
pub fn draining() -> Error {
    Error::new(Code::ServiceUnavailable, "This host is about to be stopped; ask another one.")
}

/// A host whose lease was over at this time is dead now.
pub fn dead_since(now: DateTime<Utc>) -> DateTime<Utc> {
    now - END_AFTER
}

impl Leader {
    fn take_or_keep(&mut self, host: &HostLease, now: DateTime<Utc>) {
        if self.until <= now {
            let was_released = self.host_id.is_none();
            self.ends_from = if was_released { now } else { now + TAKEOVER };
            (self.host_id, self.term) = (Some(host.id), self.term + 1);
        }
        if self.host_id == Some(host.id) {
            self.until = now + LEASE;
        }
    }

    fn release(&mut self, host_id: Uuid, now: DateTime<Utc>) {
        if self.host_id == Some(host_id) {
            (self.host_id, self.until) = (None, now);
        }
    }
}
