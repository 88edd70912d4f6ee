//! Accounts, and what they may be called.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::text;

/// Characters of a name of an account or a Team.
const NAME_CHARACTERS: std::ops::RangeInclusive<usize> = 1..=100;
/// Characters of an e-mail address (RFC 5321, section 4.5.3.1.3, without the angle brackets).
const EMAIL_CHARACTERS: usize = 254;

/// A name as it is stored.
///
/// # Errors
///
/// What is allowed.
pub fn name(typed: &str) -> Result<String, &'static str> {
    let name = typed.trim();
    let fits = NAME_CHARACTERS.contains(&name.chars().count()) && text::is_plain(name);
    fits.then(|| name.to_owned()).ok_or("must have 1 to 100 characters, none of them a control character")
}

/// An e-mail address as it is stored: in lower case.
///
/// # Errors
///
/// What is allowed.
pub fn email(typed: &str) -> Result<String, &'static str> {
    let email = typed.trim().to_lowercase();
    let parts = email.split_once('@').is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty());
    let is_clean = text::is_plain(&email) && !email.contains(char::is_whitespace);
    let fits = parts && is_clean && email.len() <= EMAIL_CHARACTERS;
    fits.then_some(email).ok_or("must be an e-mail address with at most 254 characters")
}

/// An account with its personal scope.
#[derive(Clone, Debug)]
pub struct Account {
    pub id: Uuid,
    pub email: String,
    pub name: String,
    pub plan: String,
    pub created_at: DateTime<Utc>,
}

/// A Team as operators see it.
#[derive(Clone, Debug)]
pub struct TeamRecord {
    pub id: Uuid,
    pub name: String,
    pub plan: String,
    pub created_at: DateTime<Utc>,
    pub members: u64,
}

/// An account as operators see it.
#[derive(Clone, Debug)]
pub struct AccountRecord {
    pub id: Uuid,
    pub email: String,
    pub name: String,
    pub plan: String,
    pub created_at: DateTime<Utc>,
    pub is_operator: bool,
    pub is_locked: bool,
    pub has_password: bool,
}
