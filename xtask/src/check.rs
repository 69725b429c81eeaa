//! `cargo xtask check`: formatting, lints with warnings denied, and what the dependencies bring in.

use std::path::Path;

use crate::setup::Need;
use crate::shell;
use crate::shell::cargo;

/// Stops at the first thing that does not hold.
pub fn run() -> anyhow::Result<()> {
    crate::setup::ensure(&[Need::Build, Need::Check])?;
    shell::run(cargo().args(["fmt", "--all", "--check"]))?;
    if Path::new(ringfence_tests::stage::workspace()).join("ebpf/Cargo.toml").exists() {
        shell::run(cargo().args(["fmt", "--manifest-path", "ebpf/Cargo.toml", "--check"]))?;
    }
    shell::run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    // What the two small programs are built from, as they are built and as tests build them.
    for features in ["", "test-overrides"] {
        shell::run(cargo().args([
            "clippy",
            "-p",
            "ringfence",
            "--no-default-features",
            "--features",
            features,
            "--",
            "-D",
            "warnings",
        ]))?;
    }
    // Advisories need a network and change by themselves; these three do not, once the sources are on this machine.
    shell::run(cargo().args(["fetch", "--locked"]))?;
    shell::run(cargo().args(["deny", "--offline", "--workspace", "check", "bans", "licenses", "sources"]))
}
