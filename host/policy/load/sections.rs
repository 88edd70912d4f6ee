//! Custom sections of a component, which hold data beside its code.

use std::borrow::Cow;

use wasm_encoder::{ComponentSection, CustomSection};
use wasmparser::{Parser, Payload};

/// The digest of the sources that a component was built from.
pub const SOURCES: &str = "culvert:sources";
/// The cases that a component must pass, as a JSON list of files.
pub const CASES: &str = "culvert:cases";

/// Appends a custom section to the component.
pub fn append(wasm: &mut Vec<u8>, name: &str, data: &[u8]) {
    CustomSection { name: name.into(), data: Cow::Borrowed(data) }.append_to_component(wasm);
}

/// Finds a section of the component itself; sections of nested modules and components are skipped.
pub fn find<'a>(wasm: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.ok()? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) if depth > 0 => depth -= 1,
            Payload::CustomSection(section) if depth == 0 && section.name() == name => return Some(section.data()),
            _ => {}
        }
    }
    None
}
