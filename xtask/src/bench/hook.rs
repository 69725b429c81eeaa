//! From the host's spawn of the hook to its answer, with a warm service, beside a bare spawn of `/bin/true` in the same shape.

use std::process::Stdio;

use anyhow::{Context as _, ensure};
use nix::unistd::Uid;
use ringfence::host::claude_code::settings;
use ringfence_tests::running::{Probe, Service};
use serde_json::Value;

use super::Ground;
use super::results::Results;

/// Milliseconds of one PreToolUse of a Bash call, started by the scripted host: the service hears only a host's hooks.
pub fn run(ground: &Ground, results: &mut Results) -> anyhow::Result<()> {
    let (stage, person) = (&ground.stage, &ground.person);
    let probe = if Uid::effective().is_root() {
        Some(Probe::start(stage)?)
    } else {
        results.note("hook: not root, so without a probe");
        None
    };
    let service = Service::start_with(stage, person, &["--metrics-port", "0"])?;
    let settings = settings::settings(&stage.hook(), &stage.launcher(), "2.1.332")?;
    let settings = person.file(".claude/settings.json", settings.to_string())?;
    let commands: Vec<String> =
        (0..ground.n).map(|index| format!("cargo test --package part-{index} | tail -n 20")).collect();
    let script = person.file("bench-script.json", serde_json::to_vec(&commands)?)?;
    let project = person.directory("bench-project")?;
    let mut host = person.command(&ground.scripted_host);
    host.arg(settings).arg(script).arg("--time-hooks").current_dir(project).stdin(Stdio::null());
    let output = host.output().context("starting the scripted host")?;
    ensure!(output.status.success(), "the scripted host failed: {}", String::from_utf8_lossy(&output.stderr));
    let (mut hook, mut bare) = (Vec::new(), Vec::new());
    for line in String::from_utf8(output.stdout)?.lines() {
        let line: Value = serde_json::from_str(line)?;
        ensure!(line["denied"].is_null(), "a harmless command was denied: {}\n{}", line["denied"], service.log());
        hook.push(line["hook_us"].as_f64().context("hook_us")? / 1e3);
        bare.push(line["bare_us"].as_f64().context("bare_us")? / 1e3);
    }
    ensure!(hook.len() == ground.n, "{} of {} calls were answered", hook.len(), ground.n);
    drop(service);
    drop(probe);
    results.add("hook", "ms", vec![("ringfence-hook", hook), ("bare", bare)]);
    Ok(())
}
