//! What runs is seen, and known to belong to the command that was asked for.

use anyhow::{Context as _, ensure};
use ringfence_tests::suite::CaseResult;

use serde_json::Value;

use crate::stand::{Case, Stand};

/// This file's cases.
pub fn cases() -> Vec<Case> {
    vec![
        ("a supervised command is observed, attributed and confirmed", supervised),
        ("sessions in one directory do not take the working tree from each other", beside_each_other),
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

/// Sessions come and go beside each other in one directory.
fn beside_each_other(stand: &Stand) -> CaseResult {
    const ROUNDS: usize = 8;
    let one = |name: &str| -> CaseResult {
        for round in 0..ROUNDS {
            let ran = stand.run(&format!("touch {name} && rm {name}"))?;
            ensure!(ran.code == Some(0), "{name}, round {round}: {}", ran.account());
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| one("other"));
        one("one")?;
        other.join().map_err(|_| anyhow::anyhow!("the other one panicked"))?
    })
}
