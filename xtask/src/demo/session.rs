//! Who runs the session: a real Claude Code against the scripted model, or the built-in scripted host.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use ringfence::host::claude_code::settings;
use ringfence_tests::host::{ClaudeSession, Host, pinned};
use ringfence_tests::model::{Model, Script, Step};
use ringfence_tests::person::Person;
use ringfence_tests::stage::Stage;
use serde_json::Value;

use super::HostChoice;
use super::project::Project;
use crate::shell;

/// The host that was found.
pub enum HostProgram {
    /// Claude Code.
    Claude(Host),
    /// The built-in one.
    Scripted(PathBuf),
}

/// One tool call, as the host tells it.
#[derive(Clone, Debug)]
pub struct Told {
    /// The host's id of the call.
    pub call_id: String,
    /// Whether the host calls it an error (denied, or a non-zero exit).
    pub error: bool,
}

/// The scripted host pretends to be this version where the shape of settings depends on it.
const SPOKEN_VERSION: &str = "2.1.332";

impl HostProgram {
    /// Finds or installs it. `room` is where a built one is put.
    pub fn find(choice: HostChoice, room: &Path) -> anyhow::Result<HostProgram> {
        match choice {
            HostChoice::ClaudeCode => {
                let host =
                    pinned().into_iter().find(|host| host.name == "claude-code").context("no pinned Claude Code")?;
                if let Some(found) = host.on_path() {
                    return Ok(HostProgram::Claude(found));
                }
                if !host.is_installed() {
                    eprintln!(
                        "demo: installing {} {} from the npm registry into a cache directory",
                        host.name, host.version
                    );
                }
                host.ensure_installed().context("installing Claude Code (or take --host scripted)")?;
                Ok(HostProgram::Claude(host))
            }
            HostChoice::Scripted => {
                let copy = scripted_host(room)?;
                Ok(HostProgram::Scripted(copy))
            }
        }
    }

    /// For the person.
    pub fn describe(&self) -> String {
        match self {
            HostProgram::Claude(host) => format!("Claude Code {}, against a scripted model on loopback", host.version),
            HostProgram::Scripted(_) => "the built-in scripted host: not a real agent, only its hook protocol".into(),
        }
    }

    /// Runs the project's commands as one session.
    pub fn run(&self, stage: &Stage, person: &Person, project: &Project) -> anyhow::Result<Vec<Told>> {
        match self {
            HostProgram::Claude(host) => {
                let settings = settings::settings(&stage.hook(), &stage.launcher(), &host.version)?;
                let steps = project.commands.iter().map(|command| Step::bash(command)).chain([Step::done()]);
                let model = Model::start(Script::new(steps))?;
                let ended = ClaudeSession::new(host, person, &project.directory).settings(settings).run(&model)?;
                ensure!(ended.success(), "the session failed ({:?}): {}{}", ended.status, ended.stdout, ended.stderr);
                let told = |(call_id, error, _): (String, bool, String)| Told { call_id, error };
                Ok(model.tool_results().into_iter().map(told).collect())
            }
            HostProgram::Scripted(program) => {
                let settings = settings::settings(&stage.hook(), &stage.launcher(), SPOKEN_VERSION)?;
                let settings = person.file(".claude/settings.json", settings.to_string())?;
                let script = person.file("script.json", serde_json::to_vec(&project.commands)?)?;
                let mut command = person.command(program);
                command.arg(settings).arg(script).current_dir(&project.directory).stdin(Stdio::null());
                let output = command.stderr(Stdio::inherit()).output()?;
                ensure!(output.status.success(), "the scripted session failed: {}", output.status);
                let lines = String::from_utf8(output.stdout)?;
                lines.lines().map(|line| Ok(told(&serde_json::from_str(line)?))).collect()
            }
        }
    }
}

/// Builds the scripted host and puts it into `room`, where others can start it.
pub fn scripted_host(room: &Path) -> anyhow::Result<PathBuf> {
    let mut build = shell::cargo();
    build.args(["build", "--package", "ringfence-tests", "--bin", "ringfence-scripted-host"]);
    build.args(["--message-format", "json-render-diagnostics"]);
    let program = ringfence_tests::stage::built_by(&mut build)?.pop().context("the scripted host was not built")?;
    let copy = room.join("ringfence-scripted-host");
    std::fs::copy(program, &copy)?;
    Ok(copy)
}

fn told(line: &Value) -> Told {
    Told { call_id: line["tool_use_id"].as_str().unwrap_or_default().to_owned(), error: line["exit"] != 0 }
}
