//! The settings that are to be the same at all hosts on a database.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::Config;

/// Bytes of a digest: it tells values apart, and proves nothing.
const DIGEST_BYTES: usize = 8;

impl Config {
    /// A digest of the value of each.
    pub(crate) fn shared_settings(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            ("node_authority_seconds", digest(self.node_authority_seconds)),
            ("node_replace", digest(self.node_replace)),
            ("policies.trusted_keys", digest(&self.policies.trusted_keys)),
            ("public_url", digest(&self.public_url)),
            ("rate_limit.per_day", digest(self.rate_limit.per_day)),
            ("rate_limit.per_minute", digest(self.rate_limit.per_minute)),
            ("trusted_proxies", digest(&self.trusted_proxies)),
            ("webhooks.allow_networks", digest(&self.webhooks.allow_networks)),
            ("webhooks.deny_networks", digest(&self.webhooks.deny_networks)),
        ])
    }
}

fn digest(value: impl Serialize) -> String {
    hex::encode(&Sha256::digest(json!(value).to_string())[..DIGEST_BYTES])
}
