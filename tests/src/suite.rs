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
//! appended; `RINGFENCE_TEST_RECORD` does the same). Each case runs in a process of its own with a time limit, or with others
//! that share what is dear to start ([`Suite::together`]); what it leaves running is killed and makes it fail.

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

/// A case of [`Suite::together`]: its name, and what it does with what is shared.
pub type Shared<T> = (&'static str, fn(&T) -> CaseResult);

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

/// Cases that run in one process: mostly one.
struct Job {
    suite: &'static str,
    names: Vec<String>,
    limit: Duration,
    body: Body,
}

/// Runs the cases named and tells how each ended.
type Body = Box<dyn Fn(&[String], &mut dyn FnMut(Record))>;

type Verdict = (Outcome, Option<String>);

/// A suite under construction.
pub struct Suite {
    name: &'static str,
    limit: Duration,
    own_process: bool,
    jobs: Vec<Job>,
}

impl Suite {
    /// An empty suite. Its cases may take a minute each, in a process of their own.
    pub fn new(name: &'static str) -> Suite {
        Suite { name, limit: Duration::from_secs(60), own_process: true, jobs: Vec::new() }
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
        let (name, suite) = (name.into(), self.name);
        let told = name.clone();
        let body = move |_: &[String], tell: &mut dyn FnMut(Record)| tell(timed(suite, &told, || judge(&body)));
        self.add(vec![name], Box::new(body));
        self
    }

    /// Adds cases that share what `start` makes: in one process, `start` once, then the cases that are asked for, in this
    /// order. The limit is for each; where `start` fails, or cannot run here, so do they all.
    pub fn together<T: 'static>(
        mut self,
        start: impl Fn() -> anyhow::Result<T> + 'static,
        cases: Vec<Shared<T>>,
    ) -> Suite {
        let suite = self.name;
        let names = cases.iter().map(|(name, _)| (*name).to_owned()).collect();
        let body = move |chosen: &[String], tell: &mut dyn FnMut(Record)| {
            let shared = attempt(&start);
            for (name, case) in cases.iter().filter(|(name, _)| chosen.iter().any(|one| one == name)) {
                tell(timed(suite, name, || match &shared {
                    Ok(shared) => judge(|| case(shared)),
                    Err(verdict) => verdict.clone(),
                }));
            }
        };
        self.add(names, Box::new(body));
        self
    }

    fn add(&mut self, names: Vec<String>, body: Body) {
        for name in &names {
            let taken = self.jobs.iter().any(|job| job.names.contains(name));
            assert!(
                !taken && names.iter().filter(|other| *other == name).count() == 1,
                "two cases are called {name:?}"
            );
        }
        self.jobs.push(Job { suite: self.name, names, limit: self.limit, body });
    }

    /// Runs what the command line asks for: all cases, or those of one process as that process.
    pub fn run(self) -> ExitCode {
        match Arguments::read() {
            Ok(Arguments::Suite { filters, record, list }) => self.run_cases(&filters, record, list),
            Ok(Arguments::Supervise { cases, result }) => supervise::supervise(self.find(&cases), &cases, &result),
            Ok(Arguments::Body { cases, result }) => self.find(&cases).run_as_this_process(&cases, &result),
            Err(message) => {
                eprintln!("{}: {message}", self.name);
                ExitCode::from(2)
            }
        }
    }

    fn find(&self, cases: &[String]) -> &Job {
        let has = |job: &&Job| cases.iter().all(|name| job.names.contains(name));
        self.jobs.iter().find(has).expect("the suite names only its own cases")
    }

    fn run_cases(&self, filters: &[String], record: Option<PathBuf>, list: bool) -> ExitCode {
        let chosen = |name: &String| filters.is_empty() || filters.iter().any(|filter| name.contains(filter));
        let jobs = self.jobs.iter().map(|job| (job, job.names.iter().filter(|name| chosen(name)).cloned().collect()));
        let jobs: Vec<(&Job, Vec<String>)> = jobs.filter(|(_, cases): &(_, Vec<String>)| !cases.is_empty()).collect();
        if list {
            jobs.iter().flat_map(|(_, cases)| cases).for_each(|name| println!("{name}: test"));
            return ExitCode::SUCCESS;
        }
        let mut counts = (0, 0, 0);
        for (job, cases) in jobs {
            let mut told = Vec::new();
            if self.own_process {
                told = supervise::in_own_process(job, &cases);
            } else {
                (job.body)(&cases, &mut |one| told.push(one));
            }
            for one in told {
                match one.outcome {
                    Outcome::Passed => counts.0 += 1,
                    Outcome::Failed => counts.1 += 1,
                    Outcome::Skipped => counts.2 += 1,
                }
                print_line(&one);
                if let Some(file) = &record
                    && let Err(error) = append(file, &one)
                {
                    eprintln!("{}: {}: {error}", self.name, file.display());
                    return ExitCode::FAILURE;
                }
            }
        }
        println!("{}: {} passed, {} failed, {} skipped", self.name, counts.0, counts.1, counts.2);
        if counts.1 == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Job {
    /// The innermost process: people can be made here, since nothing else has started yet.
    fn run_as_this_process(&self, cases: &[String], result: &std::path::Path) -> ExitCode {
        crate::person::prepare_this_process();
        (self.body)(cases, &mut |one| supervise::tell(result, &one));
        ExitCode::SUCCESS
    }

    fn record(&self, name: &str, (outcome, reason): Verdict, seconds: f64) -> Record {
        Record { suite: self.suite.into(), name: name.into(), outcome, reason, seconds }
    }
}

fn timed(suite: &str, name: &str, run: impl FnOnce() -> Verdict) -> Record {
    let begun = Instant::now();
    let (outcome, reason) = run();
    Record { suite: suite.into(), name: name.into(), outcome, reason, seconds: begun.elapsed().as_secs_f64() }
}

fn judge(body: impl Fn() -> CaseResult) -> Verdict {
    attempt(body).err().unwrap_or((Outcome::Passed, None))
}

/// What `make` makes, or how that ended.
fn attempt<T>(make: impl Fn() -> anyhow::Result<T>) -> Result<T, Verdict> {
    match catch_unwind(AssertUnwindSafe(make)) {
        Ok(Ok(made)) => Ok(made),
        Ok(Err(error)) => Err(match error.downcast_ref::<CannotRun>() {
            Some(CannotRun(reason)) => (Outcome::Skipped, Some(reason.clone())),
            None => (Outcome::Failed, Some(format!("{error:#}"))),
        }),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("panicked");
            Err((Outcome::Failed, Some(text.to_owned())))
        }
    }
}

/// Says how a case ended.
pub fn print_line(record: &Record) {
    let Record { suite, name, outcome, reason, seconds } = record;
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
    Supervise { cases: Vec<String>, result: PathBuf },
    Body { cases: Vec<String>, result: PathBuf },
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
                supervise::SUPERVISE => {
                    return Ok(Arguments::Supervise { result: value()?.into(), cases: words.collect() });
                }
                supervise::BODY => return Ok(Arguments::Body { result: value()?.into(), cases: words.collect() }),
                // `cargo test` hands its own harness options to every program.
                "--nocapture" | "--show-output" | "-q" | "--quiet" => {}
                other if other.starts_with('-') => return Err(format!("unknown option {other}")),
                _ => filters.push(word),
            }
        }
        Ok(Arguments::Suite { filters, record, list })
    }
}
