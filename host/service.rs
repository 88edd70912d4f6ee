//! The parts that the host's use cases share. HTTP, agents and background jobs get it through their own
//! contexts: `http::Api`, `gateway::Control`, `jobs::Jobs`.

pub mod access;
pub mod commit;
pub mod consent;
pub mod devices;
pub mod domains;
pub mod enrolment;
pub mod events;
pub mod idempotency;
pub mod keys;
pub mod local_runs;
pub mod moves;
pub mod nodes;
pub mod operations;
pub mod ports;
pub mod presence;
pub mod resumption;
pub mod sessions;
pub mod startable;
pub mod traffic;
pub mod tunnels;
pub mod webhooks;

use std::sync::Arc;

use culvert_policy::serve::generations::Generations;
use culvert_webhook::guard::Guard;
use culvert_wire::clock::Clock;
use uuid::Uuid;

use crate::gate::Gate;
use crate::keyed_mutex::KeyedMutex;
use crate::passwords::Passwords;
use crate::secret::Secrets;
use culvert_store::Store;
use nodes::Nodes;

pub struct Service {
    pub store: Arc<Store>,
    pub secrets: Secrets,
    pub policies: Arc<Generations>,
    pub gate: Gate,
    /// Looks up DNS names, and checks their addresses.
    pub guard: Arc<Guard>,
    pub nodes: Arc<Nodes>,
    pub passwords: Passwords,
    /// Serializes changes of the same scope, by requests and by agents.
    pub scope_locks: KeyedMutex<Uuid>,
}

impl Service {
    pub fn clock(&self) -> &Clock {
        self.store.clock()
    }
}
