//! The hook's arguments, as the installer wrote them. Nothing else tells it what to do: the environment is the project's.
#![forbid(unsafe_code)]

use std::ffi::OsString;

use crate::host::claude_code::EventName;
use crate::host::claude_code::settings::{ADAPTER, Scope};

/// What the program is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Answer one hook call on stdin.
    Hook(Invocation),
    /// Print the version.
    Version,
    /// Print the version of the protocol on `hook.sock`.
    ProtocolVersion,
    /// Say whether this program would work here; change nothing.
    SelfTest,
}

/// One hook call's arguments: `claude-code [EVENT] [--managed] [--strict-offline]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// The event that the hook is installed for. `None` is an older installation: the input alone says it.
    pub event: Option<EventName>,
    /// Whose settings hold the hooks.
    pub scope: Scope,
    /// Deny every mutating and executing call while the service is away.
    pub strict_offline: bool,
}

/// Why the arguments cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// No host was named, or one that is not known.
    #[error("the hook is installed without the name of a host that this version knows")]
    Host,
    /// A word that is no event and no switch.
    #[error("the hook is installed with an argument that this version does not know")]
    Unknown,
    /// An event or a switch was given twice, or after a switch that stands alone.
    #[error("the hook is installed with an argument too many")]
    TooMany,
}

/// Reads the words after the program's name.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Command, ArgumentError> {
    let words: Vec<OsString> = words.collect();
    let texts: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or("\u{fffd}")).collect();
    let (first, rest) = texts.split_first().ok_or(ArgumentError::Host)?;
    let alone = match *first {
        "--version" => Command::Version,
        "--protocol-version" => Command::ProtocolVersion,
        "--self-test" => Command::SelfTest,
        ADAPTER => return invocation(rest).map(Command::Hook),
        _ => return Err(ArgumentError::Host),
    };
    if rest.is_empty() { Ok(alone) } else { Err(ArgumentError::TooMany) }
}

fn invocation(rest: &[&str]) -> Result<Invocation, ArgumentError> {
    let mut call = Invocation { event: None, scope: Scope::User, strict_offline: false };
    for word in rest {
        match (*word, EventName::from_host(word)) {
            ("--managed", _) if call.scope == Scope::User => call.scope = Scope::Managed,
            ("--strict-offline", _) if !call.strict_offline => call.strict_offline = true,
            (_, Some(event)) if call.event.is_none() => call.event = Some(event),
            ("--managed" | "--strict-offline", _) | (_, Some(_)) => return Err(ArgumentError::TooMany),
            (_, None) => return Err(ArgumentError::Unknown),
        }
    }
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::claude_code::settings::arguments;

    fn parsed(line: &str) -> Result<Command, ArgumentError> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn what_the_installer_writes_is_read() {
        for event in EventName::ALL {
            for scope in [Scope::User, Scope::Managed] {
                let words = arguments(event, scope).into_iter().map(OsString::from);
                let call = Invocation { event: Some(event), scope, strict_offline: false };
                assert_eq!(parse(words), Ok(Command::Hook(call)));
            }
        }
        let bare = Invocation { event: None, scope: Scope::User, strict_offline: false };
        assert_eq!(parsed("claude-code"), Ok(Command::Hook(bare)));
        let strict = parsed("claude-code PreToolUse --strict-offline");
        assert!(matches!(strict, Ok(Command::Hook(Invocation { strict_offline: true, .. }))));
        assert_eq!(parsed("--version"), Ok(Command::Version));
        assert_eq!(parsed("--protocol-version"), Ok(Command::ProtocolVersion));
        assert_eq!(parsed("--self-test"), Ok(Command::SelfTest));
    }

    #[test]
    fn anything_else_is_refused() {
        for line in ["", "codex", "--help", "PreToolUse claude-code"] {
            assert_eq!(parsed(line), Err(ArgumentError::Host), "{line}");
        }
        for line in ["claude-code Stop", "claude-code --socket=/tmp/x", "claude-code pretooluse"] {
            assert_eq!(parsed(line), Err(ArgumentError::Unknown), "{line}");
        }
        for line in ["--version x", "claude-code PreToolUse PostToolUse", "claude-code --managed --managed"] {
            assert_eq!(parsed(line), Err(ArgumentError::TooMany), "{line}");
        }
    }
}
