//! What rules cost a marked process, beside bpftrace watching the same: see `agent/benches/rules.rs`.

use std::process::Command;

use anyhow::{Context as _, ensure};
use nix::unistd::Uid;
use ringfence_tests::stage::built_by;
use serde_json::Value;

use super::Ground;
use super::results::Results;
use crate::shell;

/// The contenders, in the order of the table.
const NAMES: [&str; 5] = ["no programs", "bpftrace", "no rules", "128 rules", "10000 addresses"];

/// Microseconds of an exec and of a connect; nanoseconds of each program as notes.
pub fn run(ground: &Ground, results: &mut Results) -> anyhow::Result<()> {
    if !Uid::effective().is_root() {
        results.note("rules: not root, so no programs can be loaded: not measured");
        return Ok(());
    }
    let mut build = shell::cargo();
    build.args(["bench", "--no-run", "--package", "ringfence", "--features", "service", "--bench", "rules"]);
    build.args(["--message-format", "json-render-diagnostics"]);
    let program = built_by(&mut build)?.pop().context("the program was not built")?;
    let mut bench = Command::new(program);
    let output = bench
        .arg(ground.n.to_string())
        .arg(ground.person.uid().to_string())
        .arg(&ground.actor)
        .output()
        .context("starting it")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let told: Value = serde_json::from_slice(&output.stdout)?;
    for what in ["exec", "connect"] {
        let samples = |name: &str| -> Vec<f64> {
            told[what][name].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        results.add(&format!("rules-{what}"), "us", NAMES.map(|name| (name, samples(name))).to_vec());
    }
    told["notes"].as_array().into_iter().flatten().filter_map(Value::as_str).for_each(|note| results.note(note));
    Ok(())
}
