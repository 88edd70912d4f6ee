//! What a policy module in Rust is built on.
//!
//! A module is one `struct` that holds what its settings said, and the decisions it makes from
//! them. [`policy!`] turns it into a component of one of the three worlds in `wit/`; `arena`
//! gives it memory in a way that makes a fresh copy of it cheap. The rules themselves are plain
//! functions, tested natively like any other Rust. [`facts`] are what a module can ask to be told about a
//! request; [`time`], [`url`], [`pattern`] and [`rate`] help to judge it. [`debug!`] prints a line in the authors' tools.

#[cfg(target_arch = "wasm32")]
mod arena;
mod configured;
mod export;
pub mod facts;
pub mod notes;
pub mod pattern;
pub mod rate;
pub mod time;
pub mod url;

pub use configured::{Configured, Settings};
pub use wit_bindgen;
