//! Accounts.

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// An account with its personal scope.
#[derive(Clone, Debug)]
pub struct Account {
    pub id: Uuid,
    pub email: String,
    pub name: String,
    pub plan: String,
    pub created_at: DateTime<Utc>,
}
