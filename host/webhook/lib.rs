//! Sends webhook deliveries: the HTTP client, the signature, and the guard that checks each address
//! before the client connects to it. DNS lookups are in [`dns`], for custom domains as well.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod client;
pub mod dns;
pub mod guard;
pub mod sign;
