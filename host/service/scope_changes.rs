//! Who waits for changes of a scope: open pages that show it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_wire::clock::{Clock, Moment};
use tokio::sync::watch;
use uuid::Uuid;

/// Least time between two changes that a watcher hears of: what comes in between is one change.
const BETWEEN: Duration = Duration::from_millis(500);

/// What pages of operators watch in place of a scope.
pub const INSTALLATION: Uuid = Uuid::nil();

/// The scopes that somebody watches.
#[derive(Default)]
pub struct ScopeChanges(Mutex<Watched>);

#[derive(Default)]
struct Watched {
    scopes: HashMap<Uuid, watch::Sender<()>>,
    is_closed: bool,
}

/// A scope, and what hears of its changes; none once it is dropped.
type OneScope = (Uuid, Option<watch::Receiver<()>>);

/// Hears of the changes of a scope, and of an account.
pub struct Watch {
    all: Arc<ScopeChanges>,
    clock: Clock,
    scope: OneScope,
    account: OneScope,
    /// When the last change was heard of.
    heard: Option<Moment>,
}

/// What a watcher hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Change,
    /// Nothing has changed for the time that it waits.
    Nothing,
}

impl ScopeChanges {
    /// Watches a scope, and the account of whoever looks at it.
    pub fn watch(self: &Arc<Self>, scope_id: Uuid, account_id: Uuid, clock: &Clock) -> Watch {
        let scope = (scope_id, Some(self.subscribe(scope_id)));
        let account = (account_id, Some(self.subscribe(account_id)));
        Watch { all: self.clone(), clock: clock.clone(), scope, account, heard: None }
    }

    /// Something of a scope has changed. It costs the same however many scopes are watched.
    pub fn tell(&self, scope_id: Uuid) {
        if let Some(sender) = self.watched().scopes.get(&scope_id) {
            sender.send_replace(());
        }
    }

    /// Something may have changed in each scope.
    pub fn tell_all(&self) {
        for sender in self.watched().scopes.values() {
            sender.send_replace(());
        }
    }

    /// The scopes that somebody watches.
    pub fn scopes(&self) -> Vec<Uuid> {
        self.watched().scopes.keys().copied().collect()
    }

    /// Ends all watching: the host stops.
    pub fn close(&self) {
        let mut watched = self.watched();
        watched.is_closed = true;
        watched.scopes.clear();
    }

    fn subscribe(&self, scope_id: Uuid) -> watch::Receiver<()> {
        let mut watched = self.watched();
        if watched.is_closed {
            return watch::channel(()).1;
        }
        watched.scopes.entry(scope_id).or_insert_with(|| watch::channel(()).0).subscribe()
    }

    /// Drops a receiver, and forgets its scope if nobody else watches it.
    fn forget(&self, (scope_id, receiver): &mut OneScope) {
        let scopes = &mut self.watched().scopes;
        drop(receiver.take());
        if scopes.get(scope_id).is_some_and(|sender| sender.receiver_count() == 0) {
            scopes.remove(scope_id);
        }
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Waits for the next change, so long at most. `None` when the host stops.
    pub async fn next(&mut self, at_most: Duration) -> Option<Heard> {
        let (Some(scope), Some(account)) = (&mut self.scope.1, &mut self.account.1) else { return None };
        if let Some(heard) = self.heard {
            // A receiver of its own, for what changes meanwhile is still to be heard of.
            let mut stop = scope.clone();
            tokio::select! {
                () = self.clock.until(heard.plus(BETWEEN)) => {}
                _ = stop.wait_for(|()| false) => return None,
            }
        }
        let changed = async {
            tokio::select! {
                changed = scope.changed() => changed,
                changed = account.changed() => changed,
            }
        };
        match self.clock.timeout(at_most, changed).await {
            Ok(Ok(())) => {
                scope.mark_unchanged();
                account.mark_unchanged();
                self.heard = Some(self.clock.moment());
                Some(Heard::Change)
            }
            Ok(Err(_)) => None,
            Err(_) => Some(Heard::Nothing),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.all.forget(&mut self.scope);
        self.all.forget(&mut self.account);
    }
}
