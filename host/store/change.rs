//! The changes that callers can make in the store, one type each. All of them run in [`super::commit`].

pub mod access;
pub mod actions;
pub mod devices;
pub mod domains;
pub mod failure;
pub mod moves;
pub mod ports;
pub mod tunnels;
pub mod webhooks;
