//! The HTTP client for ACME, with bounds: an answer of at most 1 MiB, within 30 s.

use std::fs;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use chrono::TimeDelta;
use http::Request;
use http::header::RETRY_AFTER;
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use reqwest::{Certificate, Client};

use super::acme::{AcmeError, Consequence};

const TIMEOUT: Duration = Duration::from_secs(30);
const LONGEST_ANSWER: usize = 1024 * 1024;

#[derive(Clone)]
pub(super) struct AcmeClient {
    client: Client,
    /// The seconds of the last `Retry-After` of a failure; 0 for none.
    retry_after: Arc<AtomicU32>,
}

impl AcmeClient {
    /// A client that trusts the authorities of a PEM file, or those of the operating system.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or has no certificates.
    pub(super) fn new(roots: Option<&Path>) -> Result<Self, String> {
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
        Ok(Self { client: client.build().map_err(|e| e.to_string())?, retry_after: Arc::default() })
    }

    /// Why a request was not answered as it should be, with the time that the authority asks to wait.
    pub(super) fn failed(&self, error: &Error) -> AcmeError {
        let problem = match error {
            Error::Api(problem) => problem.detail.clone().unwrap_or_else(|| problem.to_string()),
            Error::Other(cause) => causes(cause.as_ref()),
            other => other.to_string(),
        };
        let seconds = self.retry_after.swap(0, Ordering::Relaxed);
        let retry_after = (seconds > 0).then(|| TimeDelta::seconds(seconds.into()));
        AcmeError { problem, retry_after, consequence: consequence(error) }
    }

    async fn send(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Error> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|never| Error::Other(never.into()))?.to_bytes();
        let request = Request::from_parts(head, body);
        let request = reqwest::Request::try_from(request).map_err(other)?;
        let mut response = self.client.execute(request).await.map_err(other)?;
        if !response.status().is_success()
            && let Some(asked) = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok())
        {
            self.retry_after.store(asked.trim().parse().unwrap_or(0), Ordering::Relaxed);
        }
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(other)? {
            if answer.len() + chunk.len() > LONGEST_ANSWER {
                return Err(Error::Str("the authority's answer is longer than 1 MiB"));
            }
            answer.extend_from_slice(&chunk);
        }
        let mut passed = http::Response::new(Full::new(Bytes::from(answer)));
        (*passed.status_mut(), *passed.headers_mut()) = (response.status(), response.headers().clone());
        Ok(passed.into())
    }
}

fn consequence(error: &Error) -> Consequence {
    let Error::Api(problem) = error else {
        // The network, or an answer that is none of ACME.
        return Consequence::Interrupted;
    };
    let kind = problem.r#type.as_deref().and_then(|kind| kind.strip_prefix("urn:ietf:params:acme:error:"));
    match kind {
        Some("badNonce") => Consequence::Repeat,
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
