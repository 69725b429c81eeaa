//! The hook as a process: every input and every service that it may meet, and what it then leaves behind.

mod input;
mod process;
mod services;

use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ringfence::ipc::frame;
use ringfence::ipc::limits::FRAME_BYTES;
use ringfence_tests::person::Person;
use ringfence_tests::stage::{Stage, workspace};
use ringfence_tests::suite::{CaseResult, Suite};
use serde_json::Value;

/// Stands in every input that must not come out anywhere.
const SECRET: &str = "do-not-repeat-this-5f3a";

/// Adds the cases.
pub fn cases(suite: Suite) -> Suite {
    suite
        .case(
            "hook: input that cannot be read is denied where it may execute, and nothing of it is kept",
            input::unreadable_input,
        )
        .case("hook: a sample of every event is answered as its event may be, without a service", input::samples)
        .case("hook: a service that fails is not one that is down", services::failing_services)
        .case("hook: what the service says is what the host is told", services::answers)
        .case("hook: its guard answers for a child that fails", process::guard)
        .case("hook: signals from outside are no answer", process::signals)
        .case("hook: stdin that is closed or never ends", input::stdin)
        .case("hook: a project's environment changes nothing", process::environment)
        .case(
            "hook: what it is started with is closed, and what ends is told at once",
            process::descriptors_and_session_end,
        )
        .case("hook: what was decided alone is left as digests in a private file", services::gaps)
        .case("hook: settings without Ringfence are not taken up", process::config_change)
        .case("hook: words of its own are not the host's", process::words)
}

struct Rig {
    stage: Stage,
    person: Person,
}

/// How a hook ended.
#[derive(Debug)]
struct Said {
    exit: Option<i32>,
    stdout: String,
    stderr: String,
    took: Duration,
}

impl Said {
    fn denied(&self) -> bool {
        let one_line = self.stderr.ends_with('\n') && self.stderr.matches('\n').count() == 1;
        self.exit == Some(2) && self.stdout.is_empty() && one_line && self.stderr.starts_with("Ringfence denied this [")
    }

    fn silent(&self) -> bool {
        self.exit == Some(0) && self.stdout.is_empty() && self.stderr.is_empty()
    }
}

impl Rig {
    fn new() -> anyhow::Result<Rig> {
        let rig = Rig { stage: Stage::new()?, person: Person::new()? };
        rig.runtime()?;
        Ok(rig)
    }

    fn runtime(&self) -> anyhow::Result<PathBuf> {
        Ok(self.stage.runtime_directory(&self.person)?)
    }

    /// What goes wrong inside the next hooks, and their bounds.
    fn trial(&self, trial: Value) -> anyhow::Result<()> {
        Ok(std::fs::write(self.stage.hook().with_file_name("ringfence-hook-trial.json"), trial.to_string())?)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.person.command(self.stage.hook());
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn hook(&self, words: &[&str], input: &[u8]) -> anyhow::Result<Said> {
        finish(self.command(words).spawn()?, Some(input))
    }

    /// Listens where the person's service would.
    fn listen(&self) -> anyhow::Result<UnixListener> {
        let path = self.runtime()?.join("hook.sock");
        if path.exists() {
            std::fs::remove_file(&path)?;
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        chown(&path, Some(self.person.uid()), None)?;
        Ok(listener)
    }

    /// Serves every connection from now on with `answer`.
    fn serve(&self, answer: impl Fn(&mut UnixStream, &[u8]) + Send + 'static) -> anyhow::Result<()> {
        let listener = self.listen()?;
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let frame = frame::read(&mut stream, FRAME_BYTES).unwrap_or_default();
                answer(&mut stream, &frame);
            }
        });
        Ok(())
    }

    /// Nothing that the hook wrote anywhere in the person's reach holds the secret.
    fn nothing_raw(&self) -> CaseResult {
        for root in [self.runtime()?, self.person.home().to_owned(), self.stage.state_directory(&self.person)?] {
            let mut open = vec![root];
            while let Some(directory) = open.pop() {
                for entry in std::fs::read_dir(&directory)? {
                    let path = entry?.path();
                    if path.is_dir() {
                        open.push(path);
                    } else if path.is_file() {
                        let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
                        ensure!(!text.contains(SECRET), "{} holds the input", path.display());
                    }
                }
            }
        }
        Ok(())
    }
}

fn finish(mut child: Child, input: Option<&[u8]>) -> anyhow::Result<Said> {
    let begun = Instant::now();
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        // A hook may end before it has read everything: that is no fault of the test's.
        let _ = stdin.write_all(input);
    }
    let output = child.wait_with_output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    Ok(Said { exit: output.status.code(), stdout, stderr, took: begun.elapsed() })
}

fn sample(name: &str) -> anyhow::Result<Value> {
    let path = workspace().join(format!("tests/data/claude-code-2.1.332/{name}.json"));
    serde_json::from_slice(&std::fs::read(&path)?).with_context(|| path.display().to_string())
}

fn bash(command: &str) -> anyhow::Result<Value> {
    let mut value = sample("PreToolUse-Bash")?;
    value["tool_input"]["command"] = command.into();
    Ok(value)
}
