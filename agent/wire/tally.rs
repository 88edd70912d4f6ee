//! Counters by key. A key whose count reaches zero is removed.

use std::collections::HashMap;
use std::hash::Hash;

#[derive(Clone, Debug)]
pub struct Tally<K>(HashMap<K, usize>);

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Tally<K> {
    pub fn of(&self, key: &K) -> usize {
        self.0.get(key).copied().unwrap_or_default()
    }

    pub fn add(&mut self, key: K, count: usize) {
        *self.0.entry(key).or_default() += count;
    }

    pub fn end_one(&mut self, key: &K) {
        if let Some(count) = self.0.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(key);
            }
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }
}
