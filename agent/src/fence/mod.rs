//! The fence around a spawned command: compiled by the service into a plan, put on by `ringfence-exec`.

pub mod fork;
pub mod plan;
pub mod receipt;
