//! One session of a real Claude Code: a person's own configuration, an otherwise empty environment, loopback only.

use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use super::Host;
use crate::model::Model;
use crate::person::Person;

/// A session that is about to run.
pub struct ClaudeSession<'a> {
    person: &'a Person,
    program: PathBuf,
    before: Vec<String>,
    project: PathBuf,
    settings: Value,
    prompt: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    limit: Duration,
}

/// How a session ended.
#[derive(Debug)]
pub struct Ended {
    /// The host's exit; `None` when it had to be ended at its limit.
    pub status: Option<ExitStatus>,
    /// What it printed.
    pub stdout: String,
    /// What it complained of.
    pub stderr: String,
    /// Its pid while it lived.
    pub pid: u32,
    /// How long it took.
    pub took: Duration,
}

impl Ended {
    /// Whether it ended by itself with 0.
    pub fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

impl<'a> ClaudeSession<'a> {
    /// A session in `project` (which must exist), with no settings of its own.
    pub fn new(host: &Host, person: &'a Person, project: impl Into<PathBuf>) -> ClaudeSession<'a> {
        ClaudeSession {
            person,
            program: host.program(),
            before: Vec::new(),
            project: project.into(),
            settings: Value::Null,
            prompt: "please do what the script says".into(),
            arguments: ["--allowedTools", "Bash,Write,Edit,Read"].map(String::from).to_vec(),
            environment: Vec::new(),
            limit: Duration::from_secs(120),
        }
    }

    /// The user's `settings.json`.
    pub fn settings(mut self, settings: Value) -> Self {
        self.settings = settings;
        self
    }

    /// What the person asks for.
    pub fn prompt(mut self, prompt: &str) -> Self {
        self.prompt = prompt.into();
        self
    }

    /// The host's arguments after `-p PROMPT`, instead of `--allowedTools Bash,Write,Edit,Read`.
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
        self
    }

    /// A program (with arguments) that starts the host: the host's own words follow. `ringfence run --`, say.
    pub fn started_by(mut self, program_and_arguments: &[&str]) -> Self {
        self.before = program_and_arguments.iter().map(ToString::to_string).collect();
        self
    }

    /// One more variable in the host's environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// When the session is ended by force; two minutes if not said.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Where this person's Claude Code keeps its settings.
    pub fn config_directory(person: &Person) -> PathBuf {
        person.home().join(".claude")
    }

    /// Runs the session to its end.
    ///
    /// # Errors
    /// When it cannot be started; a session that fails is an [`Ended`].
    pub fn run(&self, model: &Model) -> anyhow::Result<Ended> {
        let begun = Instant::now();
        let mut child = self.start(model)?;
        let pid = child.id();
        let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if begun.elapsed() >= self.limit {
                end_group(&mut child)?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let took = begun.elapsed();
        self.remove_traces(pid);
        let text = |reader: std::thread::JoinHandle<Vec<u8>>| {
            String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned()
        };
        Ok(Ended { status, stdout: text(stdout), stderr: text(stderr), pid, took })
    }

    /// Starts the host with piped output, as leader of a process group.
    ///
    /// # Errors
    /// When its settings cannot be written or it cannot be started.
    pub fn start(&self, model: &Model) -> anyhow::Result<Child> {
        self.person.directory(".claude")?;
        if !self.settings.is_null() {
            self.person.file(".claude/settings.json", serde_json::to_vec_pretty(&self.settings)?)?;
        }
        let mut command = match self.before.split_first() {
            None => self.person.command(&self.program),
            Some((program, rest)) => {
                let mut command = self.person.command(program);
                command.args(rest).arg(&self.program);
                command
            }
        };
        self.environment_of(&mut command, model);
        command.args(["-p", &self.prompt]).args(&self.arguments).current_dir(&self.project);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.spawn().with_context(|| format!("starting {}", self.program.display()))
    }

    /// Every switch that keeps it from talking to anybody but the scripted model.
    fn environment_of(&self, command: &mut Command, model: &Model) {
        command.env("TERM", "dumb").env("CLAUDE_CONFIG_DIR", Self::config_directory(self.person));
        command.env("ANTHROPIC_BASE_URL", model.base_url()).env("ANTHROPIC_API_KEY", "no-key-is-needed");
        for switch in [
            "DISABLE_TELEMETRY",
            "DISABLE_AUTOUPDATER",
            "DISABLE_ERROR_REPORTING",
            "DISABLE_BUG_COMMAND",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
        ] {
            command.env(switch, "1");
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
    }

    /// The host leaves small things under /tmp, whatever its home.
    fn remove_traces(&self, pid: u32) {
        let uid = self.person.uid();
        if uid < crate::person::FIRST_UID {
            return; // Somebody's own session may be using these.
        }
        // Only what that uid owns, never through a link: /tmp is everybody's. None of it matters if it fails.
        for path in [format!("/tmp/claude-{uid}"), format!("/tmp/cc-socks-{uid}"), format!("/tmp/cc-socks/{pid}.sock")]
        {
            let _ = match fs::symlink_metadata(&path) {
                Ok(meta) if !is_owned(&meta, uid) => Ok(()),
                Ok(meta) if meta.is_dir() => fs::remove_dir_all(&path),
                Ok(_) => fs::remove_file(&path),
                Err(error) => Err(error),
            };
        }
        // The directory is shared: it goes when this uid made it and it is empty. Left behind, it would bar the next user.
        if fs::symlink_metadata("/tmp/cc-socks").is_ok_and(|meta| meta.is_dir() && is_owned(&meta, uid)) {
            let _ = fs::remove_dir("/tmp/cc-socks");
        }
        if let Ok(entries) = fs::read_dir("/tmp") {
            for entry in entries.flatten().filter(|entry| is_directory_mark(&entry.path())) {
                if entry.metadata().is_ok_and(|meta| meta.is_file() && is_owned(&meta, uid)) && uid >= 64201 {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }
}

/// `/tmp/claude-XXXX-cwd`, which the host's shell line writes.
fn is_directory_mark(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("claude-") && name.ends_with("-cwd"))
}

fn is_owned(meta: &fs::Metadata, uid: u32) -> bool {
    std::os::unix::fs::MetadataExt::uid(meta) == uid
}

fn drain(pipe: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // A process that outlives the host may hold the pipe; what came until then is what counts.
            let _ = pipe.by_ref().take(16 << 20).read_to_end(&mut bytes);
        }
        bytes
    })
}

fn end_group(child: &mut Child) -> anyhow::Result<()> {
    let group = Pid::from_raw(i32::try_from(child.id())?);
    let _ = killpg(group, Signal::SIGTERM);
    for _ in 0..100 {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = killpg(group, Signal::SIGKILL);
    child.wait()?;
    Ok(())
}
