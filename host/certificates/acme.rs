//! Certificates of public authorities, by ACME (RFC 8555).
//!
//! Each call finds its order by the URL. Nothing is kept between calls but the account, so that whoever comes after a
//! crash goes on.

use std::fmt::Display;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::certificate::{Certificate, ChallengeKind};
use culvert_wire::clock::Clock;
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, CertificateIdentifier, ChallengeStatus, ChallengeType, Error,
    Identifier, NewAccount, NewOrder, Order, OrderStatus, Problem,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};
use x509_parser::parse_x509_certificate;

use super::client::{AcmeClient, failed};
use super::zone::LABEL;

/// Why the authority did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct AcmeError {
    pub problem: String,
    /// How long the authority asks to wait.
    pub retry_after: Option<TimeDelta>,
    /// What becomes of the order.
    pub consequence: Consequence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consequence {
    /// The same request may succeed at once (RFC 8555, section 6.5).
    Repeat,
    /// The authority could not be asked. Its order stands.
    Interrupted,
    /// The order has failed.
    Failed,
}

/// An ACME directory, and how it is reached.
pub struct Authority {
    directory: String,
    contact: Vec<String>,
    client: AcmeClient,
    clock: Clock,
}

/// The host's account at an authority.
pub struct AcmeAccount {
    account: Account,
    clock: Clock,
}

/// What proves a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    pub name: String,
    pub token: String,
    /// The key authorization (RFC 8555, section 8.1).
    pub key_authorization: String,
}

/// What the authority says of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderView {
    /// Names are to be proved, or the authority is looking.
    Pending,
    Ready,
    Processing,
    Valid,
    /// A name could not be proved, or the authority does not sign.
    Invalid(String),
}

/// A chain that was signed.
pub struct Chain {
    /// PEM.
    pub pem: String,
    pub not_after: DateTime<Utc>,
    /// When it is renewed, if the authority does not say.
    pub renew_at: DateTime<Utc>,
}

impl Authority {
    /// # Errors
    ///
    /// If the file with root certificates cannot be read.
    pub fn new(directory: String, contact: Vec<String>, roots: Option<&Path>, clock: Clock) -> Result<Self, String> {
        Ok(Self { directory, contact, client: AcmeClient::new(roots, clock.clone())?, clock })
    }

    pub fn directory(&self) -> &str {
        &self.directory
    }

    /// Makes an account. Returns it with its credentials, which are a secret.
    ///
    /// # Errors
    ///
    /// If the authority does not make one.
    pub async fn create_account(&self) -> Result<(AcmeAccount, Vec<u8>), AcmeError> {
        let contact: Vec<&str> = self.contact.iter().map(String::as_str).collect();
        let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let builder = Account::builder_with_http(Box::new(self.client.clone()));
        let created = builder.create(&new, self.directory.clone(), None).await;
        let (account, credentials) = created.map_err(|e| failed(&e))?;
        let credentials = serde_json::to_vec(&credentials).map_err(internal)?;
        Ok((self.of(account), credentials))
    }

    /// The account with these credentials.
    ///
    /// # Errors
    ///
    /// If they are not credentials, or the authority does not answer.
    pub async fn account(&self, credentials: &[u8]) -> Result<AcmeAccount, AcmeError> {
        let credentials: AccountCredentials = serde_json::from_slice(credentials).map_err(internal)?;
        let builder = Account::builder_with_http(Box::new(self.client.clone()));
        let account = builder.from_credentials(credentials).await.map_err(|e| failed(&e))?;
        Ok(self.of(account))
    }

    fn of(&self, account: Account) -> AcmeAccount {
        AcmeAccount { account, clock: self.clock.clone() }
    }
}

impl AcmeAccount {
    /// Places an order, and returns its URL.
    ///
    /// # Errors
    ///
    /// If the authority does not take it.
    pub async fn order(&self, name: &str) -> Result<String, AcmeError> {
        let identifiers: Vec<Identifier> = Certificate::names(name).into_iter().map(Identifier::Dns).collect();
        let order = self.account.new_order(&NewOrder::new(&identifiers)).await.map_err(|e| failed(&e))?;
        Ok(order.url().to_owned())
    }

