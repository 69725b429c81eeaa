//! Whole sessions: the report must say what really happened.

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
