//! What Ringfence writes into Claude Code's settings: its hooks in exec form, and the launcher as shell prefix.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::EventName;

/// The host's name as the hook's first argument.
pub const ADAPTER: &str = "claude-code";
/// How long the host waits for a hook, in seconds. Whole seconds only.
pub const HOST_TIMEOUT_S: u64 = 90;
/// The variable through which the host is given the launcher.
pub const SHELL_PREFIX: &str = "CLAUDE_CODE_SHELL_PREFIX";
/// The launcher's file name; it lies beside the hook, which finds it so without asking anyone.
pub const LAUNCHER_NAME: &str = "ringfence-exec";

/// First version that knows `onFailure`, as far as it was measured (2.1.197 does not).
const ON_FAILURE_SINCE: [u64; 3] = [2, 1, 332];

/// Whose settings the hooks are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The user's own file, which must go on holding them.
    User,
    /// A file that a change of the user's settings cannot reach: the system's, or one given with `--settings`.
    Managed,
}

/// Why settings cannot be written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A path is not absolute, or not text.
    #[error("{0}: the host needs an absolute path in UTF-8")]
    NotAbsolute(PathBuf),
    /// The host splits the prefix at " -" and a shell reads it.
    #[error("{0}: the launcher's path must be one plain word (letters, digits, / . _ + -): install it elsewhere")]
    NotOneWord(PathBuf),
    /// The hook looks for the launcher beside itself.
    #[error("{0} must be named ringfence-exec and lie in the directory of the hook")]
    Apart(PathBuf),
    /// Not a version of the form 1.2.3.
    #[error("{0:?} is not a version of Claude Code, such as 2.1.332")]
    Version(String),
}

/// The settings for the user's own file.
///
/// `hook` and `launcher` are absolute and in one directory; `version` is what `claude --version` says first.
pub fn settings(hook: &Path, launcher: &Path, version: &str) -> Result<Value, SettingsError> {
    settings_for(Scope::User, hook, launcher, version)
}

/// The settings for a file of either scope.
pub fn settings_for(scope: Scope, hook: &Path, launcher: &Path, version: &str) -> Result<Value, SettingsError> {
    let hook_text = absolute(hook)?;
    let launcher_text = absolute(launcher)?;
    if !launcher_text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._+-".contains(&b)) {
        return Err(SettingsError::NotOneWord(launcher.to_owned()));
    }
    if launcher.file_name() != Some(LAUNCHER_NAME.as_ref()) || launcher.parent() != hook.parent() {
        return Err(SettingsError::Apart(launcher.to_owned()));
    }
    let on_failure = parse_version(version)? >= ON_FAILURE_SINCE;
    let mut hooks = Map::new();
    for event in EventName::ALL {
        let mut entry = json!({
            "type": "command",
            "command": hook_text,
            "args": arguments(event, scope),
            "timeout": HOST_TIMEOUT_S,
        });
        // Not on events that only tell: a hook that is missing would then stop the person's prompt, and protect nothing.
        if on_failure && event.fails_closed() {
            entry["onFailure"] = "block".into();
        }
        hooks.insert(event.as_str().to_owned(), json!([{ "hooks": [entry] }]));
    }
    Ok(json!({ "hooks": hooks, "env": { SHELL_PREFIX: launcher_text } }))
}

/// The hook's arguments for one event. The event is among them so that input which cannot be read is still answered
/// for what it was, and so that the guard knows what it answers for.
pub fn arguments(event: EventName, scope: Scope) -> Vec<&'static str> {
    let mut words = vec![ADAPTER, event.as_str()];
    if scope == Scope::Managed {
        words.push("--managed");
    }
    words
}

fn absolute(path: &Path) -> Result<&str, SettingsError> {
    let text = path.to_str().filter(|_| path.is_absolute());
    text.ok_or_else(|| SettingsError::NotAbsolute(path.to_owned()))
}

fn parse_version(version: &str) -> Result<[u64; 3], SettingsError> {
    let wrong = || SettingsError::Version(version.to_owned());
    let plain = version.split_whitespace().next().ok_or_else(wrong)?;
    let numbers: Vec<u64> = plain.split('.').map(|part| part.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
    numbers.try_into().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(version: &str) -> Value {
        settings(Path::new("/opt/rf/ringfence-hook"), Path::new("/opt/rf/ringfence-exec"), version).unwrap()
    }

    #[test]
    fn every_event_is_hooked_in_exec_form() {
        let value = made("2.1.332 (Claude Code)");
        for event in EventName::ALL {
            let entry = &value["hooks"][event.as_str()][0]["hooks"][0];
            assert_eq!(entry["command"], "/opt/rf/ringfence-hook");
            assert_eq!(entry["args"], json!(["claude-code", event.as_str()]));
            assert_eq!(entry["timeout"], 90);
            assert_eq!(entry.get("onFailure").is_some(), event.fails_closed(), "{event:?}");
        }
        assert_eq!(value["env"]["CLAUDE_CODE_SHELL_PREFIX"], "/opt/rf/ringfence-exec");
    }

    #[test]
    fn an_older_host_is_not_given_a_key_it_does_not_know() {
        assert!(!made("2.1.197").to_string().contains("onFailure"));
        assert!(made("2.2.0").to_string().contains("onFailure"));
    }

    #[test]
    fn paths_that_the_host_would_split_are_refused() {
        let try_at = |dir: &str| {
            let dir = Path::new(dir);
            settings(&dir.join("ringfence-hook"), &dir.join("ringfence-exec"), "2.1.332")
        };
        for dir in ["/opt/my tools", "/opt/$HOME", "/opt/a;b", "/opt/'q'", "/opt/ä"] {
            assert!(matches!(try_at(dir), Err(SettingsError::NotOneWord(_))), "{dir}");
        }
        assert!(matches!(try_at("relative"), Err(SettingsError::NotAbsolute(_))));
        let apart = settings(Path::new("/a/ringfence-hook"), Path::new("/b/ringfence-exec"), "2.1.332");
        assert!(matches!(apart, Err(SettingsError::Apart(_))));
        for version in ["", "two", "2.1", "2.1.3.4", "2.1.x"] {
            let wrong = settings(Path::new("/a/ringfence-hook"), Path::new("/a/ringfence-exec"), version);
            assert!(matches!(wrong, Err(SettingsError::Version(_))), "{version}");
        }
    }
}
