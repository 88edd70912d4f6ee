//! The agent of a Culvert device.
//!
//! [`agent`] is one task that takes events from the host (`host_connection`), from people at the device
//! ([`ipc`]) and from its tunnels (`tunnel`), whose visitors come over the device's connections to nodes (`carrier`). What must survive a crash is written to disk before the agent
//! acts on it ([`state_dir`], `journal`, [`consent`], [`targets`], `approved_targets`, `pending_stops`). The crate `culvert-wire` has the code that agent, host and node share.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod agent;
mod approved_targets;
pub mod carrier;
pub mod cli;
pub mod consent;
pub mod device;
pub mod doctor;
mod host_connection;
pub mod ipc;
mod journal;
mod local_target;
pub mod output;
mod pending_stops;
mod proxy_header;
mod report;
mod servers;
mod service_stream;
mod service_tls;
pub mod state_dir;
pub mod target;
pub mod targets;
mod traffic;
mod tunnel;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
