//! A mutex for each key: first come, first served; different keys do not wait for each other.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

pub struct KeyedMutex<K> {
    turns: Mutex<HashMap<K, Arc<tokio::sync::Mutex<()>>>>,
}

/// The lock on one key, held until it is dropped.
#[must_use]
pub struct KeyedMutexGuard(#[expect(dead_code, reason = "held for its lock")] OwnedMutexGuard<()>);

impl<K: Eq + Hash> KeyedMutex<K> {
    pub fn new() -> Self {
        Self { turns: Mutex::default() }
    }

    pub async fn lock(&self, key: K) -> KeyedMutexGuard {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            // Entries that nobody holds or waits for are removed, so that the map stays small.
            if turns.len() >= 1024 {
                turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            }
            turns.entry(key).or_default().clone()
        };
        KeyedMutexGuard(turn.lock_owned().await)
    }
}

impl<K: Eq + Hash> Default for KeyedMutex<K> {
    fn default() -> Self {
        Self::new()
    }
}
