//! The privileged side, seen from outside: what it is asked, what it answers, and the client that asks.

pub mod backend;
pub mod client;
pub mod frames;
pub mod plans;
pub mod privileges;
pub mod protocol;
pub mod rules;
pub mod server;
mod stream;
