//! The data connections of agents (carriers), by the process of the agent that they belong to.
//!
//! A process has a pool of them as long as the node serves a session of it.

mod flows;
mod pool;
mod quic_streams;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use culvert_wire::clock::Clock;
use culvert_wire::data2::attach::DenialCode;
use culvert_wire::device_token::AgentProcess;

use super::authority::Authority;
use super::counts::Counts;
use super::lock;
pub(crate) use flows::FlowEnd;
pub(crate) use pool::{Carrier, Job, NextCarrier, Pool};

pub(crate) struct Carriers<J> {
    counts: Arc<Counts>,
    clock: Clock,
    authority: Arc<Authority>,
    processes: Mutex<HashMap<AgentProcess, Process<J>>>,
}

struct Process<J> {
    pool: Arc<Pool<J>>,
    /// The sessions of the process that the node serves.
    sessions: usize,
}

impl<J: Job> Carriers<J> {
    pub(crate) fn new(counts: Arc<Counts>, clock: Clock, authority: Arc<Authority>) -> Arc<Self> {
        Arc::new(Self { counts, clock, authority, processes: Mutex::default() })
    }

    /// The pool of a process, for one more session of it.
    pub(crate) fn join(self: &Arc<Self>, process: AgentProcess) -> Seat<J> {
        let mut processes = lock(&self.processes);
        let new = || Process { pool: Pool::new(self.counts.clone(), self.clock.clone()), sessions: 0 };
        let entry = processes.entry(process).or_insert_with(new);
        entry.sessions += 1;
        Seat { carriers: self.clone(), process, pool: entry.pool.clone() }
    }

    /// The pool that takes a new connection of a process.
    ///
    /// # Errors
    ///
    /// If the node serves no session of the process, or the pool is full.
    pub(crate) fn admit(&self, process: AgentProcess) -> Result<Arc<Pool<J>>, DenialCode> {
        let pool = self.find(process)?;
        if pool.is_full() { Err(DenialCode::Full) } else { Ok(pool) }
    }

    /// The pool of a process.
    ///
    /// # Errors
    ///
    /// If the node serves no session of the process, or does not know.
    pub(crate) fn find(&self, process: AgentProcess) -> Result<Arc<Pool<J>>, DenialCode> {
        let pool = lock(&self.processes).get(&process).map(|entry| entry.pool.clone());
        let is_unknown = || if self.is_lapsed() { DenialCode::Later } else { DenialCode::Fenced };
        pool.ok_or_else(is_unknown)
    }

    /// Whether the node does not know what it serves.
    pub(crate) fn is_lapsed(&self) -> bool {
        self.authority.is_lapsed()
    }

    /// A session has ended. With the last one, the pool closes its warm connections, and the agent learns by its next
    /// attach that it is fenced.
    fn leave(&self, process: AgentProcess) {
        let mut processes = lock(&self.processes);
        let Some(entry) = processes.get_mut(&process) else { return };
        entry.sessions -= 1;
        if entry.sessions == 0 {
            processes.remove(&process);
        }
    }
}

/// A session's place at the pool of its process. Dropping it ends the session's use of the pool.
pub(crate) struct Seat<J: Job> {
    carriers: Arc<Carriers<J>>,
    process: AgentProcess,
    pool: Arc<Pool<J>>,
}

impl<J: Job> Seat<J> {
    pub(crate) fn pool(&self) -> &Arc<Pool<J>> {
        &self.pool
    }
}

impl<J: Job> Drop for Seat<J> {
    fn drop(&mut self) {
        self.carriers.leave(self.process);
    }
}
