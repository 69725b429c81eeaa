//! Starting other programs: what is run is said, and a failure names it.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// The cargo that runs us, or the one on PATH.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(ringfence_tests::stage::workspace());
    command
}

/// Runs to the end. Its output goes to stderr: stdout is for what a verb is asked to print.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let line = line_of(command);
    eprintln!("+ {line}");
    let status = command
        .stdin(Stdio::null())
        .stdout(std::io::stderr().as_fd().try_clone_to_owned()?)
        .status()
        .with_context(|| format!("starting {line}"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Whether it can be started and ends with 0; its output is dropped.
pub fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// What it prints, if it can be started and ends with 0.
pub fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
