//! The unit tests: cargo's own, run program by program and counted one by one.
//!
//! A unit test that cannot run here prints `skipped: REASON` and returns; it is counted as skipped, not as passed.

use std::process::{Command, Stdio};

use anyhow::Context as _;
use ringfence_tests::stage::workspace;
use ringfence_tests::suite::{Outcome, Record};

use super::{UNIT, programs};
use crate::shell;

/// The crate whose other targets are suites.
const SUITES: &str = "ringfence-tests";

/// Builds and runs the unit tests of every crate.
pub(super) fn run(filter: Option<&str>) -> anyhow::Result<Vec<Record>> {
    let mut built = Vec::new();
    // Named targets would include a program that says it has no test harness; of the suites' crate only these are unit tests.
    for targets in [&["--workspace", "--exclude", SUITES][..], &["--package", SUITES, "--lib", "--bins"]] {
        built.extend(programs::test_programs(shell::cargo().args(["test", "--no-run"]).args(targets))?);
    }
    let mut records = Vec::new();
    for (name, program) in built {
        let mut command = Command::new(&program);
        super::with_tools(&mut command).current_dir(workspace().join("agent")).stdin(Stdio::null());
        let output = command.arg("--show-output").args(filter).output().with_context(|| format!("starting {name}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut found = read(&name, &text);
        let failures = found.iter().filter(|record| record.outcome == Outcome::Failed).count();
        if !output.status.success() && failures == 0 {
            let said = String::from_utf8_lossy(&output.stderr);
            let reason = format!("the unit tests of {name} ended early: {}: {}", output.status, said.trim());
            found.push(record(&name, "runs", Outcome::Failed, Some(reason)));
        }
        if failures > 0 {
            print!("{text}");
        }
        if !found.is_empty() {
            let skipped = found.iter().filter(|record| record.outcome == Outcome::Skipped).count();
            println!(
                "{UNIT}: {name}: {} passed, {failures} failed, {skipped} skipped",
                found.len() - failures - skipped
            );
        }
        records.extend(found);
    }
    Ok(records)
}

fn record(program: &str, test: &str, outcome: Outcome, reason: Option<String>) -> Record {
    Record { suite: UNIT.into(), name: format!("{program} {test}"), outcome, reason, seconds: 0.0 }
}

/// Reads what the standard test program prints with `--show-output`.
pub(crate) fn read(program: &str, text: &str) -> Vec<Record> {
    let mut records = Vec::new();
    for line in text.lines() {
        let Some((test, result)) = line.strip_prefix("test ").and_then(|line| line.split_once(" ... ")) else {
            continue;
        };
        let test = test.trim_end_matches(" - should panic");
        let (outcome, reason) = match result {
            "ok" => match skip_reason(text, test) {
                Some(reason) => (Outcome::Skipped, Some(reason)),
                None => (Outcome::Passed, None),
            },
            "FAILED" => (Outcome::Failed, Some(failure(text, test))),
            ignored => {
                let reason = ignored.trim_start_matches("ignored").trim_start_matches([',', ' ']);
                let reason = if reason.is_empty() { "ignored without a reason" } else { reason };
                (Outcome::Skipped, Some(reason.to_owned()))
            }
        };
        records.push(record(program, test, outcome, reason));
    }
    records
}

/// What a test printed.
fn output_of<'t>(text: &'t str, test: &str) -> &'t str {
    let head = format!("---- {test} stdout ----\n");
    let Some((_, rest)) = text.split_once(&head) else { return "" };
    rest.split_once("\n\n---- ").or_else(|| rest.split_once("\n\n\n")).map_or(rest, |(output, _)| output)
}

fn skip_reason(text: &str, test: &str) -> Option<String> {
    let mut lines = output_of(text, test).lines();
    lines.find_map(|line| line.strip_prefix("skipped: ").or_else(|| line.strip_prefix("SKIPPED: "))).map(str::to_owned)
}

fn failure(text: &str, test: &str) -> String {
    let output = output_of(text, test);
    let panic = output.lines().find(|line| line.contains("panicked at ") || line.starts_with("Error: "));
    panic.unwrap_or("see its output above").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read_from_the_test_program() {
        let text = "\nrunning 5 tests\ntest a::passes ... ok\ntest a::cannot ... ok\ntest a::fails ... FAILED\n\
                    test a::later ... ignored, needs two machines\ntest a::p - should panic ... ok\n\nsuccesses:\n\n\
                    ---- a::cannot stdout ----\nskipped: no probe here\n\n\nsuccesses:\n    a::cannot\n\nfailures:\n\n\
                    ---- a::fails stdout ----\n\nthread 'a::fails' (1) panicked at src/a.rs:3:5:\nboom\n\n\nfailures:\n    a::fails\n\n\
                    test result: FAILED. 3 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        let told: Vec<_> = read("x", text).into_iter().map(|r| (r.name, r.outcome, r.reason)).collect();
        let expect = [
            ("x a::passes", Outcome::Passed, None),
            ("x a::cannot", Outcome::Skipped, Some("no probe here")),
            ("x a::fails", Outcome::Failed, Some("thread 'a::fails' (1) panicked at src/a.rs:3:5:")),
            ("x a::later", Outcome::Skipped, Some("needs two machines")),
            ("x a::p", Outcome::Passed, None),
        ];
        assert_eq!(told, expect.map(|(name, outcome, reason)| (name.into(), outcome, reason.map(String::from))));
    }
}
