//! Counts in the store, where several hosts count requests of one key exactly. One statement of a host is under way at most;
//! what is asked meanwhile goes with the next one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert_domain::error::{Chain, Code, Error, Result};
use culvert_store::Store;
use culvert_store::rate::{Counted, Limits, Windows};
use culvert_store::statements::for_no_request;
use futures_util::FutureExt;
use futures_util::future::{self, BoxFuture, Either};
use hashlink::LruCache;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::RateLimitStatus;

/// Keys with a full window that are remembered. Beyond them, the one that was refused longest ago is asked for again.
const MAX_FULL: usize = 100_000;

/// How long before the end of a full window the store is asked again.
const NEAR_THE_END: Duration = Duration::from_secs(1);

/// Before it sends a statement for several requests, the task yields until so many yields in a row have brought no further one.
const QUIET_YIELDS: u32 = 8;
/// Most yields before a statement.
const MOST_YIELDS: u32 = 32;

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
    /// How many they are, over all keys.
    requests: usize,
    /// How many requests the last statement counted.
    last_batch: usize,
    is_under_way: bool,
    /// Windows that were full. They are until they end, for counts only grow.
    full: LruCache<Uuid, Windows>,
}

impl InStore {
    pub(super) fn new(limits: Limits) -> Self {
        let (waiting, full) = (Waiting::new(), LruCache::new(MAX_FULL));
        let state = State { waiting, requests: 0, last_batch: 0, is_under_way: false, full };
        Self { limits, state: Mutex::new(state) }
    }

    /// Counts a request, unless it is one too many.
    ///
    /// # Errors
    ///
    /// `invalid_api_key` if the key was revoked meanwhile; if the database fails.
    pub(super) async fn count(self: &Arc<Self>, store: &Arc<Store>, key_id: Uuid) -> Result<RateLimitStatus> {
        let (answer, mut counting) = {
            let mut state = self.state();
            if let Some(refused) = self.refused_before(&mut state, key_id, store.clock().now()) {
                return Ok(refused);
            }
            let (sender, answer) = oneshot::channel();
            state.waiting.entry(key_id).or_default().push(sender);
            state.requests += 1;
            let counts = !std::mem::replace(&mut state.is_under_way, true);
            (answer, Counting(counts.then(|| for_no_request(self.clone().count_waiting(store.clone())).boxed())))
        };
        counting.until(answer).await.unwrap_or_else(|_| Err(Error::internal("the counting of requests has ended")))
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
        let _reset = ResetOnPanic(&self);
        loop {
            self.gather().await;
            let waiting = {
                let mut state = self.state();
                state.is_under_way = !state.waiting.is_empty();
                if !state.is_under_way {
                    return;
                }
                state.last_batch = std::mem::take(&mut state.requests);
                std::mem::take(&mut state.waiting)
            };
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

    /// Lets requests that have arrived join the batch, where several ask at once: fewer statements count them.
    async fn gather(&self) {
        let (mut before, mut quiet) = (0, 0);
        for _ in 0..MOST_YIELDS {
            let State { requests, last_batch, .. } = *self.state();
            quiet = if requests == before { quiet + 1 } else { 0 };
            if quiet == QUIET_YIELDS || requests.max(last_batch) <= 1 {
                return;
            }
            before = requests;
            tokio::task::yield_now().await;
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

/// The future that counts for all requests that wait. The task of the first one polls it, which saves two switches of threads. When
/// that request is answered, or is dropped because its client has gone, the future moves to a task of its own.
struct Counting(Option<BoxFuture<'static, ()>>);

impl Counting {
    async fn until<T>(&mut self, answer: impl Future<Output = T> + Unpin) -> T {
        let Some(counting) = &mut self.0 else { return answer.await };
        match future::select(answer, counting).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), answer)) => {
                self.0 = None;
                answer.await
            }
        }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        if let Some(counting) = self.0.take() {
            tokio::spawn(counting);
        }
    }
}

/// If counting panics, those that wait get an error, and the next request begins to count again.
struct ResetOnPanic<'a>(&'a InStore);

impl Drop for ResetOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.state();
            (state.is_under_way, state.requests) = (false, 0);
            state.waiting.clear();
        }
    }
}

fn fail(waiting: Waiting, error: &Error) {
    tracing::warn!(error = %Chain(error), "requests could not be counted");
    for answer in waiting.into_values().flatten() {
        let copy = Error::new(error.code.clone(), error.detail.clone());
        let _ = answer.send(Err(Error { retry_after: error.retry_after, ..copy }));
    }
}
