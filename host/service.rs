//! What the host's use cases stand on. Whoever serves HTTP, agents or time gets it through a context of their
//! own: `http::Api`, `gateway::Control`, `jobs::Jobs`.

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
    /// Looks up names, and judges their addresses.
    pub guard: Arc<Guard>,
    pub nodes: Arc<Nodes>,
    pub passwords: Passwords,
    /// Requests and agents that change the same scope, one after the other.
    pub scope_locks: KeyedMutex<Uuid>,
    pub clock: Clock,
}
