//! What runs is seen, and known to belong to the command that was asked for.

use anyhow::{Context as _, ensure};
use ringfence_tests::suite::CaseResult;

use serde_json::Value;

use crate::stand::{Case, Stand};

/// This file's cases.
pub fn cases() -> Vec<Case> {
    vec![
        ("a supervised command is observed, attributed and confirmed", supervised),
        ("each of a hundred short processes is counted, and none is lost", short_lived),
    ]
}

fn supervised(stand: &Stand) -> CaseResult {
    let ran = stand.run("/usr/bin/id -u; /usr/bin/touch made; exit 3")?;
    ensure!(
        ran.code == Some(3) && ran.printed.trim() == stand.person.uid().to_string(),
        "{:?} {}",
        ran.code,
        ran.printed
    );
    ensure!(stand.tree.join("made").exists());
    let entry = ran.entry()?;
    ensure!(entry["verdict"] == "confirmed" && entry["evidence"] == "kernel", "{entry:#}");
    let executions = entry["executions"].as_array().context("executions")?;
    for path in ["/usr/bin/id", "/usr/bin/touch"] {
        ensure!(executions.iter().any(|one| one["path"] == path), "no {path} in {entry:#}");
    }
    ensure!(nothing_missed(&ran.session), "{:#}", ran.session);
    Ok(())
}

fn short_lived(stand: &Stand) -> CaseResult {
    let ran = stand.run("i=0; while [ $i -lt 100 ]; do /usr/bin/true; i=$((i+1)); done")?;
    let entry = ran.entry()?;
    let counts = &entry["counts"];
    ensure!(counts["executions"].as_u64() >= Some(100) && counts["processes"].as_u64() >= Some(100), "{counts}");
    ensure!(nothing_missed(&ran.session), "{:#}", ran.session);
    Ok(())
}

fn nothing_missed(session: &Value) -> bool {
    let losses = &session["losses"];
    session["unhooked"] == 0 && losses["lost"] == 0 && losses["attempted"] == losses["reported"]
}
