//! What every request passes, one after the other; `service` in `lib.rs` says in which order.

pub(crate) mod auth;
pub(crate) mod drain;
pub(crate) mod headers;
pub(crate) mod health;
pub(crate) mod rate_limit;
pub(crate) mod trace;
pub(crate) mod window;
