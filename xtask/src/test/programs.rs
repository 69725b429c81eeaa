//! The suites: which there are, building their programs, running one.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use ringfence_tests::stage::{PROGRAMS_VARIABLE, RUN_VARIABLE, workspace};
use ringfence_tests::suite::{Outcome, Record};
use serde::Deserialize;
use serde_json::Value;

use crate::shell;

/// The suites that `tests/Cargo.toml` registers, in its order.
pub(super) fn suites() -> anyhow::Result<Vec<String>> {
    #[derive(Deserialize)]
    struct Manifest {
        test: Vec<Test>,
    }
    #[derive(Deserialize)]
    struct Test {
        name: String,
    }
    let file = workspace().join("tests/Cargo.toml");
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let manifest: Manifest = toml::from_str(&text).with_context(|| format!("reading {}", file.display()))?;
    Ok(manifest.test.into_iter().map(|test| test.name).collect())
}

/// Builds the programs of these suites, in the order given.
pub(crate) fn build(names: &[&str]) -> anyhow::Result<Vec<(String, PathBuf)>> {
    if names.is_empty() {
        return Ok(Vec::new()); // Cargo would build them all.
    }
    let mut command = shell::cargo();
    command.args(["test", "--no-run", "--package", "ringfence-tests"]);
    names.iter().for_each(|name| {
        command.args(["--test", name]);
    });
    let built = test_programs(&mut command)?;
    let find = |name: &&str| built.get(*name).map(|program| ((*name).to_owned(), program.clone()));
    let found: Vec<_> = names.iter().filter_map(find).collect();
    ensure!(found.len() == names.len(), "cargo did not name the programs of {names:?}");
    Ok(found)
}

/// Runs a `cargo test --no-run` and answers with its programs by target name; several targets may share a name.
pub(crate) fn test_programs(command: &mut Command) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    command.args(["--message-format", "json-render-diagnostics"]).stdout(Stdio::piped());
    let mut child = command.spawn().context("starting cargo")?;
    let messages = BufReader::new(child.stdout.take().context("cargo's output")?);
    let mut programs = BTreeMap::new();
    for message in serde_json::Deserializer::from_reader(messages).into_iter::<Value>() {
        let message = message.context("reading cargo's messages")?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            continue;
        }
        if let (Some(name), Some(program)) = (message["target"]["name"].as_str(), message["executable"].as_str()) {
            let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
            let key = if kind == "bin" { format!("{name} (program)") } else { name.to_owned() };
            programs.insert(key, PathBuf::from(program));
        }
    }
    ensure!(child.wait()?.success(), "the tests could not be built");
    Ok(programs)
}

/// What a suite is told.
pub(crate) struct Context<'a> {
    /// Names this run.
    pub run: &'a str,
    /// The five programs, already built.
    pub programs: &'a Path,
    /// Where its records go.
    pub record: &'a Path,
}

/// Runs one suite.
pub(crate) fn run(
    name: &str,
    program: &Path,
    filters: &[String],
    context: &Context<'_>,
) -> anyhow::Result<Vec<Record>> {
    let mut command = Command::new(program);
    super::with_tools(&mut command).current_dir(workspace().join("tests")).stdin(Stdio::null());
    command.env(PROGRAMS_VARIABLE, context.programs).env(RUN_VARIABLE, context.run);
    let status = command.arg("--record").arg(context.record).args(filters).status();
    let status = status.with_context(|| format!("starting suite {name}"))?;
    let text = std::fs::read_to_string(context.record).unwrap_or_default();
    let mut records: Vec<Record> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let failures = records.iter().any(|record| record.outcome == Outcome::Failed);
    if !status.success() && !failures {
        // It broke before or between cases: that is a failure of its own.
        let reason = Some(format!("the suite ended early: {status}"));
        records.push(Record {
            suite: name.into(),
            name: "runs".into(),
            outcome: Outcome::Failed,
            reason,
            seconds: 0.0,
        });
    }
    Ok(records)
}
