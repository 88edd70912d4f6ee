//! What runs while the host serves: generations, shadow modules, decision records, metrics.

pub mod differences;
pub mod generations;
pub mod live;
mod long_decision;
pub mod metrics;
pub mod module_guard;
pub mod observer;
pub mod pinned;
mod priority;
pub mod record_writer;
pub mod records;
pub mod shadows;
pub mod status;
