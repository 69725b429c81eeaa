//! Whether a changed settings file would take Ringfence out of the host, or put a project's programs in front of it.
#![forbid(unsafe_code)]

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::EventName;
use super::settings::{HOST_TIMEOUT_S, LAUNCHER_NAME, SHELL_PREFIX, Scope, arguments};
use crate::ipc::json::{self, JsonError};
use crate::ipc::limits;

/// Where Ringfence is installed, as the running hook knows it.
#[derive(Clone, Debug)]
pub struct Installed {
    /// Whose settings hold the hooks.
    pub scope: Scope,
    /// The hook's own file, links resolved.
    pub hook: PathBuf,
}

impl Installed {
    fn launcher(&self) -> PathBuf {
        self.hook.with_file_name(LAUNCHER_NAME)
    }
}

/// Why a change of settings is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The file no longer runs our hook for an event, or for fewer tools, or for less time.
    #[error("the changed settings no longer run Ringfence's hook for {}", .0.as_str())]
    HookRemoved(EventName),
    /// All hooks are switched off.
    #[error("the changed settings switch all hooks off")]
    HooksOff,
    /// The launcher is no longer the shell prefix.
    #[error("the changed settings change or empty the shell prefix, so commands would run without a fence")]
    PrefixChanged,
    /// A project sets a variable that reaches the host, its hooks and its commands before any fence.
    #[error("the changed project settings set {0}, which reaches the host before any fence")]
    Environment(String),
    /// The file is not there any more.
    #[error("the settings file that holds Ringfence's hooks is gone")]
    Gone,
    /// The host did not say which file.
    #[error("the host did not say which settings file changed")]
    NoFile,
    /// The file cannot be opened, or is no regular file.
    #[error("the changed settings file cannot be opened as a regular file")]
    Unopened,
    /// The file is not JSON within the limits.
    #[error("the changed settings file cannot be read: {0}")]
    Unreadable(JsonError),
    /// A part of it has a type that the host does not document.
    #[error("{0} in the changed settings file does not have the type that the host documents")]
    WrongType(&'static str),
}

/// Looks at the file behind a ConfigChange. `Ok` lets the host read it again.
pub fn inspect(source: &str, file: Option<&Path>, installed: &Installed) -> Result<(), Refusal> {
    let holds_our_entries = match source {
        "user_settings" => installed.scope == Scope::User,
        "project_settings" | "local_settings" => false,
        // The system's settings are out of a project's reach and cannot be refused; skills hold no settings.
        _ => return Ok(()),
    };
    let file = file.ok_or(Refusal::NoFile)?;
    let Some(bytes) = read(file)? else {
        return if holds_our_entries { Err(Refusal::Gone) } else { Ok(()) };
    };
    let value = json::parse(&bytes, limits::JSON_DEPTH).map_err(Refusal::Unreadable)?;
    let Value::Object(settings) = &value else { return Err(Refusal::WrongType("the whole")) };
    match settings.get("disableAllHooks") {
        None | Some(Value::Bool(false)) => {}
        Some(_) => return Err(Refusal::HooksOff),
    }
    let empty = serde_json::Map::new();
    let env = match settings.get("env") {
        None => &empty,
        Some(Value::Object(env)) => env,
        Some(_) => return Err(Refusal::WrongType("env")),
    };
    match env.get(SHELL_PREFIX) {
        None if holds_our_entries => return Err(Refusal::PrefixChanged),
        None => {}
        Some(Value::String(prefix)) if is_file(prefix, &installed.launcher()) => {}
        Some(_) => return Err(Refusal::PrefixChanged),
    }
    if source != "user_settings"
        && let Some(name) = env.keys().find(|name| name.as_str() != SHELL_PREFIX && reaches_the_host(name))
    {
        return Err(Refusal::Environment(name.chars().take(64).filter(|c| !c.is_control()).collect()));
    }
    if holds_our_entries {
        for event in EventName::ALL {
            if !runs_our_hook(settings.get("hooks"), event, installed) {
                return Err(Refusal::HookRemoved(event));
            }
        }
    }
    Ok(())
}

/// Whether a variable that a project sets acts on the host, its hooks or its shells before a fence is on.
pub fn reaches_the_host(name: &str) -> bool {
    const NAMES: [&str; 11] = [
        SHELL_PREFIX,
        "CLAUDE_CODE_SHELL",
        "CLAUDE_CONFIG_DIR",
        "SHELL",
        "BASH_ENV",
        "ENV",
        "PATH",
        "NODE_OPTIONS",
        "HOME",
        "GLIBC_TUNABLES",
        "GCONV_PATH",
    ];
    NAMES.contains(&name)
        || ["LD_", "GIT_", "XDG_"].iter().any(|prefix| name.starts_with(prefix))
        || name.ends_with("_BASE_URL")
}

/// The file's bytes; `None` when there is none.
fn read(file: &Path) -> Result<Option<Vec<u8>>, Refusal> {
    // Non-blocking: a named pipe put in the file's place must not hold the hook.
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(file);
    let opened = match opened {
        Ok(opened) => opened,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(_) => return Err(Refusal::Unopened),
    };
    if !opened.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(Refusal::Unopened);
    }
    let mut bytes = Vec::new();
    // One byte over the limit is enough for the parser to say that it is too large.
    let read = opened.take(limits::FRAME_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.map(|_| Some(bytes)).map_err(|_| Refusal::Unopened)
}