    /// What proves the names of an order that are not proved yet.
    ///
    /// # Errors
    ///
    /// If the authority does not answer, or offers no such challenge.
    pub async fn proofs(&self, url: &str, kind: ChallengeKind) -> Result<Vec<Proof>, AcmeError> {
        let mut order = self.open(url).await?;
        let mut proofs = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(|e| failed(&e))?;
            if authorization.status != AuthorizationStatus::Pending {
                continue;
            }
            let challenge = authorization.challenge(type_of(kind));
            let challenge = challenge.ok_or_else(|| problem(format!("the authority offers no {kind} challenge")))?;
            let key = challenge.key_authorization();
            let Identifier::Dns(name) = challenge.identifier().identifier else { continue };
            proofs.push(Proof {
                name: name.clone(),
                token: challenge.token.clone(),
                key_authorization: key.as_str().to_owned(),
            });
        }
        Ok(proofs)
    }

    /// Asks the authority to look at what proves the names of an order.
    ///
    /// # Errors
    ///
    /// If the authority does not answer, or offers no such challenge.
    pub async fn answer(&self, url: &str, kind: ChallengeKind) -> Result<(), AcmeError> {
        let mut order = self.open(url).await?;
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(|e| failed(&e))?;
            if authorization.status != AuthorizationStatus::Pending {
                continue;
            }
            let challenge = authorization.challenge(type_of(kind));
            let mut challenge =
                challenge.ok_or_else(|| problem(format!("the authority offers no {kind} challenge")))?;
            // Whoever was killed may have asked before. What the authority makes of it, the order says.
            if challenge.status != ChallengeStatus::Pending {
                continue;
            }
            match challenge.set_ready().await {
                Err(Error::Api(problem)) if !is_nonce(&problem) => {
                    tracing::debug!(%problem, "a challenge was answered");
                }
                answered => answered.map_err(|e| failed(&e))?,
            }
        }
        Ok(())
    }

    /// What the authority says of an order.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub async fn view(&self, url: &str) -> Result<OrderView, AcmeError> {
        let mut order = self.open(url).await?;
        let error = order.state().error.as_ref().map(ToString::to_string);
        Ok(match order.state().status {
            OrderStatus::Pending => OrderView::Pending,
            OrderStatus::Ready => OrderView::Ready,
            OrderStatus::Processing => OrderView::Processing,
            OrderStatus::Valid => OrderView::Valid,
            OrderStatus::Invalid => {
                let reason = self.reason(&mut order).await?.or(error);
                OrderView::Invalid(reason.unwrap_or_else(|| "the authority has refused the order".into()))
            }
        })
    }

    /// Why a name could not be proved.
    async fn reason(&self, order: &mut Order) -> Result<Option<String>, AcmeError> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let authorization = authorization.map_err(|e| failed(&e))?;
            let failed = authorization.challenges.iter().find_map(|challenge| challenge.error.as_ref());
            if let Some(problem) = failed {
                let detail = problem.detail.clone().unwrap_or_else(|| problem.to_string());
                return Ok(Some(detail));
            }
        }
        Ok(None)
    }

    /// Has an order signed for a key.
    ///
    /// # Errors
    ///
    /// If the key is unusable, or the authority does not take it.
    pub async fn finalize(&self, url: &str, name: &str, key: &[u8]) -> Result<(), AcmeError> {
        let request = signing_request(name, key).map_err(internal)?;
        let mut order = self.open(url).await?;
        order.finalize_csr(&request).await.map_err(|e| failed(&e))
    }

    /// The certificate of an order that is valid.
    ///
    /// # Errors
    ///
    /// If the authority does not give it, or gives something else.
    pub async fn chain(&self, url: &str) -> Result<Chain, AcmeError> {
        let mut order = self.open(url).await?;
        let pem = order.certificate().await.map_err(|e| failed(&e))?;
        let pem = pem.ok_or_else(|| problem("the authority has no certificate yet"))?;
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(internal)?;
        let life = validity(&der).ok_or_else(|| problem("what came is no certificate"))?;
        Ok(Chain { not_after: life.1, renew_at: self.two_thirds(life), pem })
    }

    /// When a certificate is renewed if its authority does not say: about two thirds of its life. `None` if it is none.
    pub fn renew_at(&self, chain: &str) -> Option<DateTime<Utc>> {
        let der = CertificateDer::from_pem_slice(chain.as_bytes()).ok()?;
        validity(&der).map(|life| self.two_thirds(life))
    }

    fn two_thirds(&self, (not_before, not_after): (DateTime<Utc>, DateTime<Utc>)) -> DateTime<Utc> {
        let life = (not_after - not_before).to_std().unwrap_or_default();
        not_before + life * 2 / 3 - self.clock.jitter(life / 30)
    }

    /// When the authority wants a certificate to be renewed (RFC 9773); `None` if it does not say.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub async fn renewal(&self, chain: &str) -> Result<Option<DateTime<Utc>>, AcmeError> {
        let der = CertificateDer::from_pem_slice(chain.as_bytes()).map_err(internal)?;
        let Ok(identifier) = CertificateIdentifier::try_from(&der) else { return Ok(None) };
        let window = match self.account.renewal_info(&identifier).await {
            Ok((info, _)) => info.suggested_window,
            Err(Error::Unsupported(_)) => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
        let at = |time: time::OffsetDateTime| DateTime::from_timestamp(time.unix_timestamp(), 0);
        let (Some(start), Some(end)) = (at(window.start), at(window.end)) else { return Ok(None) };
        let length = (end - start).to_std().unwrap_or_default();
        Ok(Some(start + self.clock.jitter(length)))
    }

    async fn open(&self, url: &str) -> Result<Order, AcmeError> {
        self.account.order(url.to_owned()).await.map_err(|e| failed(&e))
    }
}

