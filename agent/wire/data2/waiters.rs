//! The visitors that wait for a connection of one agent, of whom the agent is told.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use super::attach::Wanted;

/// Visits that are woken when more visitors wait, at most: those that have looked last.
const MOST_WOKEN: usize = 8;

/// The node's count. Visits that the agent has not answered yet tell it of each new one.
#[derive(Debug, Default)]
pub struct Waiters(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    /// Of how many of them the agent was told.
    told: usize,
    visits: VecDeque<Waker>,
}

/// One that waits, until it is dropped.
#[derive(Debug)]
pub struct Waiter(Arc<Waiters>);

impl Waiters {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more waits.
    pub fn enter(self: &Arc<Self>) -> Waiter {
        let mut state = self.state();
        state.waiting += 1;
        let visits = std::mem::take(&mut state.visits);
        drop(state);
        visits.into_iter().for_each(Waker::wake);
        Waiter(self.clone())
    }

    /// How many wait.
    pub fn count(&self) -> usize {
        self.state().waiting
    }

    /// What the agent is to be told now. If it is nothing, the task is woken when one more waits.
    pub(super) fn untold(&self, context: &Context<'_>) -> Option<Wanted> {
        let mut state = self.state();
        if !state.visits.iter().any(|known| known.will_wake(context.waker())) {
            if state.visits.len() == MOST_WOKEN {
                state.visits.pop_front();
            }
            state.visits.push_back(context.waker().clone());
        }
        if state.waiting <= state.told {
            return None;
        }
        state.told = state.waiting;
        Some(Wanted { waiting: state.waiting })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waiting -= 1;
        state.told = state.told.min(state.waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_is_told_of_those_who_still_wait() {
        let (waiters, context) = (Arc::new(Waiters::default()), Context::from_waker(Waker::noop()));
        let told = || waiters.untold(&context).map(|wanted| wanted.waiting);
        assert_eq!(told(), None);
        let first = waiters.enter();
        assert_eq!(told(), Some(1));
        assert_eq!(told(), None, "it was told");
        drop((waiters.enter(), waiters.enter()));
        assert_eq!(told(), None, "they have gone");
        let _second = waiters.enter();
        assert_eq!(told(), Some(2));
        drop(first);
        let _third = waiters.enter();
        assert_eq!(told(), Some(2), "another one");
    }
}
