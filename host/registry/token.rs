//! How a registry lets in: by a token that it names the place of, or by the password itself (distribution specification of
//! docker, "Token authentication").
//!
//! oci-client does the same, and reads the answer however large it is.

use http_auth::parse_challenges;
use oci_client::secrets::RegistryAuth;
use reqwest::header::WWW_AUTHENTICATE;
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;

use crate::download::bounded;
use crate::registry::{RegistryError, chain};

/// Most bytes of the answer with a token.
const ANSWER_LIMIT: usize = 64 * 1024;

#[derive(Deserialize)]
struct Answer {
    #[serde(alias = "access_token")]
    token: String,
}

/// What to show a registry for these actions (`pull`, or `pull,push`) on a repository. `known` is what docker knows.
///
/// # Errors
///
/// If the registry does not answer, or gives no token.
pub(crate) async fn of(
    client: &Client,
    registry: &str,
    repository: &str,
    actions: &str,
    known: &RegistryAuth,
) -> Result<RegistryAuth, RegistryError> {
    let no_token = |problem: &str| RegistryError::Token(problem.into());
    let failed = |error: reqwest::Error| RegistryError::Token(chain(&error.without_url()));
    let answer = client.get(registry).send().await.map_err(failed)?;
    let Some(challenge) = answer.headers().get(WWW_AUTHENTICATE) else { return Ok(RegistryAuth::Anonymous) };
    let challenge = challenge.to_str().map_err(|_| no_token("its challenge is no text"))?;
    let challenges = parse_challenges(challenge).map_err(|_| no_token("its challenge is not valid"))?;
    let Some(bearer) = challenges.iter().find(|challenge| challenge.scheme.eq_ignore_ascii_case("bearer")) else {
        return Ok(known.clone());
    };
    let named = |name: &str| {
        let found = bearer.params.iter().find(|(parameter, _)| parameter.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_unescaped())
    };
    let realm = named("realm").ok_or_else(|| no_token("its challenge names no realm"))?;
    let mut url = Url::parse(&realm).map_err(|_| no_token("its challenge names no URL"))?;
    url.query_pairs_mut().append_pair("scope", &format!("repository:{repository}:{actions}"));
    if let Some(service) = named("service") {
        url.query_pairs_mut().append_pair("service", &service);
    }
    let request = client.get(url);
    let request = match known {
        RegistryAuth::Basic(user, password) => request.basic_auth(user, Some(password)),
        _ => request,
    };
    let answer = request.send().await.map_err(failed)?;
    match answer.status() {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(RegistryError::Refused),
        status if !status.is_success() => return Err(no_token(&format!("the answer is {status}"))),
        _ => {}
    }
    let answer = bounded(answer, ANSWER_LIMIT).await.map_err(RegistryError::Token)?;
    let Answer { token } = serde_json::from_slice(&answer).map_err(|_| no_token("the answer has none"))?;
    Ok(RegistryAuth::Bearer(token))
}
