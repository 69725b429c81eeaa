//! `cargo xtask test [SUITE…]`: everything, counted in one line at the end.

mod leftovers;
pub(crate) mod programs;
pub(crate) mod unit;

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use ringfence_tests::stage::{self, Build};
use ringfence_tests::suite::{Outcome, Record};

use crate::setup::{self, Need};
use crate::vm;

/// What to run.
#[derive(clap::Args)]
pub struct Options {
    /// `unit`, or a suite under tests/; all when none is named
    suites: Vec<String>,
    /// Run only cases whose name contains this
    #[arg(long, short)]
    filter: Option<String>,
    /// Append one JSON object per case to this file
    #[arg(long)]
    record: Option<std::path::PathBuf>,
    /// Take the machine as it is: install nothing first
    #[arg(long)]
    no_setup: bool,
}

/// The suite of unit tests, which has no directory of its own.
const UNIT: &str = "unit";

/// Runs the tests; `false` when some failed.
pub fn run(options: &Options) -> anyhow::Result<bool> {
    let known = programs::suites()?;
    let all = std::iter::once(UNIT.to_owned()).chain(known.iter().cloned());
    let wanted: Vec<String> = if options.suites.is_empty() { all.collect() } else { options.suites.clone() };
    let (wanted, unknown): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|name| name == UNIT || known.contains(name));
    let real: Vec<&str> = wanted.iter().map(String::as_str).filter(|name| *name != UNIT).collect();

    let mut needs = vec![Need::Build];
    if !real.is_empty() {
        needs.extend([Need::Test, Need::Hosts]);
    }
    if real.contains(&vm::SUITE) {
        needs.push(Need::Vm);
    }
    if !options.no_setup {
        setup::ensure(&needs)?;
    }
    crate::build_ebpf::run_if_possible();
    let run = std::process::id().to_string();
    let room = tempfile::Builder::new().prefix(&format!("ringfence-run-{run}-")).tempdir_in(stage::ROOMS)?;
    open_to_others(room.path())?;

    let mut records: Vec<Record> = unknown.iter().map(|name| no_such_suite(name, &known)).collect();
    if wanted.iter().any(|name| name == UNIT) {
        records.extend(unit::run(options.filter.as_deref())?);
    }
    if !real.is_empty() {
        let staged = room.path().join("programs");
        stage::build_into(&staged, Build { release: false, overrides: true })?;
        let here: Vec<&str> = real.iter().copied().filter(|name| *name != vm::SUITE).collect();
        for (name, program) in programs::build(&here)? {
            let context =
                programs::Context { run: &run, programs: &staged, record: &room.path().join(format!("{name}.jsonl")) };
            records.extend(programs::run(&name, &program, options.filter.as_slice(), &context)?);
        }
        if real.contains(&vm::SUITE) {
            records.extend(vm::everywhere(&run, &staged, room.path(), options.filter.as_slice())?);
        }
    }
    drop(room);
    records.push(leftovers::look(&run));
    if let Some(file) = &options.record {
        append(file, &records)?;
    }
    Ok(report(&records))
}

pub(crate) fn open_to_others(directory: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))?)
}

fn no_such_suite(name: &str, known: &[String]) -> Record {
    let reason = format!("there is no suite {name} (there are: {UNIT}, {})", known.join(", "));
    Record { suite: name.into(), name: "exists".into(), outcome: Outcome::Failed, reason: Some(reason), seconds: 0.0 }
}

fn append(file: &Path, records: &[Record]) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
    for record in records {
        writeln!(out, "{}", serde_json::to_string(record)?).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

/// The reasons, then the one line.
pub(crate) fn report(records: &[Record]) -> bool {
    let of = |outcome: Outcome| records.iter().filter(move |record| record.outcome == outcome);
    println!();
    for (word, outcome) in [("skipped", Outcome::Skipped), ("FAILED", Outcome::Failed)] {
        for record in of(outcome) {
            println!(
                "{word} {}: {}: {}",
                record.suite,
                record.name,
                record.reason.as_deref().unwrap_or("no reason given")
            );
        }
    }
    let count = |outcome| of(outcome).count();
    let failed = count(Outcome::Failed);
    println!("{} passed, {failed} failed, {} skipped", count(Outcome::Passed), count(Outcome::Skipped));
    failed == 0
}

/// The tools of `setup` first on the PATH.
fn with_tools(command: &mut Command) -> &mut Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let with = std::env::split_paths(&path).chain([setup::tools_directory()]);
    match std::env::join_paths(with) {
        Ok(path) => command.env("PATH", path),
        Err(_) => command, // A PATH that cannot be extended is used as it is.
    }
}
