//! What an installation consists of beside the programs: units, accounts, directories, the polkit action, monitoring.
#![forbid(unsafe_code)]

mod docs;
mod live;
mod monitoring;
mod probe_unit;
mod system;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};

use anyhow::Context as _;
use ringfence_tests::stage::workspace;
use ringfence_tests::suite::{CannotRun, Suite};

fn main() -> ExitCode {
    Suite::new("install")
        .case("systemd accepts the user units", system::user_units)
        .case("systemd accepts the probe's unit", system::probe_unit)
        .case("a socket unit exists for each socket, private and under its name", system::sockets)
        .case("directories and accounts are made as described", system::directories)
        .case("the polkit action asks the person each time", system::polkit)
        .case("both licences are there", system::licences)
        .case("Prometheus accepts the scrape file", monitoring::scrape_file)
        .case("a target file cannot send Prometheus anywhere else", monitoring::hostile_target)
        .case("the dashboard names only documented metrics", monitoring::dashboard)
        .case("links in the documentation lead somewhere", docs::links)
        .case("the tests that docs/bypasses.md names exist", docs::named_tests)
        // Without `cargo xtask test`, which builds the programs beforehand, a stage builds them.
        .limit(std::time::Duration::from_secs(600))
        .case("a service's metrics are documented and pass promtool", live::metrics)
        .case("the probe loads with its unit's capabilities what it loads with all of root's", probe_unit::capabilities)
        .run()
}

/// A file or directory of `deploy/`.
pub(crate) fn deploy(below: &str) -> PathBuf {
    workspace().join("deploy").join(below)
}

/// Reads a file of the workspace.
pub(crate) fn read(path: impl AsRef<std::path::Path>) -> anyhow::Result<String> {
    let path = path.as_ref();
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// Runs a tool; one that is not installed skips the case.
pub(crate) fn tool(command: &mut Command, package: &str) -> anyhow::Result<Output> {
    match command.output() {
        Ok(output) => Ok(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let name = command.get_program().display().to_string();
            Err(CannotRun(format!("{name} is not installed (Debian package {package})")).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// What a program said, for a failure's message.
pub(crate) fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    format!("{}: {}", output.status, String::from_utf8_lossy(&text).trim())
}
