//! Settings of providers at which people sign in (OpenID Connect).

use std::fs;
use std::path::PathBuf;

use culvert_oidc::is_private;
use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Characters of a name.
const NAME: usize = 50;
/// Providers, at most.
pub(super) const MOST: usize = 10;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OidcConfig {
    /// What people call it.
    pub name: String,
    /// Its URL, exactly as it calls itself.
    pub issuer: String,
    pub client_id: String,
    /// A file with the client's secret; none for a public client.
    pub client_secret_file: Option<PathBuf>,
    /// Whether an account with an address that the provider has verified is theirs.
    #[serde(default)]
    pub trust_email: bool,
}

impl OidcConfig {
    pub(super) fn check(&self, setting: &str) -> Result<(), ConfigError> {
        let fail = |field: &str, problem: &str| Err(ConfigError::new(&format!("{setting}.{field}"), problem));
        let is_named = (1..=NAME).contains(&self.name.trim().chars().count()) && !self.name.contains(char::is_control);
        if !is_named {
            return fail("name", "must have 1 to 50 characters");
        }
        if !is_bare(&self.issuer) || !is_private(&self.issuer) {
            return fail("issuer", "must be an https:// URL; http:// on a loopback address alone");
        }
        if self.client_id.trim().is_empty() {
            return fail("client_id", "must not be empty");
        }
        self.secret().map(drop).map_err(|problem| ConfigError::new(&format!("{setting}.client_secret_file"), problem))
    }

    /// The client's secret, without the line break at its end.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or is empty.
    pub fn secret(&self) -> Result<Option<String>, String> {
        let Some(file) = &self.client_secret_file else { return Ok(None) };
        let secret = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let secret = secret.trim_end_matches(['\r', '\n']);
        if secret.is_empty() { Err(format!("{}: it is empty", file.display())) } else { Ok(Some(secret.to_owned())) }
    }
}

/// Whether a URL has no more than a scheme, a host and a path.
fn is_bare(issuer: &str) -> bool {
    reqwest::Url::parse(issuer)
        .is_ok_and(|url| url.query().is_none() && url.fragment().is_none() && url.username().is_empty())
}
