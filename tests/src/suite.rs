//! The harness: a suite is a program whose cases pass, fail, or say why they cannot run here.
//!
//! ```no_run
//! use ringfence_tests::suite::{CaseResult, Suite};
//!
//! fn main() -> std::process::ExitCode {
//!     Suite::new("escapes").case("a fenced command cannot write outside", outside).run()
//! }
//!
//! fn outside() -> CaseResult {
//!     Ok(())
//! }
//! ```
//!
//! Arguments: `[FILTER…]` (a case runs if its name contains one), `--list`, `--record FILE` (one JSON [`Record`] per line,
//! appended; `RINGFENCE_TEST_RECORD` does the same). Each case runs in a process of its own with a time limit; what it leaves
//! running is killed and makes it fail.

mod supervise;

use std::fmt;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What a case returns. An error fails it, except [`CannotRun`], which skips it.
pub type CaseResult = anyhow::Result<()>;

/// Why a case cannot run on this machine: returned as an error, it makes the case `skipped`.
#[derive(Clone, Debug)]
pub struct CannotRun(pub String);

impl fmt::Display for CannotRun {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for CannotRun {}

/// Skips the case that calls it: `return skip("no BPF LSM on this kernel")`.
pub fn skip(reason: impl Into<String>) -> CaseResult {
    Err(CannotRun(reason.into()).into())
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It held.
    Passed,
    /// It did not.
    Failed,
    /// It could not run here.
    Skipped,
}

/// One line of the record file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The suite.
    pub suite: String,
    /// The case.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it failed or was skipped.
    pub reason: Option<String>,
    /// Wall-clock seconds.
    pub seconds: f64,
}

struct Case {
    name: String,
    limit: Duration,
    body: Box<dyn Fn() -> CaseResult>,
}

/// A suite under construction.
pub struct Suite {
    name: &'static str,
    limit: Duration,
    own_process: bool,
    cases: Vec<Case>,
}

impl Suite {
    /// An empty suite. Its cases may take a minute each, in a process of their own.
    pub fn new(name: &'static str) -> Suite {
        Suite { name, limit: Duration::from_secs(60), own_process: true, cases: Vec::new() }
    }

    /// The time limit of the cases that are added after this.
    pub fn limit(mut self, limit: Duration) -> Suite {
        self.limit = limit;
        self
    }

    /// Runs all cases inside the suite's own process: for many small ones that only compute (no limit, no people).
    pub fn in_process(mut self) -> Suite {
        self.own_process = false;
        self
    }

    /// Adds a case.
    pub fn case(mut self, name: impl Into<String>, body: impl Fn() -> CaseResult + 'static) -> Suite {
        let name = name.into();
        assert!(self.cases.iter().all(|case| case.name != name), "two cases are called {name:?}");
        self.cases.push(Case { name, limit: self.limit, body: Box::new(body) });
        self
    }

    /// Runs what the command line asks for: all cases, or one case as its own process.
    pub fn run(self) -> ExitCode {
        match Arguments::read() {
            Ok(Arguments::Suite { filters, record, list }) => self.run_cases(&filters, record, list),
            Ok(Arguments::Supervise { case, result }) => supervise::supervise(self.find(&case), &result),
            Ok(Arguments::Body { case, result }) => self.find(&case).run_as_this_process(&result),
            Err(message) => {
                eprintln!("{}: {message}", self.name);
                ExitCode::from(2)
            }
        }
    }

    fn find(&self, name: &str) -> &Case {
        self.cases.iter().find(|case| case.name == name).expect("the suite names only its own cases")
    }

    fn run_cases(&self, filters: &[String], record: Option<PathBuf>, list: bool) -> ExitCode {
        let chosen = |case: &&Case| filters.is_empty() || filters.iter().any(|filter| case.name.contains(filter));
        if list {
            self.cases.iter().filter(chosen).for_each(|case| println!("{}: test", case.name));
            return ExitCode::SUCCESS;
        }
        let mut counts = (0, 0, 0);
        for case in self.cases.iter().filter(chosen) {
            let begun = Instant::now();
            let (outcome, reason) = if self.own_process { supervise::in_own_process(case) } else { judge(&*case.body) };
            let seconds = begun.elapsed().as_secs_f64();
            match outcome {
                Outcome::Passed => counts.0 += 1,
                Outcome::Failed => counts.1 += 1,
                Outcome::Skipped => counts.2 += 1,
            }
            print_line(self.name, &case.name, outcome, reason.as_deref(), seconds);
            let line = Record { suite: self.name.into(), name: case.name.clone(), outcome, reason, seconds };
            if let Some(file) = &record
                && let Err(error) = append(file, &line)
            {
                eprintln!("{}: {}: {error}", self.name, file.display());
                return ExitCode::FAILURE;
            }
        }
        println!("{}: {} passed, {} failed, {} skipped", self.name, counts.0, counts.1, counts.2);
        if counts.1 == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Case {
    /// The innermost process: people can be made here, since nothing else has started yet.
    fn run_as_this_process(&self, result: &std::path::Path) -> ExitCode {
        crate::person::prepare_this_process();
        supervise::write_verdict(result, &judge(&*self.body));
        ExitCode::SUCCESS
    }
}

fn judge(body: &dyn Fn() -> CaseResult) -> (Outcome, Option<String>) {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => (Outcome::Passed, None),
        Ok(Err(error)) => match error.downcast_ref::<CannotRun>() {
            Some(CannotRun(reason)) => (Outcome::Skipped, Some(reason.clone())),
            None => (Outcome::Failed, Some(format!("{error:#}"))),
        },
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("panicked");
            (Outcome::Failed, Some(text.to_owned()))
        }
    }
}

fn print_line(suite: &str, name: &str, outcome: Outcome, reason: Option<&str>, seconds: f64) {
    let word = match outcome {
        Outcome::Passed => "pass",
        Outcome::Failed => "FAIL",
        Outcome::Skipped => "skip",
    };
    match reason {
        Some(reason) => println!("{word} {suite}: {name} ({seconds:.2} s): {reason}"),
        None => println!("{word} {suite}: {name} ({seconds:.2} s)"),
    }
}

fn append(file: &std::path::Path, record: &Record) -> std::io::Result<()> {
    let mut out = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    out.write_all(&line)
}

enum Arguments {
    Suite { filters: Vec<String>, record: Option<PathBuf>, list: bool },
    Supervise { case: String, result: PathBuf },
    Body { case: String, result: PathBuf },
}

impl Arguments {
    fn read() -> Result<Arguments, String> {
        let mut words = std::env::args().skip(1);
        let (mut filters, mut list) = (Vec::new(), false);
        let mut record = std::env::var_os("RINGFENCE_TEST_RECORD").map(PathBuf::from);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--record" => record = Some(value()?.into()),
                "--list" => list = true,
                supervise::SUPERVISE => return Ok(Arguments::Supervise { case: value()?, result: value()?.into() }),
                supervise::BODY => return Ok(Arguments::Body { case: value()?, result: value()?.into() }),
                // `cargo test` hands its own harness options to every program.
                "--nocapture" | "--show-output" | "-q" | "--quiet" => {}
                other if other.starts_with('-') => return Err(format!("unknown option {other}")),
                _ => filters.push(word),
            }
        }
        Ok(Arguments::Suite { filters, record, list })
    }
}
