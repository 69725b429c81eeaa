//! What changes how Ringfence works: each needs you to be there, and leaves an audit row.
#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use nix::sys::termios::{self, LocalFlags, SetArg};

use super::{At, CliError};
use crate::ipc::control::{Answer, Ask, Change, Refusal};

/// A person may take a minute to answer polkit's dialogue.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Subcommand)]
pub(crate) enum HistoryVerb {
    /// Forget everything that was recorded
    Clear,
    /// Set for how long things are kept
    Keep {
        /// Days for events
        #[arg(long, default_value_t = 14)]
        event_days: u32,
        /// Days for findings and reviews
        #[arg(long, default_value_t = 30)]
        finding_days: u32,
    },
}

#[derive(Subcommand)]
pub(crate) enum SetupVerb {
    /// The passphrase that proves you are there where polkit cannot ask
    Passphrase,
}

pub(crate) fn history(at: &At, verb: &HistoryVerb) -> Result<ExitCode, CliError> {
    change(
        at,
        match *verb {
            HistoryVerb::Clear => Change::ClearHistory,
            HistoryVerb::Keep { event_days, finding_days } => Change::Retention { event_days, finding_days },
        },
    )
}

pub(crate) fn setup(at: &At, verb: &SetupVerb) -> Result<ExitCode, CliError> {
    let SetupVerb::Passphrase = verb;
    let new = secret("New passphrase: ")?;
    if new != secret("Again: ")? {
        return Err(CliError::Usage("the two differ: nothing was changed".into()));
    }
    change(at, Change::SetPassphrase { new })
}

/// Asks for the change; for the passphrase only when the service says that one is needed.
fn change(at: &At, change: Change) -> Result<ExitCode, CliError> {
    let first = at.ask(Ask::Change { change: change.clone(), passphrase: None }, PATIENCE);
    let answer = match first {
        Err(CliError::Refused { kind: Refusal::PassphraseNeeded, .. }) => {
            at.ask(Ask::Change { change, passphrase: Some(secret("Passphrase: ")?) }, PATIENCE)?
        }
        other => other?,
    };
    let Answer::Done { message } = answer else { return Err(CliError::Unexpected) };
    println!("{message}");
    Ok(ExitCode::SUCCESS)
}

/// A line from the terminal, not echoed. Never from a pipe: a script is not a person.
fn secret(prompt: &str) -> Result<String, CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::Failed(format!("the terminal cannot be read: {error}"));
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(CliError::Usage("a passphrase is typed at a terminal, not piped".into()));
    }
    eprint!("{prompt}");
    std::io::stderr().flush().map_err(|error| failed(&error))?;
    let before = termios::tcgetattr(&input).map_err(|error| failed(&error))?;
    let mut quiet = before.clone();
    quiet.local_flags.remove(LocalFlags::ECHO);
    termios::tcsetattr(&input, SetArg::TCSAFLUSH, &quiet).map_err(|error| failed(&error))?;
    let mut line = String::new();
    let read = input.read_line(&mut line);
    eprintln!();
    termios::tcsetattr(&input, SetArg::TCSANOW, &before).map_err(|error| failed(&error))?;
    read.map_err(|error| failed(&error))?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}