fn is_file(named: &str, file: &Path) -> bool {
    named.starts_with('/') && std::fs::canonicalize(named).is_ok_and(|real| real == file)
}

/// Whether `hooks` runs our hook for every tool and long enough.
fn runs_our_hook(hooks: Option<&Value>, event: EventName, installed: &Installed) -> bool {
    let groups = hooks.and_then(|hooks| hooks.get(event.as_str())).and_then(Value::as_array);
    groups.is_some_and(|groups| {
        groups.iter().any(|group| {
            let everything = match group.get("matcher") {
                None => true,
                Some(matcher) => matches!(matcher.as_str(), Some("" | "*")),
            };
            let entries = group.get("hooks").and_then(Value::as_array);
            everything && entries.is_some_and(|entries| entries.iter().any(|entry| is_ours(entry, event, installed)))
        })
    })
}

fn is_ours(entry: &Value, event: EventName, installed: &Installed) -> bool {
    let words: Option<Vec<&str>> =
        entry.get("args").and_then(Value::as_array).and_then(|args| args.iter().map(Value::as_str).collect());
    // Switches that follow only make it stricter; there is no other kind.
    let arguments_hold = words.is_some_and(|words| words.starts_with(&arguments(event, installed.scope)));
    let long_enough = match entry.get("timeout") {
        None => true,
        Some(timeout) => timeout.as_u64().is_some_and(|seconds| seconds >= HOST_TIMEOUT_S),
    };
    // A hook that the host does not wait for, or runs once or under a condition, is not a guard.
    let plain = ["async", "asyncRewake", "if", "once"].iter().all(|key| entry.get(*key).is_none());
    entry.get("type").and_then(Value::as_str) == Some("command")
        && entry.get("command").and_then(Value::as_str).is_some_and(|command| is_file(command, &installed.hook))
        && arguments_hold
        && long_enough
        && plain
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::settings::{settings, settings_for};
    use super::*;

    struct Rig {
        dir: tempfile::TempDir,
        installed: Installed,
    }

    impl Rig {
        fn new(scope: Scope) -> Rig {
            let dir = tempfile::tempdir().unwrap();
            let real = dir.path().canonicalize().unwrap();
            for name in ["ringfence-hook", LAUNCHER_NAME] {
                std::fs::write(real.join(name), "").unwrap();
            }
            Rig { dir, installed: Installed { scope, hook: real.join("ringfence-hook") } }
        }

        fn ours(&self) -> Value {
            settings(&self.installed.hook, &self.installed.launcher(), "2.1.332").unwrap()
        }

        fn inspect(&self, source: &str, text: &str) -> Result<(), Refusal> {
            let file = self.dir.path().join("settings.json");
            std::fs::write(&file, text).unwrap();
            inspect(source, Some(&file), &self.installed)
        }
    }

    #[test]
    fn a_change_beside_our_entries_is_let_through() {
        let rig = Rig::new(Scope::User);
        let mut value = rig.ours();
        value["permissions"] = json!({"allow": ["Bash(ls:*)"]});
        value["env"]["PATH"] = "/usr/bin".into();
        value["hooks"]["PreToolUse"].as_array_mut().unwrap().insert(0, json!({"matcher": "Bash", "hooks": []}));
        assert_eq!(rig.inspect("user_settings", &value.to_string()), Ok(()));
    }

    #[test]
    fn every_way_to_take_an_entry_out_is_refused() {
        let rig = Rig::new(Scope::User);
        for event in EventName::ALL {
            let mut value = rig.ours();
            value["hooks"].as_object_mut().unwrap().remove(event.as_str());
            assert_eq!(rig.inspect("user_settings", &value.to_string()), Err(Refusal::HookRemoved(event)));
        }
        type Change = fn(&mut Value);
        let changes: [(&str, Change); 9] = [
            ("matcher", |v| v["hooks"]["PreToolUse"][0]["matcher"] = "Read".into()),
            ("other program", |v| v["hooks"]["PreToolUse"][0]["hooks"][0]["command"] = "/bin/true".into()),
            ("shell form", |v| {
                v["hooks"]["PreToolUse"][0]["hooks"][0].as_object_mut().unwrap().remove("args");
            }),
            ("no timeout left", |v| v["hooks"]["PreToolUse"][0]["hooks"][0]["timeout"] = 1.into()),
            ("fraction", |v| v["hooks"]["PreToolUse"][0]["hooks"][0]["timeout"] = json!(90.5)),
            ("other event", |v| v["hooks"]["PreToolUse"][0]["hooks"][0]["args"][1] = "SessionEnd".into()),
            ("not awaited", |v| v["hooks"]["PreToolUse"][0]["hooks"][0]["async"] = true.into()),
            ("conditional", |v| v["hooks"]["PreToolUse"][0]["hooks"][0]["if"] = "Bash(ls)".into()),
            ("other type", |v| v["hooks"]["PreToolUse"][0]["hooks"][0]["type"] = "prompt".into()),
        ];
        for (what, change) in changes {
            let mut value = rig.ours();
            change(&mut value);
            let refusal = rig.inspect("user_settings", &value.to_string());
            assert_eq!(refusal, Err(Refusal::HookRemoved(EventName::PreToolUse)), "{what}");
        }
    }

    #[test]
    fn hooks_switched_off_are_refused_wherever_they_are() {
        let rig = Rig::new(Scope::User);
        for source in ["user_settings", "project_settings", "local_settings"] {
            let mut value = rig.ours();
            for off in [json!(true), json!("true"), json!(1), json!(null)] {
                value["disableAllHooks"] = off;
                assert_eq!(rig.inspect(source, &value.to_string()), Err(Refusal::HooksOff));
            }
        }
    }

    #[test]
    fn a_prefix_that_is_not_the_launcher_is_refused() {
        let rig = Rig::new(Scope::User);
        for prefix in [json!(""), json!("/bin/true"), json!("ringfence-exec"), json!(null), json!(1)] {
            let mut value = rig.ours();
            value["env"][SHELL_PREFIX] = prefix.clone();
            assert_eq!(rig.inspect("user_settings", &value.to_string()), Err(Refusal::PrefixChanged), "{prefix}");
            let project = json!({"env": {SHELL_PREFIX: prefix}}).to_string();
            assert_eq!(rig.inspect("project_settings", &project), Err(Refusal::PrefixChanged));
        }
        let mut value = rig.ours();
        value["env"].as_object_mut().unwrap().remove(SHELL_PREFIX);
        assert_eq!(rig.inspect("user_settings", &value.to_string()), Err(Refusal::PrefixChanged));
        let same = json!({"env": {SHELL_PREFIX: rig.installed.launcher()}}).to_string();
        assert_eq!(rig.inspect("local_settings", &same), Ok(()));
    }

    #[test]
    fn a_projects_variables_that_reach_the_host_are_refused() {
        let rig = Rig::new(Scope::User);
        for name in ["LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "ENV", "PATH", "NODE_OPTIONS", "GIT_SSH_COMMAND", "HOME"]
            .into_iter()
            .chain(["XDG_CONFIG_HOME", "ANTHROPIC_BASE_URL", "SHELL", "CLAUDE_CONFIG_DIR", "GLIBC_TUNABLES"])
        {
            let text = json!({"env": {"A": "1", name: "x"}}).to_string();
            assert_eq!(rig.inspect("project_settings", &text), Err(Refusal::Environment(name.to_owned())));
        }
        assert_eq!(rig.inspect("project_settings", r#"{"env": {"RUST_LOG": "info"}}"#), Ok(()));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let rig = Rig::new(Scope::User);
        for source in ["user_settings", "project_settings"] {
            for text in ["", "{", "{\"hooks\": {}, \"hooks\": {}}", &"[".repeat(10_000), &" ".repeat(2 << 20)] {
                assert!(matches!(rig.inspect(source, text), Err(Refusal::Unreadable(_))));
            }
            for text in ["[]", "1", "null"] {
                assert_eq!(rig.inspect(source, text), Err(Refusal::WrongType("the whole")));
            }
            assert_eq!(rig.inspect(source, r#"{"env": []}"#), Err(Refusal::WrongType("env")));
            assert_eq!(inspect(source, None, &rig.installed), Err(Refusal::NoFile));
            assert_eq!(inspect(source, Some(rig.dir.path()), &rig.installed), Err(Refusal::Unopened));
        }
        let pipe = rig.dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR).unwrap();
        assert_eq!(inspect("user_settings", Some(&pipe), &rig.installed), Err(Refusal::Unopened));
    }

    #[test]
    fn a_file_that_is_gone_matters_only_where_our_entries_were() {
        let rig = Rig::new(Scope::User);
        let gone = rig.dir.path().join("gone.json");
        assert_eq!(inspect("user_settings", Some(&gone), &rig.installed), Err(Refusal::Gone));
        assert_eq!(inspect("project_settings", Some(&gone), &rig.installed), Ok(()));
        let managed = Rig::new(Scope::Managed);
        assert_eq!(inspect("user_settings", Some(&gone), &managed.installed), Ok(()));
        assert_eq!(managed.inspect("user_settings", "{}"), Ok(()));
        assert_eq!(managed.inspect("user_settings", r#"{"disableAllHooks": true}"#), Err(Refusal::HooksOff));
        assert_eq!(managed.inspect("policy_settings", "{}"), Ok(()));
    }

    #[test]
    fn a_managed_installation_has_its_own_arguments() {
        let rig = Rig::new(Scope::Managed);
        let value = settings_for(Scope::Managed, &rig.installed.hook, &rig.installed.launcher(), "2.1.332").unwrap();
        assert!(runs_our_hook(value.get("hooks"), EventName::PreToolUse, &rig.installed));
        assert!(!runs_our_hook(rig.ours().get("hooks"), EventName::PreToolUse, &rig.installed));
    }
}
