//! Rust types of the contract in `wit/`: one Rust module per WIT world, with shared types.

pub mod plan_access {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "plan-access",
        additional_derives: [Clone, PartialEq, serde::Serialize],
    });
}

pub mod team_role {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "team-role",
        additional_derives: [Clone, PartialEq, serde::Serialize],
        with: { "culvert:policy/types@1.0.0": super::types },
    });
}

pub mod validation {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "validation",
        additional_derives: [Clone, PartialEq, serde::Serialize],
        with: { "culvert:policy/types@1.0.0": super::types },
    });
}

pub use plan_access::culvert::policy::types;
pub use plan_access::exports::culvert::policy::plans;
pub use team_role::exports::culvert::policy::roles;
pub use validation::exports::culvert::policy::inputs;
