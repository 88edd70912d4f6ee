//! Webhook deliveries: claimed from the outbox, signed, sent to public addresses only, settled.

pub mod client;
pub mod courier;
pub mod guard;
pub mod sign;
