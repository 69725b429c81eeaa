//! A host that is not real: it speaks the hook protocol of Claude Code and starts its tool commands in the same shape, but the
//! "model" is a list of commands. For machines where the real host cannot be installed; it says what it is.
//!
//! `ringfence-scripted-host SETTINGS SCRIPT`: `SETTINGS` is a Claude Code `settings.json` (hooks in exec form, the shell
//! prefix in `env`), `SCRIPT` a JSON list of Bash commands. For each command one JSON line is printed:
//! `{"tool_use_id", "denied": reason or null, "exit": code or null}`.
//!
//! With `--clear` as a third word the script is run twice, the second time in a new session of the same process, as after `/clear`.
//!
//! With `--time-hooks` as a third word no command is started: each line says how long the PreToolUse hooks took, and how long
//! `/bin/true` took in their place right after (`hook_us`, `bare_us`: microseconds from spawn to answer).

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (settings, script, how) = match words.as_slice() {
        [settings, script] => (settings, script, How::Once),
        [settings, script, word] if word == "--clear" => (settings, script, How::Cleared),
        [settings, script, word] if word == "--time-hooks" => (settings, script, How::TimeHooks),
        _ => {
            eprintln!("usage: ringfence-scripted-host SETTINGS SCRIPT [--clear | --time-hooks]");
            return ExitCode::from(2);
        }
    };
    eprintln!("scripted host: not a real coding agent, only its hook protocol and the way it starts commands");
    match run(Path::new(settings), Path::new(script), how) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scripted host: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What is done with the script.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Run in one session.
    Once,
    /// Run in two sessions of one process.
    Cleared,
    /// Only its hooks, timed.
    TimeHooks,
}

struct Host {
    settings: Value,
    prefix: Option<String>,
    session: String,
    cwd: PathBuf,
    /// Shell snapshot and command output, as the real host keeps them in its configuration and temporary directories.
    snapshot: PathBuf,
    output: PathBuf,
    directory_mark: PathBuf,
}

/// What a hook answered.
enum Answer {
    Nothing,
    Deny(String),
}

fn run(settings: &Path, script: &Path, how: How) -> anyhow::Result<()> {
    let settings: Value = serde_json::from_slice(&fs::read(settings)?).context("reading the settings")?;
    let commands: Vec<String> = serde_json::from_slice(&fs::read(script)?).context("reading the script")?;
    let home = PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?);
    let config = std::env::var_os("CLAUDE_CONFIG_DIR").map_or_else(|| home.join(".claude"), PathBuf::from);
    let snapshots = config.join("shell-snapshots");
    fs::create_dir_all(&snapshots)?;
    let room = tempfile::Builder::new().prefix("claude-scripted-").tempdir()?;
    let mut host = Host {
        prefix: settings["env"]["CLAUDE_CODE_SHELL_PREFIX"]
            .as_str()
            .filter(|prefix| !prefix.is_empty())
            .map(str::to_owned),
        settings,
        session: session_id()?,
        cwd: std::env::current_dir()?,
        snapshot: snapshots.join(format!("snapshot-bash-{}.sh", std::process::id())),
        output: room.path().join("command.output"),
        directory_mark: std::env::temp_dir().join(format!("claude-{:04x}-cwd", std::process::id() & 0xffff)),
    };
    fs::write(&host.snapshot, "shopt -s expand_aliases\n")?;
    let mut done = host.session(&commands, how, "startup");
    if how == How::Cleared && done.is_ok() {
        // Long enough for the service to notice that the first session is over.
        std::thread::sleep(std::time::Duration::from_secs(1));
        host.session = session_id()?;
        done = host.session(&commands, how, "clear");
    }
    // The mark is written by the tool's shell line; there may be none.
    let _ = fs::remove_file(&host.directory_mark);
    let _ = fs::remove_file(&host.snapshot);
    done
}

/// Random, in the form of the real host's ids.
fn session_id() -> anyhow::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid").context("a random id")?.trim().to_owned())
}

fn new_call(command: &str) -> anyhow::Result<(String, Value)> {
    let id = format!("toolu_{}", session_id()?.replace('-', ""));
    let call = json!({
        "permission_mode": "default", "tool_name": "Bash", "tool_use_id": id,
        "tool_input": {"command": command, "description": "one step of the script"},
    });
    Ok((id, call))
}

impl Host {
    fn session(&self, commands: &[String], how: How, source: &str) -> anyhow::Result<()> {
        self.tell("SessionStart", json!({"source": source}))?;
        let prompt = json!({"prompt": "please do what the script says", "permission_mode": "default"});
        if let Answer::Deny(reason) = self.hook("UserPromptSubmit", prompt)? {
            bail!("the prompt was blocked: {reason}");
        }
        for command in commands {
            let line = if how == How::TimeHooks { self.timed_hooks(command)? } else { self.tool_call(command)? };
            writeln!(std::io::stdout(), "{line}")?;
        }
        self.tell("SessionEnd", json!({"reason": "other"}))
    }

