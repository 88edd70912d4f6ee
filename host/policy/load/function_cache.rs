//! Compiled functions of a module, kept so that a change of its settings does not compile them again.
//!
//! Settings change the initial memory of a module and not its functions. wasmtime asks for each function by the digest of
//! what it compiles (its feature `incremental-cache`). About one in ten is compiled again all the same, because the
//! digests of cranelift 0.135 include exception tables of functions that were compiled before (`DataFlowGraph::clear`
//! leaves them).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use wasmtime::CacheStore;

/// Bytes of a digest.
const KEY: usize = 32;

type Key = [u8; KEY];

pub(crate) struct FunctionCache {
    /// For each function its digest, its length in 32 bits, little-endian, and its code.
    kept: Vec<u8>,
    places: HashMap<Key, Range<usize>>,
    used: Mutex<Used>,
}

/// What one compilation has asked for.
#[derive(Default)]
struct Used {
    found: HashSet<Key>,
    added: HashMap<Key, Vec<u8>>,
}

impl FunctionCache {
    /// Reads what [`FunctionCache::encode`] wrote; what follows an incomplete entry is left out.
    pub(crate) fn decode(kept: Vec<u8>) -> Self {
        let (mut places, mut at) = (HashMap::new(), 0);
        while let Some((key, place)) = entry(&kept, at) {
            at = place.end;
            places.insert(key, place);
        }
        Self { kept, places, used: Mutex::default() }
    }

    /// The functions that were used since it was read, if some of them are new.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let Used { found, added } = &*self.used();
        if added.is_empty() {
            return None;
        }
        let found = found.iter().map(|key| (key, &self.kept[self.places[key].clone()]));
        let all = found.chain(added.iter().map(|(key, code)| (key, code.as_slice())));
        let mut encoded = Vec::new();
        for (key, code) in all {
            encoded.extend_from_slice(key);
            encoded.extend_from_slice(&u32::try_from(code.len()).ok()?.to_le_bytes());
            encoded.extend_from_slice(code);
        }
        Some(encoded)
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry that begins there, and the place of its code.
fn entry(kept: &[u8], at: usize) -> Option<(Key, Range<usize>)> {
    let (key, rest) = kept.get(at..)?.split_first_chunk::<KEY>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    let start = at + KEY + 4;
    (length <= rest.len()).then(|| (*key, start..start + length))
}

impl CacheStore for FunctionCache {
    fn get(&self, key: &[u8]) -> Option<Cow<'_, [u8]>> {
        let key = Key::try_from(key).ok()?;
        let place = self.places.get(&key)?;
        self.used().found.insert(key);
        Some(Cow::Borrowed(&self.kept[place.clone()]))
    }

    fn insert(&self, key: &[u8], code: Vec<u8>) -> bool {
        let Ok(key) = Key::try_from(key) else { return false };
        self.used().added.insert(key, code);
        true
    }
}

impl fmt::Debug for FunctionCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FunctionCache({} functions)", self.places.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::engines;
    use crate::load::bundle;

    fn compiled(kept: Vec<u8>) -> (Arc<FunctionCache>, Vec<u8>) {
        let functions = Arc::new(FunctionCache::decode(kept));
        let engine = engines::compiling_for_shards(Some(functions.clone())).unwrap();
        let code = engine.precompile_component(bundle::find("team-role").unwrap()).unwrap();
        (functions, code)
    }

    #[test]
    fn second_compilation_takes_most_functions_from_cache() {
        let (first, code) = compiled(Vec::new());
        let kept = first.encode().unwrap();
        let (second, code_again) = compiled(kept.clone());
        assert!(code == code_again, "the same code");
        let Used { found, added } = &*second.used();
        assert_eq!(first.used().added.len(), second.places.len());
        assert!(found.len() > 100 && added.len() * 4 < found.len(), "{} found, {} added", found.len(), added.len());
        // Cut short, it holds the entries before the cut.
        let cut = FunctionCache::decode(kept[..kept.len() - 1].to_vec());
        assert_eq!(cut.places.len(), second.places.len() - 1);
    }
}
