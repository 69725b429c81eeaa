//! What `ringfence status` says of this kernel's gates, and what a session may require of them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ringfence_tests::suite::CaseResult;
use serde_json::Value;

use crate::machine::is_guest;
use crate::stand::{Case, Stand};

/// Gates of processes and programs: each is proven to be shut by BPF LSM wherever that is active.
const BY_LSM: [&str; 6] = ["exec", "exec_anonymous", "signal", "trace", "namespace", "bpf"];
/// An emulated machine is slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// This file's cases.
pub fn cases() -> Vec<Case> {
    vec![("canaries prove each gate by its layer, and grades are what they prove", proven)]
}

fn proven(stand: &Stand) -> CaseResult {
    let Stand { service, probe, person, stage: _, tree } = stand;
    let begun = Instant::now();
    let gates = loop {
        let status: Value = serde_json::from_str(&service.ask(person, &["status", "--json"])?)?;
        let gates = status["gates"].as_array().context("gates")?.clone();
        if gates.iter().any(|gate| gate["gate"] == "exec" && gate["proven_at"].is_string()) {
            break gates;
        }
        ensure!(
            begun.elapsed() < PATIENCE,
            "nothing is proven: {status:#}\nservice: {}\nprobe: {}",
            service.log(),
            probe.log()
        );
        std::thread::sleep(Duration::from_millis(200));
    };
    println!("{}", service.ask(person, &["status"])?);
    let state = |name: &str| {
        let gate = gates.iter().find(|gate| gate["gate"] == name).with_context(|| format!("no gate {name}"))?;
        Ok::<_, anyhow::Error>((gate["layer"].as_str().unwrap_or_default(), gate["state"].as_str().unwrap_or_default()))
    };
    for name in BY_LSM {
        let expected = match (is_guest(), name) {
            (true, _) => ("bpf_lsm", "enforced"),
            (false, "exec" | "exec_anonymous") => ("signal", "enforced"),
            (false, _) => ("bpf_lsm", "absent"),
        };
        ensure!(state(name)? == expected, "{name}: {:?} instead of {expected:?} in {gates:#?}", state(name)?);
    }
    let run = |words: &[&str]| -> anyhow::Result<(Option<i32>, String)> {
        let marker = tree.join("ran");
        let _ = std::fs::remove_file(&marker);
        let mut all = vec!["run"];
        all.extend(words);
        all.extend(["--", "touch", "ran"]);
        let output = service.ringfence(person, &all).current_dir(tree).output()?;
        ensure!(marker.exists() == output.status.success(), "{words:?}: {output:?}");
        Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let (code, said) = run(&["--require", "landlock"])?;
    ensure!(code == Some(0), "{code:?}: {said}");
    if !is_guest() {
        let (code, said) = run(&["--require", "kernel"])?;
        ensure!(code == Some(125) && said.contains("signal (bpf_lsm)"), "{code:?}: {said}");
        // The default fence lets unix sockets be used, and without LSM none of them can be told from another.
        let (code, said) = run(&["--strict"])?;
        ensure!(code == Some(125) && said.contains("unix_path"), "{code:?}: {said}");
    }
    Ok(())
}
