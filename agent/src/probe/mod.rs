//! The privileged side, seen from outside: what it is asked, what it answers, and the client that asks.

pub mod frames;
pub mod protocol;
