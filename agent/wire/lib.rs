//! What agent, host and node share: the frames between them, and what both ends of a connection need.
//!
//! [`enrolment`] is how a device becomes known, [`control`] the channel between agent and host, [`data`] the
//! connections between agent and node. [`clock`] gives time and randomness to all three programs.

pub mod allowed_target;
pub mod base64_bytes;
pub mod client_network;
pub mod clock;
pub mod control;
pub mod data;
pub mod enrolment;
pub mod pipe;
pub mod private_dir;
pub mod signature;
pub mod socket;
pub mod tally;
pub mod tls;
pub mod unproven;
