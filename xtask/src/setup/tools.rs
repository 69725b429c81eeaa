//! Tools that are not Debian packages, or whose package does more than bring the tool.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use nix::unistd::Uid;

use super::{Need, apt};
use crate::shell;

/// One tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    /// Links the kernel programs. Its LLVM must be the compiler's.
    BpfLinker,
    /// Licences, sources and bans of dependencies.
    CargoDeny,
    /// Formatting.
    Rustfmt,
    /// Lints.
    Clippy,
    /// Parses our metrics. Taken out of Debian's `prometheus`, whose installation would start a server.
    Promtool,
}

const BPF_LINKER: &str = "0.13.0";
const CARGO_DENY: &str = "0.20.2";

impl Tool {
    /// What it is called.
    pub(super) fn name(self) -> &'static str {
        match self {
            Tool::BpfLinker => "bpf-linker 0.13.0",
            Tool::CargoDeny => "cargo-deny",
            Tool::Rustfmt => "rustfmt",
            Tool::Clippy => "clippy",
            Tool::Promtool => "promtool",
        }
    }

    fn is_there(self) -> bool {
        let says = |program: &str, text: &str| {
            shell::output(Command::new(program).arg("--version")).is_some_and(|version| version.contains(text))
        };
        match self {
            Tool::BpfLinker => says("bpf-linker", BPF_LINKER),
            Tool::CargoDeny => says("cargo-deny", "cargo-deny"),
            Tool::Rustfmt => shell::succeeds(shell::cargo().args(["fmt", "--version"])),
            Tool::Clippy => shell::succeeds(shell::cargo().args(["clippy", "--version"])),
            Tool::Promtool => says("promtool", "promtool") || tools_directory().join("promtool").exists(),
        }
    }

    fn install(self) -> anyhow::Result<()> {
        eprintln!("setup: installing {}", self.name());
        match self {
            Tool::BpfLinker => {
                let mut install = shell::cargo();
                install.args(["install", "bpf-linker", "--version", BPF_LINKER, "--no-default-features"]);
                shell::run(install.args(["--features", "llvm-22"]).env("LLVM_PREFIX", "/usr/lib/llvm-22"))
            }
            // Not optimised: it reads one lock file, and compiling it is what costs.
            Tool::CargoDeny => shell::run(shell::cargo().args([
                "install",
                "cargo-deny",
                "--version",
                CARGO_DENY,
                "--locked",
                "--debug",
            ])),
            Tool::Rustfmt => shell::run(Command::new("rustup").args(["component", "add", "rustfmt"])),
            Tool::Clippy => shell::run(Command::new("rustup").args(["component", "add", "clippy"])),
            Tool::Promtool => {
                let tools = tools_directory();
                fs::create_dir_all(&tools).with_context(|| format!("making {}", tools.display()))?;
                let unpacked = tools.join("prometheus");
                apt::unpack("prometheus", &unpacked)?;
                symlink("prometheus/usr/bin/promtool", tools.join("promtool")).context("linking promtool")
            }
        }
    }
}

fn of(need: Need) -> &'static [Tool] {
    match need {
        Need::Build => &[Tool::BpfLinker],
        Need::Test => &[Tool::Promtool],
        Need::Check => &[Tool::Rustfmt, Tool::Clippy, Tool::CargoDeny],
        Need::Hosts | Need::Vm | Need::Bench => &[],
    }
}

/// The tools of a group that are not there.
pub(super) fn missing(need: Need) -> Vec<Tool> {
    of(need).iter().copied().filter(|tool| !tool.is_there()).collect()
}

/// Installs the missing tools of a group.
pub(super) fn install(need: Need) -> anyhow::Result<()> {
    missing(need).into_iter().try_for_each(Tool::install)
}

/// Where tools are put that belong to no package manager; the tests have it on their PATH.
pub(crate) fn tools_directory() -> PathBuf {
    if Uid::effective().is_root() {
        return "/var/cache/ringfence/tools".into();
    }
    std::env::home_dir().unwrap_or_else(|| "/var/tmp".into()).join(".cache/ringfence/tools")
}
