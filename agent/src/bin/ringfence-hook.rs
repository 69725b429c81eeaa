//! `ringfence-hook`: started by the host for each hook event, answers it, exits. See [`ringfence::hook`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ringfence::hook::run(std::env::args_os().skip(1))
}
