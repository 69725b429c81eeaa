//! Decided, confined, observed: do they agree?

mod assignment;
mod bind;
pub mod entry;
mod fold;
pub mod gate;
mod internal;
pub mod join;
mod line;
mod observe;
pub mod refusal;
pub mod report;
#[cfg(test)]
pub(crate) mod scene;
#[cfg(test)]
mod stream_tests;
mod text;
mod told;
mod tree;
mod verdict;
#[cfg(test)]
mod verdict_tests;

pub use fold::Clock;
pub use internal::{PatternError, Patterns};
