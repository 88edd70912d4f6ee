//! What every request passes, one after the other; `service` in `lib.rs` says in which order.

pub mod auth;
pub mod drain;
pub mod headers;
pub mod rate_limit;
pub mod trace;
