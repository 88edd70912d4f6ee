//! Questions and answers: a module's world, its sandbox, and one decision.

pub mod bindings;
pub mod call;
pub mod contract;
pub mod engines;
pub mod kind;
pub mod request;
pub mod sandbox;
pub mod wit_json;
