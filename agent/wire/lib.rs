//! What agent, host and node share: the frames between them, and the code that both ends of a
//! connection need.
//!
//! [`enrolment`] registers a device, [`control`] is the channel between agent and host, [`node`] the channel
//! between host and node, and [`data2`] the connections between agent and node ([`data`] is their first version). [`clock`] provides time
//! and random numbers to all three programs.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod allowed_target;
pub mod base64_bytes;
pub mod client_network;
pub mod clock;
mod congestion;
pub mod control;
pub mod data;
pub mod data2;
pub mod device_token;
pub mod enrolment;
pub mod failure_code;
pub mod lease_token;
pub mod loopback;
pub mod node;
pub mod open_enum;
pub mod per_second;
pub mod pipe;
pub mod private_dir;
pub mod quic;
pub mod server_url;
pub mod signature;
pub mod socket;
pub mod tally;
pub mod target;
pub mod tls;
pub mod unproven;
