//! What authors of policies build, test, measure and replay modules with.

pub mod bench;
pub mod compile;
pub mod coverage;
pub mod javascript;
pub mod project;
pub mod replay;
pub mod sources;
