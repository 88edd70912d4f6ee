//! Settings of the dashboard.

use chrono::TimeDelta;
use culvert_domain::sign_in::{RequireSecondFactor, SignUp};
use culvert_service::sign_ins::Lifetimes;
use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::oidc::{self, OidcConfig};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DashboardConfig {
    /// Whether people can sign in. Documentation is served either way.
    pub enabled: bool,
    /// URL under which browsers reach the dashboard (default: `<public_url>/dashboard`). Its host name must be none that
    /// tunnels are served under.
    pub url: Option<String>,
    /// Days after which a sign-in ends, 1 to 365.
    pub session_days: u32,
    /// Days without a request after which a sign-in ends, at most `session_days`.
    pub session_idle_days: u32,
    /// Who must have a second factor: `never`, `operators` (for the operator's pages) or `all`.
    pub require_second_factor: RequireSecondFactor,
    /// Who makes an account by themselves: `invited` (whoever is invited to a Team), `off` (operators make accounts) or `open`
    /// (whoever opens a link that is mailed to them, or comes from a provider with `trust_email`).
    pub sign_up: SignUp,
    /// Providers at which people sign in (OpenID Connect): `[[dashboard.oidc]]` with `name`, `issuer`, `client_id`,
    /// `client_secret_file` and `trust_email`; see [Dashboard](dashboard.md#other-providers).
    pub oidc: Vec<OidcConfig>,
}

const DAYS: std::ops::RangeInclusive<u32> = 1..=365;
/// The path of the dashboard.
pub(super) const PATH: &str = "/dashboard";

impl Default for DashboardConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            url: None,
            session_days: 30,
            session_idle_days: 7,
            require_second_factor: RequireSecondFactor::Operators,
            sign_up: SignUp::Invited,
            oidc: Vec::new(),
        }
    }
}

impl DashboardConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if let Some(url) = &self.url {
            let fits = |url: reqwest::Url| {
                let is_bare = url.path() == PATH && url.query().is_none() && url.fragment().is_none();
                matches!(url.scheme(), "http" | "https") && url.username().is_empty() && is_bare
            };
            if !reqwest::Url::parse(url).is_ok_and(fits) {
                return Err(ConfigError::new(
                    "dashboard.url",
                    "must be an http:// or https:// URL with the path /dashboard",
                ));
            }
        }
        if !DAYS.contains(&self.session_days) {
            return Err(ConfigError::new("dashboard.session_days", "must be between 1 and 365"));
        }
        if !(1..=self.session_days).contains(&self.session_idle_days) {
            return Err(ConfigError::new(
                "dashboard.session_idle_days",
                "must be between 1 and dashboard.session_days",
            ));
        }
        if self.oidc.len() > oidc::MOST {
            return Err(ConfigError::new("dashboard.oidc", "must be at most 10 providers"));
        }
        self.oidc.iter().enumerate().try_for_each(|(index, one)| one.check(&format!("dashboard.oidc[{index}]")))
    }

    /// Where everybody makes an account, an address must be proved to be theirs, also one that they change to.
    pub(super) fn check_sign_up(&self, sends_mail: bool) -> Result<(), ConfigError> {
        if self.sign_up == SignUp::Open && !sends_mail {
            return Err(ConfigError::new("dashboard.sign_up", "cannot be open without mail.smtp_url"));
        }
        Ok(())
    }

    pub fn lifetimes(&self) -> Lifetimes {
        let days = |days: u32| TimeDelta::days(days.into());
        Lifetimes { absolute: days(self.session_days), idle: days(self.session_idle_days) }
    }
}
