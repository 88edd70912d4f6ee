//! The node's wish for more connections, until a visit that has just begun tells the agent of it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use super::attach::Wanted;

/// How many visitors wait for a connection of one agent. Those that begin to wait change it, and the visits that the agent
/// has not answered yet send it.
#[derive(Debug, Default)]
pub struct Wish(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Not sent yet.
    waiting: usize,
    /// The visit that has looked last.
    visit: Option<Waker>,
}

impl Wish {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many visitors wait now.
    pub fn set(&self, waiting: usize) {
        let mut state = self.state();
        state.waiting = waiting;
        let visit = state.visit.take();
        drop(state);
        visit.into_iter().for_each(Waker::wake);
    }

    /// What is to be sent now. If it is nothing, the task is woken as soon as there is something.
    pub(super) fn take(&self, context: &Context<'_>) -> Option<Wanted> {
        let mut state = self.state();
        let waiting = std::mem::take(&mut state.waiting);
        state.visit = Some(context.waker().clone());
        (waiting > 0).then_some(Wanted { waiting })
    }
}
