//! From what fences and policy say to the rule sets that the kernel's programs judge by.
//!
//! [`addresses`], [`names`] and [`brokers`] turn what a person writes into what a map can answer, [`protected`] says which
//! names are protected; [`files`] holds open what rules speak of, until the probe has said how the kernel keys it.
//! [`domains`] knows the addresses of names. [`compile`] puts all together for a session, [`labels`] says afterwards what a refusal is called.

pub mod addresses;
pub mod brokers;
pub mod compile;
pub mod domains;
pub mod draft;
pub mod explained;
pub mod files;
mod glob;
pub mod labels;
pub mod names;
pub mod protected;
