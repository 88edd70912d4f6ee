//! Tools for policy authors: build, test, measure and replay modules.

pub mod bench;
pub mod chain_replay;
pub mod compile;
pub mod coverage;
pub mod javascript;
pub mod policy_plan;
pub mod project;
pub mod recent_records;
pub mod replay;
pub mod rules_project;
pub mod sources;
mod target_folder;
