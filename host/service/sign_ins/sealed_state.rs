//! What a browser keeps for the host between two of its requests: sealed, and good for a while.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::sign_in::SignIn;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::SignIns;
use crate::Service;
use crate::secrets::Purpose;

#[derive(Serialize, Deserialize)]
pub(super) struct Sealed<S> {
    pub until: DateTime<Utc>,
    pub state: S,
}

/// How long a form waits for its sender to prove who they are.
const FORM_LIFETIME: TimeDelta = TimeDelta::minutes(10);

impl SignIns {
    /// Seals a form that is to wait, for its own sign-in.
    ///
    /// # Errors
    ///
    /// If it cannot be sealed.
    pub fn seal_form<S: Serialize>(&self, service: &Service, sign_in: &SignIn, form: &S) -> Result<String> {
        self.seal_state(service, &form_context(sign_in), form, FORM_LIFETIME)
    }

    /// Opens it again.
    ///
    /// # Errors
    ///
    /// `form_expired` if it is too old, or another sign-in's.
    pub fn open_form<S: DeserializeOwned>(&self, service: &Service, sign_in: &SignIn, token: &str) -> Result<S> {
        self.open_state(service, &form_context(sign_in), token)
    }

    pub(super) fn seal_state<S: Serialize>(
        &self,
        service: &Service,
        context: &[u8],
        state: &S,
        lifetime: TimeDelta,
    ) -> Result<String> {
        let sealed = Sealed { until: self.clock.now() + lifetime, state };
        let sealed = serde_json::to_vec(&sealed).map_err(Error::internal)?;
        Ok(URL_SAFE_NO_PAD.encode(service.secrets.seal(Purpose::Ceremonies, context, &sealed)))
    }

    pub(super) fn open_state<S: DeserializeOwned>(&self, service: &Service, context: &[u8], token: &str) -> Result<S> {
        self.open_sealed_state(service, context, token).map(|sealed: Sealed<S>| sealed.state)
    }

    pub(super) fn open_sealed_state<S: DeserializeOwned>(
        &self,
        service: &Service,
        context: &[u8],
        token: &str,
    ) -> Result<Sealed<S>> {
        let too_old = || Error::new(Code::FormExpired, "It took too long. Try again.");
        let sealed = URL_SAFE_NO_PAD.decode(token).map_err(|_| too_old())?;
        let opened = service.secrets.open_sealed(Purpose::Ceremonies, context, &sealed).ok_or_else(too_old)?;
        let sealed: Sealed<S> = serde_json::from_slice(&opened).map_err(|_| too_old())?;
        if self.clock.now() < sealed.until { Ok(sealed) } else { Err(too_old()) }
    }
}

fn form_context(sign_in: &SignIn) -> Vec<u8> {
    [b"form ", &sign_in.id.as_bytes()[..]].concat()
}