    fn timed_hooks(&self, command: &str) -> anyhow::Result<Value> {
        let (id, call) = new_call(command)?;
        let begun = Instant::now();
        let answer = self.hook("PreToolUse", call)?;
        let hook_us = begun.elapsed().as_micros();
        let begun = Instant::now();
        self.start_hook(&mut Command::new("/bin/true"), "{}")?;
        let bare_us = begun.elapsed().as_micros();
        let denied = match answer {
            Answer::Deny(reason) => Some(reason),
            Answer::Nothing => None,
        };
        Ok(json!({"tool_use_id": id, "denied": denied, "hook_us": hook_us as u64, "bare_us": bare_us as u64}))
    }

    fn tool_call(&self, command: &str) -> anyhow::Result<Value> {
        let (id, call) = new_call(command)?;
        if let Answer::Deny(reason) = self.hook("PreToolUse", call.clone())? {
            return Ok(json!({"tool_use_id": id, "denied": reason, "exit": null}));
        }
        let begun = Instant::now();
        let code = self.shell(command)?;
        let mut after = call;
        after["duration_ms"] = json!(u64::try_from(begun.elapsed().as_millis())?);
        if code == 0 {
            let stdout = fs::read_to_string(&self.output).unwrap_or_default();
            after["tool_response"] = json!({"stdout": stdout, "stderr": "", "interrupted": false, "isImage": false, "noOutputExpected": false});
            self.tell("PostToolUse", after)?;
        } else {
            after["error"] = json!(format!("Exit code {code}"));
            after["is_interrupt"] = json!(false);
            self.tell("PostToolUseFailure", after)?;
        }
        Ok(json!({"tool_use_id": id, "denied": null, "exit": code}))
    }

    /// A hook whose answer changes nothing here.
    fn tell(&self, event: &str, fields: Value) -> anyhow::Result<()> {
        self.hook(event, fields).map(|_| ())
    }

    /// Starts every hook of an event in exec form; exit 2 denies, anything else does not, as measured on the real host.
    fn hook(&self, event: &str, fields: Value) -> anyhow::Result<Answer> {
        let mut input = json!({
            "session_id": self.session, "transcript_path": "/nonexistent", "cwd": self.cwd, "hook_event_name": event,
        });
        for (name, value) in fields.as_object().into_iter().flatten() {
            input[name] = value.clone();
        }
        let groups = self.settings["hooks"][event].as_array().cloned().unwrap_or_default();
        let hooks = groups.iter().filter_map(|group| group["hooks"].as_array()).flatten();
        let mut answer = Answer::Nothing;
        for hook in hooks {
            let program = hook["command"].as_str().context("a hook without a command")?;
            let arguments = hook["args"].as_array().context("only hooks in exec form are known here")?;
            let mut command = Command::new(program);
            command.args(arguments.iter().filter_map(Value::as_str)).env("CLAUDE_PROJECT_DIR", &self.cwd);
            let output = match self.start_hook(&mut command, &input.to_string()) {
                Ok(output) => output,
                Err(error) => {
                    eprintln!("scripted host: {program}: {error}");
                    continue;
                }
            };
            if output.status.code() == Some(2) {
                answer = Answer::Deny(String::from_utf8_lossy(&output.stderr).trim().to_owned());
            }
        }
        Ok(answer)
    }

    fn start_hook(&self, command: &mut Command, input: &str) -> std::io::Result<Output> {
        let command = self.in_own_session(command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A hook may answer without reading everything.
            let _ = stdin.write_all(input.as_bytes());
        }
        child.wait_with_output()
    }

    /// Starts a command as the host does and answers with its exit code.
    fn shell(&self, command: &str) -> anyhow::Result<i32> {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', r#"'"'"'"#));
        let line = format!(
            "source {} 2>/dev/null || true && \\builtin shopt -u extglob 2>/dev/null || true && eval {} < /dev/null && pwd -P >| {}",
            self.snapshot.display(),
            quoted(command),
            self.directory_mark.display()
        );
        let line = self.prefix.as_ref().map_or(line.clone(), |prefix| format!("{prefix} {}", quoted(&line)));
        let output = File::create(&self.output)?;
        let mut bash = Command::new("/bin/bash");
        bash.args(["-c", &line]).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let status = self.in_own_session(&mut bash).status()?;
        Ok(status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1))
    }

    fn in_own_session<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("CLAUDECODE", "1").env("CLAUDE_CODE_SESSION_ID", &self.session);
        command.env("CLAUDE_PID", std::process::id().to_string());
        // SAFETY: setsid(2) is async-signal-safe, and the closure touches nothing else between fork and exec.
        unsafe {
            command.pre_exec(|| nix::unistd::setsid().map(|_| ()).map_err(std::io::Error::from));
        }
        command
    }
}
