//! Sends one delivery: a POST request to an address that the guard allows, within 15 seconds in total.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use culvert_wire::clock::Clock;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{CONTENT_TYPE, USER_AGENT};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Response, Url};

use crate::guard::{AddressBlocked, Guard};
use crate::sign::{self, signature};
use culvert_domain::webhook::Delivery;
use culvert_domain::webhook::{AttemptError, Outcome};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// From the DNS lookup to the last byte of the response.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Longest wait for the response's headers at every other attempt after one that timed out, so that an
/// endpoint that hangs again occupies a delivery slot for less time.
const SLOW_ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Most bytes of a response's body.
const MOST_READ: usize = 16 * 1024;

/// Why no client can be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{}: {error}", .path.display())]
    Roots { path: PathBuf, error: io::Error },
    #[error("{}: there is no certificate in it (PEM)", .0.display())]
    NoCertificate(PathBuf),
    #[error(transparent)]
    Http(#[from] reqwest::Error),
}

pub struct Client {
    http: reqwest::Client,
    guard: Arc<Guard>,
    clock: Clock,
}

impl Client {
    /// Creates a client. It always verifies certificates; the operator can add root certificates from a
    /// PEM file.
    ///
    /// # Errors
    ///
    /// Where the file cannot be read or contains no certificate.
    pub fn new(guard: Arc<Guard>, clock: Clock, extra_roots: Option<&Path>) -> Result<Self, ClientError> {
        let http = reqwest::Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .https_only(true)
            .referer(false)
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_WITHIN)
            .dns_resolver(Resolver(guard.clone()))
            .tls_certs_merge(extra_roots.map(read_roots).transpose()?.unwrap_or_default())
            .build();
        Ok(Self { http: http?, guard, clock })
    }

    pub async fn deliver(&self, delivery: &Delivery) -> Outcome {
        let start = self.clock.moment();
        let answered = self.clock.timeout(ANSWER_WITHIN, self.send(delivery)).await;
        let (status_code, error) = match answered {
            Ok(answered) => answered,
            Err(_) => (None, Some(AttemptError::Timeout)),
        };
        Outcome { status_code, error, duration: self.clock.moment().since(start) }
    }

    async fn send(&self, delivery: &Delivery) -> (Option<u16>, Option<AttemptError>) {
        let Ok(url) = Url::parse(&delivery.url) else { return (None, Some(AttemptError::ConnectFailed)) };
        if self.guard.check_literal(&url).is_err() {
            return (None, Some(AttemptError::AddressBlocked));
        }
        let timestamp = self.clock.now().timestamp();
        let signature = signature(&delivery.secret, delivery.event_id, timestamp, &delivery.body);
        let request = self
            .http
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("Culvert-Webhooks/", env!("CARGO_PKG_VERSION")))
            .header(sign::ID, delivery.event_id.to_string())
            .header(sign::TIMESTAMP, timestamp)
            .header(sign::SIGNATURE, signature)
            .body(delivery.body.clone());
        let first_byte = if delivery.has_less_time { SLOW_ANSWER_WITHIN } else { ANSWER_WITHIN };
        let Ok(answered) = self.clock.timeout(first_byte, request.send()).await else {
            return (None, Some(AttemptError::Timeout));
        };
        match answered {
            Ok(response) if response.status().is_success() => {
                let status = response.status().as_u16();
                (Some(status), read(response).await.err())
            }
            Ok(response) => (Some(response.status().as_u16()), Some(AttemptError::HttpStatus)),
            Err(error) => (None, Some(classify(&error))),
        }
    }
}

/// Reads the response's body. A delivery succeeds only if the body is complete and within its limit.
async fn read(mut response: Response) -> Result<(), AttemptError> {
    let mut read = 0;
    while let Some(chunk) = response.chunk().await.map_err(|error| classify(&error))? {
        read += chunk.len();
        if read > MOST_READ {
            return Err(AttemptError::TooLarge);
        }
    }
    Ok(())
}

fn read_roots(file: &Path) -> Result<Vec<Certificate>, ClientError> {
    let pem = std::fs::read(file).map_err(|error| ClientError::Roots { path: file.into(), error })?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(roots) if !roots.is_empty() => Ok(roots),
        _ => Err(ClientError::NoCertificate(file.into())),
    }
}

/// Classifies an error by the first known error among its causes.
fn classify(error: &reqwest::Error) -> AttemptError {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(found) = cause {
        if let Some(refused) = found.downcast_ref::<AddressBlocked>() {
            return match refused {
                AddressBlocked::NoPublicAddress => AttemptError::DnsFailed,
                AddressBlocked::NotPublic => AttemptError::AddressBlocked,
            };
        }
        if found.is::<rustls::Error>() {
            return AttemptError::TlsError;
        }
        cause = behind(found);
    }
    if error.is_timeout() { AttemptError::Timeout } else { AttemptError::ConnectFailed }
}

/// The cause of an error. An `io::Error` that wraps another error does not return that one as its
/// source, so the wrapped error is taken instead.
fn behind<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e (dyn StdError + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

/// Resolves names through the guard, so that the client connects only to addresses that the guard
/// allows.
struct Resolver(Arc<Guard>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.0.clone();
        Box::pin(async move {
            let addresses = guard.resolve(name.as_str()).await?;
            // Port 0 stands for the URL's port.
            let addresses: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}
