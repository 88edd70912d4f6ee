//! Signing in at a provider of OpenID Connect (Core 1.0): the authorization code flow with PKCE (RFC 7636). The crate
//! `openidconnect` was weighed: it brings RSA and curves of its own beside aws-lc-rs, for two requests and one signature.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod fetch;
mod token;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use culvert_wire::clock::{Clock, Moment};
use jsonwebtoken::jwk::Jwk;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use url::Url;

pub use fetch::is_private;
pub use token::Identity;

/// How long what a provider says of itself is believed.
const FRESH: Duration = Duration::from_hours(1);
/// How often its keys are read anew for a token with an unknown one, at most.
const KEYS_AGAIN: Duration = Duration::from_mins(1);

/// A provider, and the client that it knows this host as.
#[derive(Clone, Debug)]
pub struct Settings {
    pub issuer: String,
    pub client_id: String,
    /// None for a public client.
    pub client_secret: Option<String>,
    /// Where the provider leads browsers back to.
    pub redirect_uri: String,
}

#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    #[error("the provider does not answer as it must: {0}")]
    Unreachable(String),
    #[error("{0}")]
    Refused(String),
}

/// A sign-in that has begun. It stays with the browser, sealed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pending {
    state: String,
    nonce: String,
    verifier: String,
}

/// What the provider sends a browser back with.
#[derive(Clone, Debug, Default)]
pub struct Callback {
    pub state: String,
    pub code: Option<String>,
    pub error: Option<String>,
    /// RFC 9207.
    pub issuer: Option<String>,
}

/// What a provider says of itself (OpenID Connect Discovery 1.0, section 3).
#[derive(Clone, Debug, Deserialize)]
struct Metadata {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
}

struct Known {
    metadata: Metadata,
    keys: Vec<Jwk>,
    read_at: Moment,
}

#[derive(Deserialize)]
struct Keys {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Tokens {
    id_token: String,
}

pub struct Provider {
    settings: Settings,
    http: reqwest::Client,
    clock: Clock,
    known: Mutex<Option<Arc<Known>>>,
}

impl Provider {
    /// # Errors
    ///
    /// If no HTTP client can be made.
    pub fn new(settings: Settings, clock: Clock) -> Result<Self, String> {
        Ok(Self { settings, http: fetch::client()?, clock, known: Mutex::new(None) })
    }

    pub fn issuer(&self) -> &str {
        &self.settings.issuer
    }

    /// Begins a sign-in: the URL that the browser is led to, and what is to be kept until it comes back. `is_fresh` has the
    /// provider ask the person once more.
    ///
    /// # Errors
    ///
    /// [`OidcError::Unreachable`].
    pub async fn begin(&self, is_fresh: bool) -> Result<(String, Pending), OidcError> {
        let known = self.known(FRESH).await?;
        let random = || URL_SAFE_NO_PAD.encode(self.clock.random::<32>());
        let pending = Pending { state: random(), nonce: random(), verifier: random() };
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&pending.verifier));
        let unreadable = |_| OidcError::Unreachable("its authorization_endpoint is no URL".into());
        let mut url = Url::parse(&known.metadata.authorization_endpoint).map_err(unreadable)?;
        url.query_pairs_mut().extend_pairs([
            ("response_type", "code"),
            ("scope", "openid email profile"),
            ("client_id", &self.settings.client_id),
            ("redirect_uri", &self.settings.redirect_uri),
            ("state", &pending.state),
            ("nonce", &pending.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        if is_fresh {
            url.query_pairs_mut().append_pair("prompt", "login").append_pair("max_age", "0");
        }
        Ok((url.into(), pending))
    }

    /// Takes what the provider sends a browser back with: exchanges the code, and checks who it says that it is.
    ///
    /// # Errors
    ///
    /// [`OidcError::Refused`] if it is not what was asked for, or not to be believed.
    pub async fn finish(&self, pending: &Pending, callback: &Callback) -> Result<Identity, OidcError> {
        let refused = |why: &str| OidcError::Refused(why.into());
        if callback.state != pending.state {
            return Err(refused("the state is another sign-in's"));
        }
        if callback.issuer.as_ref().is_some_and(|issuer| *issuer != self.settings.issuer) {
            return Err(refused("another provider has answered"));
        }
        if let Some(error) = &callback.error {
            return Err(OidcError::Refused(format!("the provider refuses: {}", short(error))));
        }
        let code = callback.code.as_deref().ok_or_else(|| refused("there is no code"))?;
        let known = self.known(FRESH).await?;
        let tokens: Tokens = self.exchange(&known.metadata, code, &pending.verifier).await?;
        let check = |keys: &[Jwk]| {
            token::check(&tokens.id_token, keys, &self.settings, &pending.nonce, self.clock.now().timestamp())
        };
        match check(&known.keys) {
            // The provider may have a new key since its keys were read.
            Err(token::Problem::UnknownKey) => {
                let anew = self.known(KEYS_AGAIN).await?;
                check(&anew.keys).map_err(|problem| OidcError::Refused(problem.to_string()))
            }
            checked => checked.map_err(|problem| OidcError::Refused(problem.to_string())),
        }
    }

    async fn exchange(&self, metadata: &Metadata, code: &str, verifier: &str) -> Result<Tokens, OidcError> {
        let Settings { client_id, client_secret, redirect_uri, .. } = &self.settings;
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri),
            ("code_verifier", verifier),
        ];
        let mut request = self.http.post(&metadata.token_endpoint);
        if let Some(secret) = client_secret {
            // Each is encoded before they are put together (RFC 6749, section 2.3.1).
            request = request.basic_auth(encoded(client_id), Some(encoded(secret)));
        } else {
            fields.push(("client_id", client_id));
        }
        let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(form);
        fetch::json(request).await.map_err(|problem| OidcError::Refused(format!("the code was not taken: {problem}")))
    }

    /// What is known of the provider, read anew if it is older than this.
    async fn known(&self, most: Duration) -> Result<Arc<Known>, OidcError> {
        let now = self.clock.moment();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known.filter(|known| now.since(known.read_at) < most) {
            return Ok(known);
        }
        let known = Arc::new(self.read(now).await.map_err(OidcError::Unreachable)?);
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known.clone());
        Ok(known)
    }

    async fn read(&self, read_at: Moment) -> Result<Known, String> {
        let issuer = self.settings.issuer.trim_end_matches('/');
        let metadata: Metadata =
            fetch::json(self.http.get(format!("{issuer}/.well-known/openid-configuration"))).await?;
        if metadata.issuer != self.settings.issuer {
            return Err(format!("it calls itself {}", short(&metadata.issuer)));
        }
        let endpoints = [&metadata.authorization_endpoint, &metadata.token_endpoint, &metadata.jwks_uri];
        if let Some(open) = endpoints.into_iter().find(|url| !is_private(url)) {
            return Err(format!("{} is not https://", short(open)));
        }
        let keys: Keys = fetch::json(self.http.get(&metadata.jwks_uri)).await?;
        // Keys of kinds that are not known here belong to others.
        let keys = keys.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok()).collect();
        Ok(Known { metadata, keys, read_at })
    }
}

fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// The begin of what somebody else says.
fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}
