//! The policy engine: WebAssembly components decide, and nothing else about them is trusted.
//!
//! A module comes from a file ([`load::chain`], [`load::component`]), takes its settings once
//! ([`load::snapshot`]), and is asked in a fresh sandbox for every decision ([`engine::call`]).
//! [`serve::generations`] swaps one set of modules ([`serve::live`]) for another; a request holds on to one of
//! them ([`serve::pinned`]), and [`serve::observer`] sees what it answers. What the crate hands out are the
//! records of `wit/`, in [`engine::bindings`]. Where a module gives no valid answer, the request is answered with an
//! error, never with a yes.

#![deny(unsafe_code)]

pub mod engine;
pub mod load;
pub mod serve;
#[cfg(feature = "tools")]
pub mod tools;
