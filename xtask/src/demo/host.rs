//! Who runs the session: a real Claude Code against the scripted model, or the built-in scripted host.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ringfence::host::claude_code::settings;
use ringfence_tests::host::{Host, pinned};
use ringfence_tests::person::Person;
use ringfence_tests::scene::{Scene, Told};
use ringfence_tests::stage::Stage;

use super::HostChoice;
use crate::shell;

/// The host that was found.
pub enum HostProgram {
    /// Claude Code.
    Claude(Host),
    /// The built-in one.
    Scripted(PathBuf),
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

    /// Plays the scene with the stage's hook and launcher.
    pub fn play(&self, scene: &Scene, stage: &Stage, person: &Person) -> anyhow::Result<Vec<Told>> {
        let settings = |version: &str| settings::settings(&stage.hook(), &stage.launcher(), version);
        match self {
            HostProgram::Claude(host) => scene.play(host, person, settings(&host.version)?),
            HostProgram::Scripted(program) => scene.play_scripted(program, person, &settings(SPOKEN_VERSION)?),
        }
    }
}

/// Builds the scripted host and puts it into `room`, where others can start it.
pub fn scripted_host(room: &Path) -> anyhow::Result<PathBuf> {
    test_program(room, "ringfence-scripted-host")
}

/// Builds a program of the tests and puts it into `room`, where others can start it.
pub fn test_program(room: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let mut build = shell::cargo();
    build.args(["build", "--package", "ringfence-tests", "--bin", name]);
    build.args(["--message-format", "json-render-diagnostics"]);
    let program = ringfence_tests::stage::built_by(&mut build)?.pop().context("the program was not built")?;
    let copy = room.join(name);
    std::fs::copy(program, &copy)?;
    Ok(copy)
}
