//! The agent of a Culvert device.
//!
//! [`agent`] is one task that listens to the host ([`host_connection`]), to people at the device ([`ipc`]) and to
//! its tunnels ([`tunnel`]). What must survive a crash is on disk before anything is done about it ([`state_dir`],
//! [`journal`], [`consent`], [`targets`], [`approved_targets`], [`pending_stops`]). What it shares with host and
//! node is the crate `culvert-wire`.

#![deny(unsafe_code)]

pub mod agent;
pub mod approved_targets;
pub mod cli;
pub mod consent;
pub mod device;
pub mod host_connection;
pub mod ipc;
pub mod journal;
pub mod pending_stops;
pub mod state_dir;
pub mod target;
pub mod targets;
pub mod tunnel;
