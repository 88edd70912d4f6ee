//! Requests to a provider, with bounds on time and size.

use std::time::Duration;

use culvert_wire::loopback::is_loopback;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder};
use serde::de::DeserializeOwned;
use url::Url;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer.
const LIMIT: usize = 256 * 1024;

pub(crate) fn client() -> Result<Client, String> {
    let client = Client::builder().timeout(TIMEOUT).redirect(Policy::none()).user_agent("culvert");
    client.build().map_err(|error| error.to_string())
}

/// The JSON that a request is answered with.
pub(crate) async fn json<T: DeserializeOwned>(request: RequestBuilder) -> Result<T, String> {
    let said = |error: reqwest::Error| error.without_url().to_string();
    let mut response = request.send().await.map_err(said)?;
    if !response.status().is_success() {
        return Err(format!("it answers {}", response.status().as_u16()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(said)? {
        body.extend_from_slice(&chunk);
        if body.len() > LIMIT {
            return Err(format!("it answers with more than {LIMIT} bytes"));
        }
    }
    serde_json::from_slice(&body).map_err(|error| format!("it answers no JSON as it must: {error}"))
}

/// Whether nobody on the network reads what is sent to a URL: it is https, or on this machine.
pub fn is_private(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    match url.scheme() {
        "https" => true,
        "http" => url.host_str().is_some_and(is_loopback),
        _ => false,
    }
}
