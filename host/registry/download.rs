//! Files of web servers.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Response};

use crate::registry;

pub(crate) const USER_AGENT: &str = concat!("culvert/", env!("CARGO_PKG_VERSION"));
/// How long a connection may take.
pub(crate) const CONNECT: Duration = Duration::from_secs(10);
/// How long a server may send nothing.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);
const REDIRECTS: usize = 5;

/// A client with the limits on time that every server is held to.
pub(crate) fn client() -> ClientBuilder {
    Client::builder().connect_timeout(CONNECT).read_timeout(SILENCE).user_agent(USER_AGENT)
}

/// Downloads a file of at most this many bytes, over HTTPS only.
///
/// # Errors
///
/// One line.
pub(crate) async fn download(url: &str, limit: usize) -> Result<Vec<u8>, String> {
    let client = client()
        .https_only(true)
        .redirect(Policy::limited(REDIRECTS))
        .build()
        .map_err(|error| registry::chain(&error))?;
    let said = |error: reqwest::Error| registry::chain(&error.without_url());
    let answer = client.get(url).send().await.map_err(said)?.error_for_status().map_err(said)?;
    bounded(answer, limit).await
}

/// The body of an answer, of at most this many bytes.
///
/// # Errors
///
/// One line.
pub(crate) async fn bounded(mut answer: Response, limit: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| registry::chain(&error.without_url()))? {
        if bytes.len() + chunk.len() > limit {
            return Err(format!("it has more than {limit} bytes"));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}
