//! An ordinary user with a working tree, and a probe and a service of their own.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use ringfence_tests::person::Person;
use ringfence_tests::running::{Probe, Service};
use ringfence_tests::stage::Stage;
use ringfence_tests::suite::Shared;
use serde_json::Value;

/// On the machine itself: every shipped fence with a network refuses it.
pub const DOCKER_PORT: u16 = 2375;

/// A case that is given a stand.
pub type Case = Shared<Stand>;

/// See the module. It takes seconds to start on an emulated machine: cases share one.
pub struct Stand {
    /// Ends before the probe.
    pub service: Service,
    /// Its kernel programs are attached.
    pub probe: Probe,
    /// Who runs everything.
    pub person: Person,
    /// The programs.
    pub stage: Stage,
    /// The working tree, where commands start.
    pub tree: PathBuf,
}

/// A command that ran.
pub struct Ran {
    /// Its exit code.
    pub code: Option<i32>,
    /// Its standard output.
    pub printed: String,
    /// Its standard error, as far as it came before the report.
    pub complained: String,
    /// The session of the report.
    pub session: Value,
}

impl Stand {
    /// Starts both.
    pub fn start() -> anyhow::Result<Stand> {
        let person = Person::new()?;
        let stage = Stage::new()?;
        let tree = person.directory("project")?;
        let probe = Probe::start(&stage)?;
        let service = Service::start(&stage, &person)?;
        Ok(Stand { service, probe, person, stage, tree })
    }

    /// Runs a shell script with `ringfence run` as a session of its own.
    pub fn run(&self, script: &str) -> anyhow::Result<Ran> {
        self.run_behind("default", &["/bin/sh", "-c", script])
    }

    /// Runs a program behind a fence as a session of its own.
    pub fn run_behind(&self, fence: &str, words: &[&str]) -> anyhow::Result<Ran> {
        let words = [&["run", "--json", "--fence", fence, "--"], words].concat();
        let mut command = self.service.ringfence(&self.person, &words);
        let output = command.current_dir(&self.tree).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let (complained, report) = errors.find("\n{").map_or(("", &errors[..]), |at| errors.split_at(at));
        let report: Value = serde_json::from_str(report)
            .with_context(|| format!("no report in: {errors}\n{}\n{}", self.service.log(), self.probe.log()))?;
        let session = report["sessions"][0].clone();
        ensure!(session.is_object(), "{report:#}");
        let complained = complained.to_owned();
        Ok(Ran { code: output.status.code(), printed: String::from_utf8(output.stdout)?, complained, session })
    }
}

impl Ran {
    /// What it complained of and what was refused to it, for a failure's message.
    pub fn account(&self) -> String {
        let refusals: Vec<&Value> =
            self.session["entries"].as_array().into_iter().flatten().map(|entry| &entry["refusals"]).collect();
        format!("{} refused: {refusals:?}", self.complained)
    }

    /// The one tool call that a supervised command is.
    pub fn entry(&self) -> anyhow::Result<&Value> {
        let entries = self.session["entries"].as_array().context("entries")?;
        entries.iter().find(|entry| entry["tool"] == "run").with_context(|| format!("{:#}", self.session))
    }
}
