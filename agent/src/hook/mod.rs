//! The hook program: the host's JSON on stdin, one answer, and no other effect. Started once per event, gone in a millisecond.
//!
//! The way through it: [`arguments`] (as the installer wrote them) → [`guard`] (forks; answers for a child that fails) →
//! [`work`] (reads, asks the service) → [`alone`] (judges by the built-in rules when there is no service) →
//! [`gaps`] (what the service must be told later).
#![forbid(unsafe_code)]

pub mod alone;
pub mod arguments;
pub mod gaps;
pub mod guard;
pub mod self_test;
pub mod trial;
pub mod work;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use crate::clock::boottime_ms;
use crate::fence::fork;
use crate::host::claude_code::EventName;
use crate::host::claude_code::answer::Answer;
use crate::ipc::hook::PROTOCOL_VERSION;

use arguments::{Command, Invocation};
use guard::Terms;

/// How long a hook may take, by what it answers. Below the host's own time-out (90 s) in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// When the guard answers in the child's place.
    pub guard: Duration,
    /// When the child stops waiting and answers by itself.
    pub child: Duration,
}

impl Bounds {
    /// For an event, or for one that is not known before it is read.
    pub fn of(event: Option<EventName>) -> Bounds {
        let (guard, child) = match event {
            // A review may hold a tool call for a while.
            None | Some(EventName::PreToolUse) => (80_000, 78_000),
            Some(EventName::ConfigChange) => (10_000, 8_000),
            // The host ends a second and a half after it began to end.
            Some(EventName::SessionEnd) => (1_000, 700),
            Some(_) => (6_000, 5_000),
        };
        Bounds { guard: Duration::from_millis(guard), child: Duration::from_millis(child) }
    }
}

/// The whole program.
pub fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    let started_ms = boottime_ms();
    let closed = fork::close_above_standard();
    match arguments::parse(words) {
        Ok(Command::Version) => say(&format!("ringfence-hook {}", env!("CARGO_PKG_VERSION"))),
        Ok(Command::ProtocolVersion) => say(&PROTOCOL_VERSION.to_string()),
        Ok(Command::SelfTest) => self_test::run(),
        Ok(Command::Hook(call)) => {
            let trial = trial::beside_this_program();
            let bounds = trial.bounds(Bounds::of(call.event));
            let terms = Terms { bound: bounds.guard, fails_closed: fails_closed(&call) };
            match closed {
                Ok(()) => guard::guarded(&terms, || work::answer(&call, &trial, started_ms)),
                Err(_) => terms.instead("it could not close the descriptors that the host left open"),
            }
        }
        // Exit 2 is a denial to the host too: a hook that was installed wrongly must not let anything through.
        Err(error) => guard::write_answer(&Answer::deny("hook_arguments", &error.to_string())),
    }
}

/// Whether a failure is a denial. An event that the installer did not name may be a tool call.
fn fails_closed(call: &Invocation) -> bool {
    call.event.is_none_or(EventName::fails_closed)
}

fn say(line: &str) -> ExitCode {
    match writeln!(std::io::stdout(), "{line}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
