//! The policy engine: WebAssembly components decide, and nothing else about them is trusted.
//!
//! A module comes from a file ([`chain`], [`component`]), takes its settings once ([`snapshot`]), and
//! is then asked in a fresh sandbox for every decision ([`call`]). [`generations`] swaps one set of
//! modules ([`live`]) for another; a request holds on to one of them ([`pinned`]), and [`observer`]
//! sees what it answers. Only these files name wasmtime; what they hand out are the records of `wit/`, in [`bindings`].
//! Where a module gives no valid answer, the question is answered with an error, never with a yes.

pub mod artefact;
pub mod bench;
pub mod bindings;
pub mod build;
pub mod bundle;
pub mod call;
pub mod cases;
pub mod chain;
pub mod component;
pub mod contract;
pub mod convert;
pub mod coverage;
pub mod dynamic;
pub mod engine;
pub mod generations;
pub mod javascript;
pub mod kind;
pub mod live;
pub mod metrics;
pub mod observer;
pub mod pinned;
pub mod plain;
pub mod project;
pub mod question;
pub mod records;
pub mod replay;
pub mod sandbox;
pub mod schema;
pub mod sections;
pub mod shadows;
pub mod snapshot;
pub mod sources;
pub mod written;
