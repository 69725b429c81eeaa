//! Ringfence: a fence that the operating system enforces around AI coding agents.
//!
//! Read [`pipeline`] first: it is the way of one tool call, from the host's hook to the ledger. Then the rooms it names.
//! Dependencies point one way: `bin → cli, service → pipeline → host, policy, fence, ledger → store, ipc, probe → kernel, common`.
//! What is behind the feature `service` never reaches the two small static programs, `ringfence-hook` and `ringfence-exec`.

pub mod clock;
pub mod fence;
pub mod hook;
pub mod host;
pub mod ipc;
pub mod places;
pub mod policy;
pub mod process;

#[cfg(feature = "service")]
pub mod cli;
#[cfg(feature = "service")]
pub mod gate;
#[cfg(feature = "service")]
pub mod kernel;
#[cfg(feature = "service")]
pub mod ledger;
#[cfg(feature = "service")]
pub mod pipeline;
#[cfg(feature = "service")]
pub mod probe;
#[cfg(feature = "service")]
pub mod review;
#[cfg(feature = "service")]
pub mod service;
#[cfg(feature = "service")]
pub mod store;
