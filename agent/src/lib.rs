//! The agent of a Culvert device, and what it shares with host and node.
//!
//! Shared: the [`wire`] between them, the [`clock`], the [`pipe`] that carries visitors' bytes, and
//! [`tls`]. The agent itself is [`agent`]: one task that listens to the host ([`link`]), to people at
//! the device ([`local`]) and to its tunnels ([`tunnel`]). What must survive a crash is on disk
//! before anything is done about it ([`state`], [`journal`], [`consent`], [`targets`],
//! [`agreed`], [`stopped`]).

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