fn is_nonce(problem: &Problem) -> bool {
    problem.r#type.as_deref().is_some_and(|kind| kind.ends_with(":badNonce"))
}

/// A key for a new certificate: PKCS #8, as DER.
///
/// # Errors
///
/// If no key can be made.
pub fn new_key() -> Result<Vec<u8>, AcmeError> {
    KeyPair::generate().map(|key| key.serialize_der()).map_err(internal)
}

/// The TXT record that proves a name: its name and value (RFC 8555, section 8.4).
pub fn txt_record(name: &str, key_authorization: &str) -> (String, String) {
    (format!("{LABEL}.{name}"), URL_SAFE_NO_PAD.encode(Sha256::digest(key_authorization)))
}

fn signing_request(name: &str, key: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
    let key = KeyPair::try_from(&PrivatePkcs8KeyDer::from(key))?;
    let mut params = CertificateParams::new(Certificate::names(name))?;
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(&key)?.der().to_vec())
}

fn validity(der: &[u8]) -> Option<(DateTime<Utc>, DateTime<Utc>)> {
    let (_, certificate) = parse_x509_certificate(der).ok()?;
    let validity = certificate.validity();
    let at = |seconds| DateTime::from_timestamp(seconds, 0);
    Some((at(validity.not_before.timestamp())?, at(validity.not_after.timestamp())?))
}

fn type_of(kind: ChallengeKind) -> ChallengeType {
    match kind {
        ChallengeKind::TlsAlpn01 => ChallengeType::TlsAlpn01,
        ChallengeKind::Http01 => ChallengeType::Http01,
        ChallengeKind::Dns01 => ChallengeType::Dns01,
    }
}

fn problem(problem: impl Display) -> AcmeError {
    AcmeError { problem: problem.to_string(), retry_after: None, consequence: Consequence::Failed }
}

fn internal(error: impl Display) -> AcmeError {
    problem(error)
}
