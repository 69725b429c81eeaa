//! The service of one user: policy, decisions, ledger. It holds no privilege.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use ringfence::service::{self, options::Options};

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).without_time().with_target(false).init();
    // A panic's own message may quote what it stumbled over, which is an agent's input: only the place is told.
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!("a bug: panic at {}", panic.location().map_or("?".to_owned(), ToString::to_string));
    }));
    let options = Options::parse();
    let done = match options.detach {
        true => service::detach::start(&options),
        false => service::run(options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringfenced: {error}");
            ExitCode::FAILURE
        }
    }
}
