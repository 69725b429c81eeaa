//! Whole sessions: the report must say what really happened.

use std::process::Stdio;

use anyhow::{Context as _, ensure};
use ringfence_tests::host::Host;
use ringfence_tests::scene::{Scene, Told};
use ringfence_tests::suite::CaseResult;
use serde_json::Value;

use crate::stand::{SPOKEN_VERSION, Stand, scripted_host};

/// A real host.
pub fn real(version: &str) -> CaseResult {
    let host = Host::claude_code(version)?;
    let stand = Stand::observed()?;
    let scene = Scene::set(&stand.person)?;
    let calls = scene.play(&host, &stand.person, stand.settings(version)?)?;
    judge(&stand, &scene, &calls)
}

/// The scripted host.
pub fn scripted() -> CaseResult {
    let stand = Stand::observed()?;
    let scene = Scene::set(&stand.person)?;
    let calls = scene.play_scripted(&scripted_host(&stand.person)?, &stand.person, &stand.settings(SPOKEN_VERSION)?)?;
    judge(&stand, &scene, &calls)
}

/// Two sessions in turn in one host process: the mark and the plan go on with the host.
pub fn cleared() -> CaseResult {
    let stand = Stand::observed()?;
    let person = &stand.person;
    let settings = person.file(".claude/settings.json", stand.settings(SPOKEN_VERSION)?.to_string())?;
    let script = person.file("script.json", r#"["true", "/bin/echo said; exit 3"]"#)?;
    let mut host = person.command(scripted_host(person)?);
    host.arg(settings).arg(script).arg("--clear").current_dir(person.directory("project")?).stdin(Stdio::null());
    let output = host.output()?;
    ensure!(output.status.success(), "the scripted host failed: {}", String::from_utf8_lossy(&output.stderr));
    let sessions: Value = serde_json::from_str(&stand.service.ask(person, &["sessions", "--json"])?)?;
    let ids: Vec<&str> = sessions.as_array().context("sessions")?.iter().filter_map(|one| one["id"].as_str()).collect();
    ensure!(ids.len() == 2, "two sessions: {sessions}");
    for id in ids {
        let report: Value = serde_json::from_str(&stand.service.ask(person, &["report", "--session", id, "--json"])?)?;
        let session = &report["sessions"][0];
        let entries = session["entries"].as_array().context("entries")?;
        let as_decided = |entry: &Value| {
            entry["verdict"] == "confirmed" && entry["binding"] == "digest" && entry["evidence"] == "kernel"
        };
        ensure!(entries.len() == 2 && entries.iter().all(as_decided), "{report:#}\n{}", stand.logs());
        ensure!(session["unhooked"] == 0, "{report:#}");
    }
    Ok(())
}

/// The scripted host, and no probe anywhere.
pub fn without_probe() -> CaseResult {
    let stand = Stand::unobserved()?;
    let scene = Scene::set(&stand.person)?;
    let calls = scene.play_scripted(&scripted_host(&stand.person)?, &stand.person, &stand.settings(SPOKEN_VERSION)?)?;
    let report = judge(&stand, &scene, &calls).and_then(|()| scene.report(&stand.service, &stand.person, false))?;
    let layers = report["coverage"]["layers"].as_array().context("coverage.layers")?;
    let observation = layers.iter().find(|layer| layer["layer"] == "observation").context("no layer observation")?;
    ensure!(observation["state"] == "absent", "{observation}");
    let entries = report["sessions"][0]["entries"].as_array().context("entries")?;
    let evidence = |entry: &Value| entry["evidence"].as_str().unwrap_or("none").to_owned();
    ensure!(entries.iter().all(|entry| evidence(entry) != "kernel"), "nothing observed, yet: {entries:?}");
    Ok(())
}

fn judge(stand: &Stand, scene: &Scene, calls: &[Told]) -> CaseResult {
    let probe = stand.probe.is_some();
    let report = scene.report(&stand.service, &stand.person, probe)?;
    let checks = scene.checks(&report, calls, probe);
    let broken: Vec<&str> = checks.iter().filter(|check| !check.holds).map(|check| check.what.as_str()).collect();
    ensure!(broken.is_empty(), "{}\n{report:#}\n{}", broken.join("\n"), stand.logs());
    Ok(())
}
