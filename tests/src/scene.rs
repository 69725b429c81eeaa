//! The scene that `cargo xtask demo` shows and the suite `hosts` checks: one session with an ordinary build, connections, an
//! exfiltration, a write outside the fence, and a child that outlives its call.

mod project;
mod proof;
mod servers;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;

pub use project::{Project, STEPS, Step};
pub use proof::{Check, Proof};
pub use servers::Servers;

use crate::host::{ClaudeSession, Host};
use crate::model::{self, Model, Script};
use crate::person::Person;
use crate::running::Service;

/// Everything around the session but the session.
pub struct Scene {
    /// Whom the commands talk to.
    pub servers: Servers,
    /// The project and its commands.
    pub project: Project,
}

/// One tool call, as the host tells it.
#[derive(Clone, Debug)]
pub struct Told {
    /// The host's id of the call.
    pub call_id: String,
    /// Whether the host calls it an error (denied, or a non-zero exit).
    pub error: bool,
}

impl Scene {
    /// Starts the servers and writes the project.
    ///
    /// # Errors
    /// When either cannot be done.
    pub fn set(person: &Person) -> anyhow::Result<Scene> {
        let servers = Servers::start(person)?;
        let project = project::create(person, &servers)?;
        Ok(Scene { servers, project })
    }

    /// Plays it with a real Claude Code, whose user settings are `settings`.
    ///
    /// # Errors
    /// When the session fails.
    pub fn play(&self, host: &Host, person: &Person, settings: Value) -> anyhow::Result<Vec<Told>> {
        let steps = self.project.commands.iter().map(|command| model::Step::bash(command));
        let model = Model::start(Script::new(steps.chain([model::Step::done()])))?;
        let ended = ClaudeSession::new(host, person, &self.project.directory).settings(settings).run(&model)?;
        ensure!(ended.success(), "the session failed ({:?}): {}{}", ended.status, ended.stdout, ended.stderr);
        Ok(model.tool_results().into_iter().map(|(call_id, error, _)| Told { call_id, error }).collect())
    }

    /// Plays it with the scripted host at `program`.
    ///
    /// # Errors
    /// When the session fails.
    pub fn play_scripted(&self, program: &Path, person: &Person, settings: &Value) -> anyhow::Result<Vec<Told>> {
        let settings = person.file(".claude/settings.json", settings.to_string())?;
        let script = person.file("script.json", serde_json::to_vec(&self.project.commands)?)?;
        let mut command = person.command(program);
        command.arg(settings).arg(script).current_dir(&self.project.directory).stdin(Stdio::null());
        let output = command.stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "the scripted session failed: {}", output.status);
        let told = |line: &str| -> anyhow::Result<Told> {
            let line: Value = serde_json::from_str(line)?;
            let call_id = line["tool_use_id"].as_str().context("a line without tool_use_id")?.to_owned();
            Ok(Told { call_id, error: line["exit"] != 0 })
        };
        String::from_utf8(output.stdout)?.lines().map(told).collect()
    }

    /// The report once nothing of the session is running and the late child's connect is in it (with a probe), or what there
    /// is after ten seconds.
    ///
    /// # Errors
    /// When `ringfence report` fails.
    pub fn report(&self, service: &Service, person: &Person, probe: bool) -> anyhow::Result<Value> {
        self.servers.late().wait(Duration::from_secs(20));
        let begun = Instant::now();
        loop {
            let report: Value = serde_json::from_str(&service.ask(person, &["report", "--last", "--json"])?)?;
            let text = report.to_string();
            let late = !probe || text.contains(&self.servers.late().address());
            if (late && !text.contains(r#""verdict":"running""#)) || begun.elapsed() > Duration::from_secs(10) {
                return Ok(report);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Compares a report with what really happened.
    pub fn checks(&self, report: &Value, calls: &[Told], probe: bool) -> Vec<Check> {
        Proof { report, calls, servers: &self.servers, project: &self.project, probe }.checks()
    }
}
