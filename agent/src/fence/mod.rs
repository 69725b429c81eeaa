//! The fence around a spawned command: compiled by the service into a plan, put on by `ringfence-exec`.
//!
//! The launcher's side is [`launch`] (the order of its steps), [`lookup`] (which plan), [`landlock`], [`seccomp`],
//! [`environment`], [`line`] (which command) and [`notice`] (what it tells the service). The service's side is
//! [`file`](mod@file) (what a person writes), [`tree`] (the working tree), [`compile`] (file and machine to plan),
//! [`rules`] (what the kernel's own programs refuse) and [`attribution`] (which layer refused a call).

pub mod environment;
pub mod fork;
pub mod landlock;
pub mod launch;
pub mod line;
pub mod lookup;
pub mod notice;
pub mod plan;
pub mod receipt;
pub mod seccomp;
pub mod tree;

#[cfg(feature = "service")]
pub mod attribution;
#[cfg(feature = "service")]
pub mod compile;
#[cfg(feature = "service")]
pub mod file;
#[cfg(feature = "service")]
pub mod filter;
#[cfg(feature = "service")]
pub mod named;
#[cfg(feature = "service")]
pub mod reading;
#[cfg(feature = "service")]
pub mod rules;

#[cfg(feature = "service")]
pub use file::{Fence, Fences};
