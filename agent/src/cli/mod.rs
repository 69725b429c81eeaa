//! `ringfence`: what a person types. Raw arguments here, what they mean in the file of each verb.
#![forbid(unsafe_code)]

mod changes;
mod listings;
mod plan;
mod policy;
mod report;
mod rules;
mod run;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::ipc::control::{self, Answer, Ask, ControlError};
use crate::places::{PlaceError, Places};
use crate::service::canary::trials;

/// Ringfence itself failed.
pub const EXIT_FAILED: u8 = 125;
/// Refused by policy.
pub const EXIT_REFUSED: u8 = 126;
/// Wrong usage.
pub const EXIT_USAGE: u8 = 2;

/// Puts a fence that the operating system enforces around AI coding agents, and says what really ran.
#[derive(Parser)]
#[command(name = "ringfence", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    at: At,
    #[command(subcommand)]
    verb: Verb,
}

/// Where the service is, for those who run one of their own.
#[derive(Args, Clone)]
pub(crate) struct At {
    /// Directory of the service's sockets [default: /run/user/UID/ringfence]
    #[arg(long, global = true, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Verb {
    /// Run a command as a session of its own: fenced, observed, reported
    Run(run::RunArgs),
    /// What is enforced and proven on this machine now
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// What a session decided, confined and really ran
    Report(report::ReportArgs),
    /// What the kernel refuses to the sessions that are open: addresses, brokers, protected names
    Rules(rules::RulesArgs),
    /// Sessions, newest first
    Sessions(listings::ListArgs),
    /// What a person should know of
    Findings(listings::ListArgs),
    /// Check, test and show policy files
    Policy {
        #[command(subcommand)]
        verb: policy::PolicyVerb,
    },
    /// Compile a fence into a plan file
    Plan {
        #[command(subcommand)]
        verb: plan::PlanVerb,
    },
    /// How long history is kept, or forget it (needs you to be there)
    History {
        #[command(subcommand)]
        verb: changes::HistoryVerb,
    },
    /// Set up what proves that you are there
    Setup {
        #[command(subcommand)]
        verb: changes::SetupVerb,
    },
    /// Started by `run`: waits until the session is open, then becomes the launcher
    #[command(hide = true)]
    Gate(run::GateArgs),
    /// Started by the service: tries what the kernel's gates must refuse, and prints what happened
    #[command(hide = true)]
    GateCanary {
        /// Only make a user namespace, and end with the errno
        #[arg(long)]
        namespace: bool,
        /// What to aim at
        targets: String,
    },
    /// Started by the service: tries what a fence must refuse, and prints what happened
    #[command(hide = true)]
    Canary {
        /// A file that does not exist, outside the fence
        outside: PathBuf,
    },
}

/// Why a verb failed. Each has one exit code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("{reason}")]
    Refused { kind: control::Refusal, reason: String },
    #[error("the service answered something that this command does not expect: is it of another version?")]
    Unexpected,
    #[error("{0}")]
    Failed(String),
    #[error("{0}")]
    Usage(String),
}

impl CliError {
    fn exit(&self) -> u8 {
        match self {
            CliError::Refused { kind: control::Refusal::Failed | control::Refusal::NotFound, .. } => EXIT_FAILED,
            CliError::Refused { .. } => EXIT_REFUSED,
            CliError::Usage(_) => EXIT_USAGE,
            _ => EXIT_FAILED,
        }
    }
}

impl At {
    pub(crate) fn socket(&self) -> Result<PathBuf, CliError> {
        Ok(match &self.runtime_dir {
            Some(dir) => dir.join("control.sock"),
            None => Places::of_this_user()?.control_socket(),
        })
    }

    /// Asks the service; a refusal is an error.
    pub(crate) fn ask(&self, ask: Ask, deadline: Duration) -> Result<Answer, CliError> {
        match control::ask(&self.socket()?, ask, deadline)? {
            Answer::Refused { kind, reason } => Err(CliError::Refused { kind, reason }),
            answer => Ok(answer),
        }
    }

    /// Asks for JSON.
    pub(crate) fn ask_json(&self, ask: Ask) -> Result<serde_json::Value, CliError> {
        match self.ask(ask, Duration::from_secs(20))? {
            Answer::Json(json) => Ok(json),
            _ => Err(CliError::Unexpected),
        }
    }
}

/// Runs one command line.
pub fn main() -> ExitCode {
    let Cli { at, verb } = Cli::parse();
    let done = match verb {
        Verb::Run(args) => run::run(&at, args),
        Verb::Gate(args) => run::gate(&args),
        Verb::Canary { outside } => {
            let attempts = serde_json::to_value(crate::service::canary::attempt(&outside));
            attempts.map(|json| print_json(&json)).map_err(|error| CliError::Failed(error.to_string()))
        }
        Verb::GateCanary { namespace: true, targets: _ } => Ok(ExitCode::from(trials::namespace())),
        Verb::GateCanary { namespace: false, targets } => {
            trials::attempt(&targets).map(|()| ExitCode::SUCCESS).map_err(|error| CliError::Failed(error.to_string()))
        }
        Verb::Status { json } => status::status(&at, json),
        Verb::Report(args) => report::report(&at, &args),
        Verb::Rules(args) => rules::rules(&at, &args),
        Verb::Sessions(args) => listings::sessions(&at, &args),
        Verb::Findings(args) => listings::findings(&at, &args),
        Verb::Policy { verb } => policy::policy(&verb),
        Verb::Plan { verb } => plan::plan(&verb),
        Verb::History { verb } => changes::history(&at, &verb),
        Verb::Setup { verb } => changes::setup(&at, &verb),
    };
    done.unwrap_or_else(|error| {
        eprintln!("ringfence: {error}");
        ExitCode::from(error.exit())
    })
}

/// Prints JSON for scripts; a closed pipe is not an error worth a message.
pub(crate) fn print_json(json: &serde_json::Value) -> ExitCode {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let text = serde_json::to_string_pretty(json).unwrap_or_default();
    match writeln!(out, "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(EXIT_FAILED),
    }
}
