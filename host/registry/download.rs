//! Files of web servers.

use std::time::Duration;

use reqwest::Response;
use reqwest::redirect::Policy;

use crate::registry;

const CONNECT: Duration = Duration::from_secs(10);
/// How long a server may send nothing.
const SILENCE: Duration = Duration::from_secs(30);
const REDIRECTS: usize = 5;

/// Downloads a file of at most this many bytes, over HTTPS only.
///
/// # Errors
///
/// One line.
pub(crate) async fn download(url: &str, limit: usize) -> Result<Vec<u8>, String> {
    let client = reqwest::Client::builder()
        .https_only(true)
        .redirect(Policy::limited(REDIRECTS))
        .connect_timeout(CONNECT)
        .read_timeout(SILENCE)
        .user_agent(registry::USER_AGENT)
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
