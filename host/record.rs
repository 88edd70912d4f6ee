//! Records as clients see them, in answers and in events: what they are called and how they are
//! written, and nothing of where they come from.

pub mod address;
pub mod device;
pub mod event;
pub mod operation;
