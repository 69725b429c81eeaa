//! `ringfence run -- CMD…`: any command as a session of its own, with its report at the end.
#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signal::{SigSet, Signal};

use super::{At, CliError, EXIT_FAILED};
use crate::gate::{self, Gate, Order};
use crate::ipc::control::{self, Answer, Ask, ControlError};
use crate::ledger::report;
use crate::process;
use crate::service::grade::Require;

/// How long the service may take to open a session.
const OPENING: Duration = Duration::from_secs(60);
/// How long the service may wait for what the command left behind, and report.
const CLOSING: Duration = Duration::from_secs(60);
/// How long a service that was just started may take to listen.
const STARTING: Duration = Duration::from_secs(10);

#[derive(Args)]
pub(crate) struct RunArgs {
    /// The fence to put around it
    #[arg(long, default_value = "default")]
    fence: String,
    /// Run nothing unless canaries have proven this much: `landlock` (Landlock and seccomp), `unix` (and unix sockets
    /// made outside are refused), `kernel` (and every gate of the kernel programs, by BPF LSM)
    #[arg(long, value_enum, value_name = "GRADE")]
    require: Option<Require>,
    /// Require `kernel` where BPF LSM is active, else `unix`
    #[arg(long, conflicts_with = "require")]
    strict: bool,
    /// The report as JSON, on stderr
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct GateArgs {
    /// Descriptor to read the order from
    #[arg(long)]
    order_fd: u32,
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub(crate) fn run(at: &At, args: RunArgs) -> Result<ExitCode, CliError> {
    let RunArgs { fence, require, strict, json, command } = args;
    let require = require.or(strict.then_some(Require::Strict));
    ensure_service(at)?;
    let failed = |what: &str, error: &dyn std::fmt::Display| CliError::Failed(format!("{what}: {error}"));
    let program = std::env::current_exe().map_err(|error| failed("this program cannot be found", &error))?;
    let cwd = std::env::current_dir().map_err(|error| failed("the current directory cannot be read", &error))?;
    let gate = Gate::spawn(&program, &command, |_| {})
        .map_err(|error| failed("the command's process cannot be made", &error))?;
    // Ctrl-C and Ctrl-\ are the command's: this process waits for it, as a shell does.
    let keyboard = SigSet::from_iter([Signal::SIGINT, Signal::SIGQUIT]);
    keyboard.thread_block().map_err(|error| failed("sigprocmask", &error))?;
    let opened = process::stat(gate.child.id())
        .map_err(|error| CliError::Failed(error.to_string()))
        .and_then(|child| at.ask(Ask::RunOpen { child: child.id, fence, command, cwd, require }, OPENING));
    let (session, order) = match opened {
        Ok(Answer::RunOpened { session, launcher, plan, notes }) => {
            notes.iter().for_each(|note| eprintln!("ringfence: {note}"));
            (session, Order { launcher, plan })
        }
        other => {
            gate.shut();
            return Err(other.err().unwrap_or(CliError::Unexpected));
        }
    };
    let mut child = gate.open(&order).map_err(|error| failed("the command's process ended early", &error))?;
    let status = child.wait().map_err(|error| failed("the command cannot be waited for", &error))?;
    let exit_code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    match at.ask(Ask::RunClose { session, exit_code }, CLOSING) {
        Ok(Answer::Json(report)) if json => eprintln!("{}", serde_json::to_string_pretty(&report).unwrap_or_default()),
        Ok(Answer::Json(report)) => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            match report::human_of_json(&report, report::Style { colour, tree: true }) {
                Ok(text) => eprint!("{text}"),
                Err(error) => eprintln!("ringfence: {error}"),
            }
        }
        Ok(_) => eprintln!("ringfence: {}", CliError::Unexpected),
        Err(error) => eprintln!("ringfence: the command ran under its fence, but there is no report: {error}"),
    }
    Ok(ExitCode::from(u8::try_from(exit_code).unwrap_or(EXIT_FAILED)))
}

/// The child's side: nothing runs before the service has opened the session.
pub(crate) fn gate(args: &GateArgs) -> Result<ExitCode, CliError> {
    let GateArgs { order_fd, command } = args;
    gate::wait(*order_fd, command).map_err(|error| CliError::Failed(error.to_string()))?;
    Ok(ExitCode::from(EXIT_FAILED)) // shut: the parent says why
}

/// Where no user manager keeps the service, `run` starts it: detached, with an empty environment.
fn ensure_service(at: &At) -> Result<(), CliError> {
    let probe = || control::ask(&at.socket().unwrap_or_default(), Ask::Sessions { limit: 1 }, OPENING);
    match probe() {
        Err(ControlError::Down(_)) if at.runtime_dir.is_none() => {}
        Err(error) => return Err(error.into()),
        Ok(_) => return Ok(()),
    }
    let service = std::env::current_exe()
        .map(|program| program.with_file_name("ringfenced"))
        .map_err(|error| CliError::Failed(format!("this program cannot be found: {error}")))?;
    Command::new(&service)
        .arg("--detach")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|error| CliError::Failed(format!("{} cannot be started: {error}", service.display())))?;
    let started = Instant::now();
    loop {
        match probe() {
            Err(ControlError::Down(_)) if started.elapsed() < STARTING => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}
