//! When keys were last used. The store learns of it once a minute.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use culvert_domain::error::Result;
use culvert_store::Store;
use culvert_store::rate::MINUTE;
use hashlink::LruCache;
use uuid::Uuid;

/// Keys of which it is remembered when the store was told. Of others it is told again.
const MAX_KEYS: usize = 100_000;

pub(super) struct KeyUses(Mutex<Uses>);

struct Uses {
    /// In the order of their ids, in which all hosts write them: none waits for another in a circle.
    unsaved: BTreeMap<Uuid, DateTime<Utc>>,
    saved: LruCache<Uuid, DateTime<Utc>>,
}

impl Default for KeyUses {
    fn default() -> Self {
        Self(Mutex::new(Uses { unsaved: BTreeMap::new(), saved: LruCache::new(MAX_KEYS) }))
    }
}

impl KeyUses {
    pub(super) fn note(&self, key_id: Uuid, now: DateTime<Utc>) {
        let mut uses = self.uses();
        if uses.saved.get(&key_id).is_none_or(|saved| now - *saved >= MINUTE) {
            uses.unsaved.insert(key_id, now);
        }
    }

    /// # Errors
    ///
    /// If the database fails. Nothing is forgotten then.
    pub(super) async fn save(&self, store: &Store) -> Result<()> {
        let unsaved = std::mem::take(&mut self.uses().unsaved);
        if unsaved.is_empty() {
            return Ok(());
        }
        let all = unsaved.clone();
        let saved = store.write(None, move |write| {
            Box::pin(async move {
                for (key_id, used_at) in all {
                    write.record_key_use(key_id, used_at).await?;
                }
                Ok(())
            })
        });
        let saved = saved.await;
        let mut uses = self.uses();
        for (key_id, used_at) in unsaved {
            if saved.is_ok() {
                uses.saved.insert(key_id, used_at);
            } else {
                uses.unsaved.entry(key_id).or_insert(used_at);
            }
        }
        saved
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
