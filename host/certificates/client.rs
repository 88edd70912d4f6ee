//! The HTTP client for ACME, with bounds: an answer of at most 1 MiB, within 30 s.

use std::fs;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use culvert_wire::clock::Clock;
use http::header::RETRY_AFTER;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use reqwest::{Certificate, Client};

use super::acme::{AcmeError, Consequence};

const TIMEOUT: Duration = Duration::from_secs(30);
const LONGEST_ANSWER: usize = 1024 * 1024;

#[derive(Clone)]
pub(super) struct AcmeClient {
    client: Client,
    clock: Clock,
}

/// An answer that asks to come back later.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
struct ComeBackLater {
    problem: String,
    after: TimeDelta,
}

impl AcmeClient {
    /// A client that trusts the authorities of a PEM file, or those of the operating system.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or has no certificates.
    pub(super) fn new(roots: Option<&Path>, clock: Clock) -> Result<Self, String> {
        let mut client = Client::builder().timeout(TIMEOUT).https_only(true);
        if let Some(path) = roots {
            let named = |problem: String| format!("{}: {problem}", path.display());
            let pem = fs::read(path).map_err(|e| named(e.to_string()))?;
            let roots = Certificate::from_pem_bundle(&pem).map_err(|e| named(e.to_string()))?;
            if roots.is_empty() {
                return Err(named("there is no certificate in it".into()));
            }
            client = client.tls_certs_only(roots);
        }
        Ok(Self { client: client.build().map_err(|e| e.to_string())?, clock })
    }

    async fn send(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Error> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|never| Error::Other(never.into()))?.to_bytes();
        let request = Request::from_parts(head, body);
        let request = reqwest::Request::try_from(request).map_err(other)?;
        let mut response = self.client.execute(request).await.map_err(other)?;
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(other)? {
            if answer.len() + chunk.len() > LONGEST_ANSWER {
                return Err(Error::Str("the authority's answer is longer than 1 MiB"));
            }
            answer.extend_from_slice(&chunk);
        }
        if matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
            && let Some(after) =
                response.headers().get(RETRY_AFTER).and_then(|value| self.retry_after(value.to_str().ok()?))
        {
            let problem = problem_in(&answer).unwrap_or_else(|| format!("the authority answers {}", response.status()));
            return Err(Error::Other(Box::new(ComeBackLater { problem, after })));
        }
        let mut passed = http::Response::new(Full::new(Bytes::from(answer)));
        (*passed.status_mut(), *passed.headers_mut()) = (response.status(), response.headers().clone());
        Ok(passed.into())
    }
}

/// Why a request was not answered as it should be.
pub(super) fn failed(error: &Error) -> AcmeError {
    let (problem, retry_after) = match error {
        Error::Api(problem) => (problem.detail.clone().unwrap_or_else(|| problem.to_string()), None),
        Error::Other(cause) => match cause.downcast_ref::<ComeBackLater>() {
            Some(later) => (later.problem.clone(), Some(later.after)),
            None => (causes(cause.as_ref()), None),
        },
        other => (other.to_string(), None),
    };
    AcmeError { problem, retry_after, consequence: consequence(error) }
}

/// The detail of a problem record (RFC 9457).
fn problem_in(answer: &[u8]) -> Option<String> {
    let problem: serde_json::Value = serde_json::from_slice(answer).ok()?;
    problem["detail"].as_str().map(String::from)
}

fn consequence(error: &Error) -> Consequence {
    let Error::Api(problem) = error else {
        // The network, or an answer that is none of ACME.
        return Consequence::Interrupted;
    };
    let kind = problem.r#type.as_deref().and_then(|kind| kind.strip_prefix("urn:ietf:params:acme:error:"));
    match kind {
        // The order may be ready at another of its machines.
        Some("badNonce" | "orderNotReady") => Consequence::Repeat,
        Some("rateLimited" | "serverInternal") => Consequence::Interrupted,
        _ => Consequence::Failed,
    }
}

/// An error and what has caused it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

impl AcmeClient {
    /// Seconds, or a date (RFC 9110, section 10.2.3).
    fn retry_after(&self, value: &str) -> Option<TimeDelta> {
        let value = value.trim();
        let date = || Some(DateTime::<Utc>::from(httpdate::parse_http_date(value).ok()?) - self.clock.now());
        value.parse().ok().and_then(TimeDelta::try_seconds).or_else(date)
    }
}

fn other(error: reqwest::Error) -> Error {
    Error::Other(Box::new(error))
}

impl HttpClient for AcmeClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        Box::pin(self.clone().send(request))
    }
}
