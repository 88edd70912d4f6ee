//! A person at a browser. Its session is called a sign-in, because a session is a tunnel's.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::string_enum::string_enum;

/// For how long somebody who has just proved who it is need not prove it again.
pub const ELEVATION: TimeDelta = TimeDelta::minutes(10);

string_enum! {
    /// How somebody came in.
    SignInMethod {
        Link "link",
        Password "password",
        Passkey "passkey",
        /// At another provider (OpenID Connect).
        Oidc "oidc",
    }
}

/// Who must have a second factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequireSecondFactor {
    Never,
    /// Operators, for their pages.
    Operators,
    /// Everybody, for everything but their own account.
    All,
}

/// Who makes an account by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignUp {
    /// Nobody: operators make accounts.
    Off,
    /// Whoever is invited to a Team.
    Invited,
    /// Whoever has an e-mail address, or is known to a provider whose addresses are trusted.
    Open,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignIn {
    pub id: Uuid,
    pub account_id: Uuid,
    pub email: String,
    /// What the account is called.
    pub name: String,
    pub method: SignInMethod,
    pub client: SignInClient,
    pub created_at: DateTime<Utc>,
    pub last_seen_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
    pub elevated_until: Option<DateTime<Utc>>,
    /// Whether the account has a password.
    pub has_password: bool,
    /// Whether the account has a passkey.
    pub has_passkey: bool,
    /// Whether a code is asked for beside the password.
    pub has_second_factor: bool,
    /// Whether the account operates the installation.
    pub is_operator: bool,
}

/// The browser of a sign-in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignInClient {
    pub address: Option<String>,
    /// What it calls itself.
    pub agent: String,
}

impl SignIn {
    /// Whether the person has just proved who it is.
    pub fn is_elevated(&self, now: DateTime<Utc>) -> bool {
        self.elevated_until.is_some_and(|until| now < until)
    }

    /// Whether more than one factor has shown, or would have to show, who it is. A passkey is two.
    pub fn has_two_factors(&self) -> bool {
        self.has_second_factor || self.method == SignInMethod::Passkey
    }

    /// Whether only the passkey proves who it is: a password or a link alone would be one factor where there are two.
    pub fn takes_passkey_alone(&self) -> bool {
        self.has_passkey && !self.has_second_factor
    }

    /// Whether it may set the account's password: the person has just proved who it is, or has just come by a link, which
    /// is how a forgotten password is replaced.
    pub fn may_set_password(&self, now: DateTime<Utc>) -> bool {
        let came_by_link =
            self.method == SignInMethod::Link && now < self.created_at + ELEVATION && !self.takes_passkey_alone();
        self.is_elevated(now) || came_by_link
    }
}
