//! Loading of modules from the configuration: files, digests, settings, bundled cases, compiled
//! artefacts.

pub mod artefact;
pub mod bundle;
pub mod cases;
pub mod chain;
pub mod component;
mod described;
pub mod dynamic;
mod function_cache;
pub mod given_facts;
mod guest;
pub mod load_error;
mod machine_code;
mod memory;
pub mod module_source;
pub mod module_store;
pub mod oci_manifest;
pub mod policies;
mod policy_config;
pub mod schema;
pub mod sections;
pub mod snapshot;
pub mod text_file;

/// Most bytes of a module.
pub const SIZE_LIMIT: usize = 64 << 20;
