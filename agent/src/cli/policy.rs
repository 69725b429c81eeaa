//! `ringfence policy`: check, test and show policy files.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::{CliError, print_json};
use crate::places;
use crate::policy::Policy;
use crate::policy::cases::{self, CaseResult, CasesReport};
use crate::policy::files::PolicyPaths;

#[derive(Subcommand)]
pub(crate) enum PolicyVerb {
    /// Read all layers and say what is wrong with them, by file and line
    Check {
        /// A project's file to read on top
        #[arg(long, value_name = "FILE")]
        project: Option<PathBuf>,
    },
    /// Run the cases that policy files carry, or files of cases
    Test {
        /// Files of `[[case]]` or `[[test]]` tables; without any, the loaded policy's own
        files: Vec<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the policy that is loaded
    Show,
}

pub(crate) fn policy(verb: &PolicyVerb) -> Result<ExitCode, CliError> {
    match verb {
        PolicyVerb::Check { project } => {
            let policy = load(project.clone())?;
            println!("{}: no problems", policy.hash());
            Ok(ExitCode::SUCCESS)
        }
        PolicyVerb::Test { files, json } => test(files, *json),
        PolicyVerb::Show => Ok(print_json(&load(None)?.shown())),
    }
}

fn load(project: Option<PathBuf>) -> Result<Policy, CliError> {
    // Somebody without a passwd entry has no home, and so no policy files of their own.
    let home = places::home().unwrap_or_else(|| "/nonexistent".into());
    let paths = PolicyPaths { project, ..PolicyPaths::installed(&home, nix::unistd::Uid::current().as_raw()) };
    Policy::load(&paths).map_err(|error| CliError::Failed(error.to_string()))
}

fn test(files: &[PathBuf], json: bool) -> Result<ExitCode, CliError> {
    let policy = load(None)?;
    let mut all = Vec::new();
    for file in files {
        let text =
            std::fs::read_to_string(file).map_err(|error| CliError::Failed(format!("{}: {error}", file.display())))?;
        all.extend(cases::read(&text).map_err(|error| CliError::Failed(format!("{}: {error}", file.display())))?);
    }
    let own = policy.tests();
    let report = cases::run(&policy, if files.is_empty() { own } else { &all });
    if json {
        let value = serde_json::to_value(&report).map_err(|error| CliError::Failed(error.to_string()))?;
        print_json(&value);
    } else {
        print_mismatches(&report);
    }
    Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED_TESTS) })
}

/// Cases that failed are a result, not a failure of Ringfence.
const EXIT_FAILED_TESTS: u8 = 1;

fn print_mismatches(report: &CasesReport) {
    for CaseResult { id, passed: _, expected, got, rules } in report.cases.iter().filter(|case| !case.passed) {
        println!(
            "{id}: expected {expected:?}, got {got:?} by {}",
            if rules.is_empty() { "no rule".to_owned() } else { rules.join(", ") }
        );
    }
    println!("{} passed, {} failed", report.passed, report.failed);
}
