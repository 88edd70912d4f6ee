//! The ID token: who somebody is, signed by the provider (OpenID Connect Core 1.0, section 3.1.3.7).

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;

use crate::Settings;

/// What providers sign with. `none`, and MACs with a secret that is no key, are not among them.
const ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
/// Seconds that clocks may differ.
const LEEWAY: i64 = 60;
/// Characters of a subject (section 2).
const SUBJECT: usize = 255;

/// Who somebody is at a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub subject: String,
    pub email: Option<String>,
    /// Whether the provider has seen that the address is theirs.
    pub email_verified: bool,
    /// When the person has shown who it is, in seconds since the Unix epoch.
    pub authenticated_at: Option<i64>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error("the token is signed with a key that the provider does not have")]
    UnknownKey,
    #[error("the token is none, or its signature is not right: {0}")]
    Signature(#[from] jsonwebtoken::errors::Error),
    #[error("the token is signed with {0:?}, which is not accepted")]
    Algorithm(Algorithm),
    #[error("the token's {0} is not right")]
    Claim(&'static str),
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    aud: Recipients,
    azp: Option<String>,
    exp: f64,
    iat: f64,
    nonce: Option<String>,
    auth_time: Option<f64>,
    email: Option<String>,
    #[serde(default)]
    email_verified: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Recipients {
    One(String),
    Many(Vec<String>),
}

pub(crate) fn check(
    token: &str,
    keys: &[Jwk],
    settings: &Settings,
    nonce: &str,
    now: i64,
) -> Result<Identity, Problem> {
    let header = decode_header(token)?;
    if !ALGORITHMS.contains(&header.alg) {
        return Err(Problem::Algorithm(header.alg));
    }
    let is_wanted = |key: &&Jwk| header.kid.is_none() || key.common.key_id == header.kid;
    let mut validation = Validation::new(header.alg);
    // What stands in it is checked below, by the host's clock.
    (validation.validate_exp, validation.validate_aud) = (false, false);
    validation.required_spec_claims.clear();
    let mut problem = Problem::UnknownKey;
    for key in keys.iter().filter(is_wanted) {
        let decoded = DecodingKey::from_jwk(key).and_then(|key| decode::<Claims>(token, &key, &validation));
        match decoded {
            Ok(decoded) => return identity(decoded.claims, settings, nonce, now),
            Err(error) => problem = error.into(),
        }
    }
    Err(problem)
}

fn identity(claims: Claims, settings: &Settings, nonce: &str, now: i64) -> Result<Identity, Problem> {
    let is_for_us = match &claims.aud {
        Recipients::One(one) => *one == settings.client_id,
        // With several, the token must have been made for this client.
        Recipients::Many(many) => {
            many.contains(&settings.client_id) && (many.len() == 1 || claims.azp.as_ref() == Some(&settings.client_id))
        }
    };
    let checks = [
        ("issuer", claims.iss == settings.issuer),
        ("audience", is_for_us),
        ("authorized party", claims.azp.as_ref().is_none_or(|party| *party == settings.client_id)),
        ("expiry", claims.exp as i64 > now - LEEWAY),
        ("time of issue", (claims.iat as i64) < now + LEEWAY),
        ("nonce", claims.nonce.as_deref() == Some(nonce)),
        ("subject", !claims.sub.is_empty() && claims.sub.chars().count() <= SUBJECT),
    ];
    if let Some((wrong, _)) = checks.into_iter().find(|(_, holds)| !holds) {
        return Err(Problem::Claim(wrong));
    }
    Ok(Identity {
        subject: claims.sub,
        email_verified: claims.email_verified == true || claims.email_verified == "true",
        email: claims.email,
        authenticated_at: claims.auth_time.map(|at| at as i64),
    })
}
