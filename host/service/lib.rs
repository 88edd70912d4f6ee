//! The host's use cases: one file a noun, one function a use case. HTTP, agents and background jobs call them, and
//! reach the store in no other way. The operator's commands write rows that no use case is for.
//!
//! A change on behalf of a caller passes [`gate`]: facts, three policy decisions, a permit; then [`commit`]: one
//! transaction with the change, its events and the stored response. [`jobs`] does what is due later.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod access;
pub mod accounts;
pub mod api_keys;
pub mod audit;
pub mod audit_log;
pub mod authentication;
pub mod call;
pub mod catalog;
mod certificates;
pub mod commit;
pub mod connected_agents;
pub mod connected_device;
mod consent;
pub mod cursors;
pub mod database_clock;
pub mod devices;
pub mod domains;
pub mod enrolment;
pub mod events;
mod failed_auth;
pub mod fleet;
pub mod forms;
pub mod gate;
pub mod idempotency;
pub mod installation;
pub mod invitations;
pub mod jobs;
pub mod keyed_mutex;
pub mod keys;
pub mod leases;
pub mod links;
pub mod liveness;
pub mod local_roots;
mod local_runs;
pub mod locked_accounts;
pub mod mails;
pub mod metrics;
pub mod moves;
pub mod nodes;
pub mod operations;
pub mod operators;
mod passwords;
pub mod payloads;
pub mod policy_modules;
pub mod policy_rollout;
pub mod ports;
mod presence;
pub mod rate_limits;
pub mod refusals;
mod resumption;
pub mod scope_changes;
pub mod search;
pub mod secrets;
pub mod sessions;
pub mod sign_ins;
pub mod signature_check;
mod startable;
pub mod teams;
pub mod temporary_tunnels;
mod traffic;
mod try_limiter;
pub mod tunnels;
pub mod usage;
pub mod webhooks;

use std::sync::Arc;

use culvert_domain::error::Result;
use culvert_domain::fleet::draining;
use culvert_domain::policy_fact::PolicyFacts;
use culvert_policy::serve::generations::Generations;
use culvert_store::Store;
use culvert_webhook::guard::Guard;
use culvert_wire::clock::Clock;
use tokio::sync::{Mutex, Semaphore};
use uuid::Uuid;

use fleet::Fleet;
use gate::{Gate, PinnedPolicies, RequestContext};
use keyed_mutex::KeyedMutex;
use liveness::Liveness;
use metrics::{FleetMetrics, NodeMetrics};
use nodes::Nodes;
use passwords::Passwords;
use policy_rollout::PolicyRollout;
use secrets::Secrets;

/// The parts that use cases share. The fields are private: other crates call use cases.
pub struct Service {
    store: Arc<Store>,
    secrets: Secrets,
    policies: PolicyRollout,
    gate: Gate,
    nodes: Arc<Nodes>,
    passwords: Passwords,
    locks: Locks,
    liveness: Liveness,
    fleet: Fleet,
}

/// Decisions that are made at once while their scopes are locked: a quarter of the connections to the database.
const DECIDING: usize = 4;

/// What takes turns.
struct Locks {
    /// Changes of the same scope, by requests and by agents.
    scopes: KeyedMutex<Uuid>,
    /// Requests with the same credential and idempotency key.
    idempotency: KeyedMutex<(Uuid, String)>,
    /// Decisions that are made while a scope is locked.
    deciding: Semaphore,
    /// Who moves tunnels from lost nodes.
    replacing: Mutex<()>,
}

impl Service {
    pub fn new(
        store: Arc<Store>,
        secrets: Secrets,
        policies: Arc<Generations>,
        guard: Arc<Guard>,
        metrics: (NodeMetrics, FleetMetrics),
        fleet: Fleet,
    ) -> Self {
        Self {
            gate: Gate::new(store.clone(), guard),
            nodes: Arc::new(Nodes::new(store.clone(), secrets.clone(), metrics)),
            passwords: Passwords::new(store.clock().clone()),
            locks: Locks {
                scopes: KeyedMutex::new(),
                idempotency: KeyedMutex::new(),
                deciding: Semaphore::new(DECIDING),
                replacing: Mutex::default(),
            },
            liveness: Liveness::new(store.clock().clone(), fleet.host_id()),
            fleet,
            store,
            secrets,
            policies: PolicyRollout::new(policies),
        }
    }

    pub fn clock(&self) -> &Clock {
        self.store.clock()
    }

    /// The devices that are connected to this host.
    /// The number of the key that signs the tokens of agents.
    pub fn lease_key_number(&self) -> u8 {
        self.secrets.current_number()
    }

    pub fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    /// Where this host stands among those on its database.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// # Errors
    ///
    /// Why this host decides nothing: the others may take it for dead, or it cannot load the policies that decide.
    pub fn check(&self) -> Result<()> {
        self.fleet.check()?;
        self.policies.check()
    }

    /// As [`Service::check`], for whoever can ask another host.
    ///
    /// # Errors
    ///
    /// That the host is about to be stopped as well.
    pub fn check_ready(&self) -> Result<()> {
        self.check()?;
        if self.fleet.drains() { Err(draining()) } else { Ok(()) }
    }

    /// The nodes that are connected to this host.
    pub fn nodes(&self) -> &Arc<Nodes> {
        &self.nodes
    }

    /// The policies as they are now. A request is decided by one set of them, from its beginning to its end. Policies
    /// are told about the request what they want to know.
    pub fn pin_policies(&self, request: impl FnOnce(PolicyFacts) -> RequestContext) -> PinnedPolicies {
        let pinned = self.policies.generations.pin();
        let context = request(pinned.wanted());
        PinnedPolicies::new(pinned.for_request(context.request_id), context)
    }

    /// The policies as they are now, for what no request asks.
    pub fn policies_now(&self) -> PinnedPolicies {
        self.pin_policies(|_| RequestContext { now: self.clock().now(), ..RequestContext::default() })
    }
}
