//! What callers can do to the store, one type each. All of them run in [`super::commit`].

pub mod actions;
pub mod devices;
pub mod failure;
pub mod tunnels;
pub mod webhooks;
