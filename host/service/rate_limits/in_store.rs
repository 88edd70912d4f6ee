//! Counts in the store, where several hosts count requests of one key exactly. One statement of a host is under way at most;
//! what is asked meanwhile goes with the next one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert_domain::error::{Chain, Code, Error, Result};
use culvert_store::Store;
use culvert_store::rate::{Counted, Limits, Windows};
use hashlink::LruCache;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::RateLimitStatus;

/// Keys with a full window that are remembered. Beyond them, the one that was refused longest ago is asked for again.
const MAX_FULL: usize = 100_000;

/// How long before the end of a full window the store is asked again.
const NEAR_THE_END: Duration = Duration::from_secs(1);

type Answer = oneshot::Sender<Result<RateLimitStatus>>;
/// Who waits, by key.
type Waiting = BTreeMap<Uuid, Vec<Answer>>;

pub(super) struct InStore {
    limits: Limits,
    state: Mutex<State>,
}

struct State {
    /// Who waits for the next statement.
    waiting: Waiting,
    is_under_way: bool,
    /// Windows that were full. They are until they end, for counts only grow.
    full: LruCache<Uuid, Windows>,
}

impl InStore {
    pub(super) fn new(limits: Limits) -> Self {
        let state = State { waiting: Waiting::new(), is_under_way: false, full: LruCache::new(MAX_FULL) };
        Self { limits, state: Mutex::new(state) }
    }

    /// Counts a request, unless it is one too many.
    ///
    /// # Errors
    ///
    /// `invalid_api_key` if the key was revoked meanwhile; if the database fails.
    pub(super) async fn count(self: &Arc<Self>, store: &Arc<Store>, key_id: Uuid) -> Result<RateLimitStatus> {
        let answer = {
            let mut state = self.state();
            if let Some(refused) = self.refused_before(&mut state, key_id, store.clock().now()) {
                return Ok(refused);
            }
            let (sender, answer) = oneshot::channel();
            state.waiting.entry(key_id).or_default().push(sender);
            if !std::mem::replace(&mut state.is_under_way, true) {
                // Not by this request, whose client may go.
                tokio::spawn(self.clone().count_waiting(store.clone()));
            }
            answer
        };
        answer.await.unwrap_or_else(|_| Err(Error::internal("the counting of requests has ended")))
    }

    /// The refusal of a key whose window is known to be full. Near its end the store is asked, whose clock counts.
    fn refused_before(&self, state: &mut State, key_id: Uuid, now: DateTime<Utc>) -> Option<RateLimitStatus> {
        let windows = *state.full.get(&key_id)?;
        let refused = RateLimitStatus::refused(self.limits, windows.running(now), now);
        let refused = refused.filter(|status| status.refused.is_some_and(|(_, wait)| wait > NEAR_THE_END));
        if refused.is_none() {
            state.full.remove(&key_id);
        }
        refused
    }

    /// Counts until nobody waits.
    async fn count_waiting(self: Arc<Self>, store: Arc<Store>) {
        loop {
            let waiting = {
                let mut state = self.state();
                state.is_under_way = !state.waiting.is_empty();
                std::mem::take(&mut state.waiting)
            };
            if waiting.is_empty() {
                return;
            }
            let new = self.count_all(&store, waiting).await;
            if new.is_empty() {
                continue;
            }
            let key_ids: Vec<Uuid> = new.keys().copied().collect();
            if let Err(error) = store.make_windows(&key_ids).await {
                fail(new, &error);
                continue;
            }
            // A key that has no windows now was removed.
            for answer in self.count_all(&store, new).await.into_values().flatten() {
                let _ = answer.send(Err(Error::of(Code::InvalidApiKey)));
            }
        }
    }

    /// Counts requests, and returns those of keys that have no windows.
    async fn count_all(&self, store: &Store, mut waiting: Waiting) -> Waiting {
        let asked: Vec<(Uuid, usize)> = waiting.iter().map(|(key_id, answers)| (*key_id, answers.len())).collect();
        match store.count_requests(&asked, self.limits).await {
            Ok(counted) => {
                for (key_id, counted) in counted {
                    self.answer(key_id, waiting.remove(&key_id).unwrap_or_default(), counted);
                }
                waiting
            }
            Err(error) => {
                fail(waiting, &error);
                Waiting::new()
            }
        }
    }

    fn answer(&self, key_id: Uuid, answers: Vec<Answer>, counted: Counted) {
        let Counted { admitted, windows, at } = counted;
        let refused = RateLimitStatus::refused(self.limits, windows, at);
        if answers.len() > admitted as usize {
            self.state().full.insert(key_id, windows);
        }
        for (number, answer) in (1..).zip(answers) {
            let status = match refused {
                Some(refused) if number > admitted => refused,
                _ => RateLimitStatus::of(self.limits, windows.less(admitted.saturating_sub(number))),
            };
            // A client may have gone.
            let _ = answer.send(Ok(status));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fail(waiting: Waiting, error: &Error) {
    tracing::warn!(error = %Chain(error), "requests could not be counted");
    for answer in waiting.into_values().flatten() {
        let copy = Error::new(error.code.clone(), error.detail.clone());
        let _ = answer.send(Err(Error { retry_after: error.retry_after, ..copy }));
    }
}
