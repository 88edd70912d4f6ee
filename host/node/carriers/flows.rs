//! The flows of one agent's process, by their numbers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use culvert_wire::data2::datagram::Datagram;

use crate::lock;

/// The node's end of a flow.
pub(crate) trait FlowEnd: Send + Sync + 'static {
    /// Takes a datagram of the agent.
    fn take(&self, datagram: Datagram);
}

/// Flows by number. A number is used once only, so that a datagram of an old flow never reaches another visitor.
#[derive(Default)]
pub(crate) struct FlowNumbers {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    flows: HashMap<u64, Weak<dyn FlowEnd>>,
}

impl FlowNumbers {
    pub(crate) fn add<F: FlowEnd>(&self, new: impl FnOnce(u64) -> F) -> Arc<F> {
        let mut state = lock(&self.state);
        state.last += 1;
        let number = state.last;
        let flow = Arc::new(new(number));
        let known: Weak<F> = Arc::downgrade(&flow);
        state.flows.insert(number, known);
        flow
    }

    pub(super) fn find(&self, number: u64) -> Option<Arc<dyn FlowEnd>> {
        lock(&self.state).flows.get(&number).and_then(Weak::upgrade)
    }

    pub(crate) fn remove(&self, number: u64) {
        lock(&self.state).flows.remove(&number);
    }
}
