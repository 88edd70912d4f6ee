//! The settings that are to be the same at all hosts on a database.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::Config;

/// Characters of a value that operators are shown. Of a longer one they are shown a digest.
const SHOWN: usize = 80;
/// Bytes of a digest: it tells values apart, and proves nothing.
const DIGEST_BYTES: usize = 8;

impl Config {
    /// The value of each, as JSON, or a digest of a long one.
    pub(crate) fn shared_settings(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            ("node_authority_seconds", shown(self.node_authority_seconds)),
            ("node_replace", shown(self.node_replace)),
            ("policies.trusted_keys", shown(&self.policies.trusted_keys)),
            ("public_url", shown(&self.public_url)),
            ("rate_limit.per_day", shown(self.rate_limit.per_day)),
            ("rate_limit.per_minute", shown(self.rate_limit.per_minute)),
            ("trusted_proxies", shown(&self.trusted_proxies)),
            ("webhooks.allow_networks", shown(&self.webhooks.allow_networks)),
            ("webhooks.deny_networks", shown(&self.webhooks.deny_networks)),
        ])
    }
}

fn shown(value: impl Serialize) -> String {
    let value = json!(value).to_string();
    if value.chars().count() <= SHOWN {
        return value;
    }
    format!("a value with the digest {}", hex::encode(&Sha256::digest(value)[..DIGEST_BYTES]))
}
