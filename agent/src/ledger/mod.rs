//! Decided, confined, observed: do they agree?

pub mod entry;
pub mod join;
