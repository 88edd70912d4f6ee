//! The policy engine: runs policy modules, which are WebAssembly components, in a sandbox.
//!
//! A module is read from a file ([`load::chain`], [`load::component`]) and configured once; its state
//! after that is kept as a snapshot ([`load::snapshot`]). Every decision starts from the snapshot in a
//! fresh sandbox ([`engine::call`]). [`serve::generations`] replaces one set of modules
//! ([`serve::live`]) with another. A request uses one set from start to end ([`serve::pinned`]), and
//! [`serve::observer`] receives every response. The crate's public records are those of `wit/`, in
//! [`engine::bindings`]. Modules are not trusted: where a module gives no valid response, the request
//! fails with an error and is never allowed.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod engine;
pub mod load;
pub mod serve;
#[cfg(feature = "tools")]
pub mod tools;
