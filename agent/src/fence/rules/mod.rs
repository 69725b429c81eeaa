//! From what fences and policy say to the rule sets that the kernel's programs judge by.
//!
//! [`addresses`] and [`names`] turn what a person writes into what a map can answer; [`files`] holds open what rules speak
//! of, until the probe has said how the kernel keys it.

pub mod addresses;
pub mod files;
pub mod names;
