//! The tests of the whole, in one binary: by resource, through the front door.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod policy;
mod sandbox;
mod support;
mod tunnels;
