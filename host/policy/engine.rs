//! Evaluation: the interface of the modules, their sandbox, and a single decision.

pub mod bindings;
pub mod call;
pub mod contract;
pub(crate) mod cpu_time;
pub mod engines;
pub mod facts;
pub mod kind;
pub(crate) mod notes;
pub mod request;
pub mod sandbox;
pub mod wit_json;
