//! The parts that the host's use cases share. HTTP, agents and background jobs get it through their own
//! contexts: `http::Api`, `gateway::Control`, `jobs::Jobs`.

pub mod enrolment;

use std::sync::Arc;

use culvert_policy::serve::generations::Generations;
use culvert_webhook::guard::Guard;
use culvert_wire::clock::Clock;
use uuid::Uuid;

use crate::gate::Gate;
use crate::keyed_mutex::KeyedMutex;
use crate::node::embedded::Nodes;
use crate::passwords::Passwords;
use crate::store::Store;

pub struct Service {
    pub store: Arc<Store>,
    pub policies: Arc<Generations>,
    pub gate: Gate,
    /// Looks up DNS names, and checks their addresses.
    pub guard: Arc<Guard>,
    pub nodes: Arc<Nodes>,
    pub passwords: Passwords,
    /// Serializes changes of the same scope, by requests and by agents.
    pub scope_locks: KeyedMutex<Uuid>,
    pub clock: Clock,
}
