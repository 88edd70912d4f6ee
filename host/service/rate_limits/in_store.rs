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

/// How often it is looked without finding a further request before the statement is sent; and how often at most. Each time what
/// is ready runs.
const QUIET_TURNS: u32 = 8;
const MOST_TURNS: u32 = 32;

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
    /// How many they are.
    asked: usize,
    /// How many requests the last statement was for.
    last_asked: usize,
    is_under_way: bool,
    /// Windows that were full. They are until they end, for counts only grow.
    full: LruCache<Uuid, Windows>,
}

impl InStore {
    pub(super) fn new(limits: Limits) -> Self {
        let (waiting, full) = (Waiting::new(), LruCache::new(MAX_FULL));
        let state = State { waiting, asked: 0, last_asked: 0, is_under_way: false, full };
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
            state.asked += 1;
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
        let _panics = FailIfPanics(&self);
        loop {
            self.gather().await;
            let waiting = {
                let mut state = self.state();
                state.is_under_way = !state.waiting.is_empty();
                if !state.is_under_way {
                    return;
                }
                state.last_asked = std::mem::take(&mut state.asked);
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

    /// Where several ask at once, those whose requests have come by now ask first, so that fewer statements count them.
    async fn gather(&self) {
        let (mut asked, mut quiet) = (0, 0);
        for _ in 0..MOST_TURNS {
            let State { asked: now, last_asked, .. } = *self.state();
            quiet = if now == asked { quiet + 1 } else { 0 };
            if quiet == QUIET_TURNS || now.max(last_asked) <= 1 {
                return;
            }
            asked = now;
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

/// Counts for all that wait, as part of the first of them: a task of its own would cost two changes of threads. It becomes one
/// when that request has its answer, or its client goes.
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

/// Answers those that wait where counting panics, so that the next one begins anew.
struct FailIfPanics<'a>(&'a InStore);

impl Drop for FailIfPanics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.state();
            (state.is_under_way, state.asked) = (false, 0);
            // Without their senders they get an error.
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
