//! Real hosts: the pinned versions, where they are installed, and one session of one of them, offline.

mod install;
mod session;

pub use install::{Host, pinned};
pub use session::{ClaudeSession, Ended};
