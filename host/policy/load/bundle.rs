//! The modules that are built into the host.

use crate::engine::kind::Kind;

/// Prefix by which a configuration names a built-in module: `builtin:plan-access`.
pub const PREFIX: &str = "builtin:";

const SHIPPED: [(Kind, &[u8]); 3] = [
    (Kind::PlanAccess, include_bytes!("../../../policies/dist/plan-access.wasm")),
    (Kind::TeamRole, include_bytes!("../../../policies/dist/team-role.wasm")),
    (Kind::Validation, include_bytes!("../../../policies/dist/validation.wasm")),
];

/// The bytes of the built-in module of this name.
pub fn find(name: &str) -> Option<&'static [u8]> {
    SHIPPED.iter().find(|(kind, _)| kind.name() == name).map(|(_, wasm)| *wasm)
}
