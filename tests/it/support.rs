//! What tests stand on.

pub mod hostile;

use std::path::Path;

use culvert::policy::artefact::Artefacts;

/// Compiled modules, shared by all tests: compiling is most of what they would do.
pub fn artefacts() -> Artefacts {
    Artefacts::in_folder(Path::new(ARTEFACTS)).unwrap()
}

/// Where they are.
pub const ARTEFACTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-policies");
