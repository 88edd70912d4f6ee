//! What runs while the host serves: generations, shadow modules, decision records, metrics.

pub mod generations;
pub mod live;
pub mod metrics;
pub mod observer;
pub mod pinned;
pub mod records;
pub mod shadows;
