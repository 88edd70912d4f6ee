//! Mails that the host sends.

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// A mail that is to be sent.
#[derive(Clone, Debug)]
pub struct SealedMail {
    pub id: Uuid,
    pub recipient: String,
    /// Subject and text, sealed for the mail's id.
    pub content: Vec<u8>,
    /// When what it says is over.
    pub expires_at: DateTime<Utc>,
}
