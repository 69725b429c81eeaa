//! Claude Code's hook input, decoded strictly: what is missing, mistyped, too long or unknown is an error of its own.
//!
//! Versions read: 2.1.197 and 2.1.332. Fields that are not named here are tolerated and kept out.
#![forbid(unsafe_code)]

pub mod answer;
pub mod config_change;
pub mod settings;

use serde_json::{Map, Value};

use super::{HostEvent, HostEventKind, ToolClass, ToolUse};
use crate::ipc::json::{self, JsonError};
use crate::ipc::limits;

/// The events that Ringfence hooks. The host has more; each one hooked costs a process per turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventName {
    /// A session begins, is resumed, cleared or compacted.
    SessionStart,
    /// A session ends; the host gives about a second.
    SessionEnd,
    /// The person sent a prompt.
    UserPromptSubmit,
    /// A tool is about to run.
    PreToolUse,
    /// A tool ran.
    PostToolUse,
    /// A tool failed; a command's non-zero exit is one.
    PostToolUseFailure,
    /// A subagent starts.
    SubagentStart,
    /// A subagent stops.
    SubagentStop,
    /// A settings file changed and is about to be read again.
    ConfigChange,
    /// The session's directory changed.
    CwdChanged,
}

impl EventName {
    /// Every event that is hooked.
    pub const ALL: [EventName; 10] = [
        EventName::SessionStart,
        EventName::SessionEnd,
        EventName::UserPromptSubmit,
        EventName::PreToolUse,
        EventName::PostToolUse,
        EventName::PostToolUseFailure,
        EventName::SubagentStart,
        EventName::SubagentStop,
        EventName::ConfigChange,
        EventName::CwdChanged,
    ];

    /// The host's name of it.
    pub fn as_str(self) -> &'static str {
        match self {
            EventName::SessionStart => "SessionStart",
            EventName::SessionEnd => "SessionEnd",
            EventName::UserPromptSubmit => "UserPromptSubmit",
            EventName::PreToolUse => "PreToolUse",
            EventName::PostToolUse => "PostToolUse",
            EventName::PostToolUseFailure => "PostToolUseFailure",
            EventName::SubagentStart => "SubagentStart",
            EventName::SubagentStop => "SubagentStop",
            EventName::ConfigChange => "ConfigChange",
            EventName::CwdChanged => "CwdChanged",
        }
    }

    /// The event that the host calls `name`.
    pub fn from_host(name: &str) -> Option<EventName> {
        EventName::ALL.into_iter().find(|event| event.as_str() == name)
    }

    /// Whether an answer that cannot be worked out is a denial. The other events only tell: refusing them would stop
    /// the person's prompt or the host itself, and protect nothing.
    pub fn fails_closed(self) -> bool {
        matches!(self, EventName::PreToolUse | EventName::ConfigChange)
    }
}

/// Why hook input was not read. No variant repeats any of the input's values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not JSON within the limits.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// JSON, but not an object.
    #[error("the hook input is not a JSON object")]
    NotAnObject,
    /// A field that every such event has is not there.
    #[error("the hook input has no {0}")]
    Missing(&'static str),
    /// A field has another JSON type.
    #[error("{0} in the hook input does not have the type the host documents")]
    WrongType(&'static str),
    /// A field is there and empty.
    #[error("{0} in the hook input is empty")]
    EmptyField(&'static str),
    /// A field is longer than any the host makes.
    #[error("{field} in the hook input has {length} bytes, over the limit of {limit}")]
    TooLong {
        /// Which.
        field: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// An id with control characters or a slash, a path with NUL or without its first slash.
    #[error("{0} in the hook input has characters that it may not have")]
    BadText(&'static str),
    /// An event that is not hooked.
    #[error("the hook input is of an event that Ringfence does not hook")]
    UnknownEvent,
}

/// What unreadable input says of itself, as far as that could be read: it decides how it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nothing: not even the event.
    Nothing,
    /// One of our events that asks nothing.
    Event(EventName),
    /// A tool call, of this class when its name could be read.
    ToolCall(Option<ToolClass>),
    /// An event that is not ours.
    OtherEvent {
        /// It names a tool: it may be a tool call under a name that a newer host gave the event.
        names_a_tool: bool,
    },
}

impl Claim {
    /// Whether input that could not be read is denied.
    pub fn fails_closed(self) -> bool {
        match self {
            Claim::Nothing | Claim::ToolCall(None) => true,
            Claim::ToolCall(Some(class)) => class.executes_or_mutates(),
            Claim::Event(event) => event.fails_closed(),
            Claim::OtherEvent { names_a_tool } => names_a_tool,
        }
    }
}

/// Hook input that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Unreadable {
    /// Why.
    #[source]
    pub error: DecodeError,
    /// What it claims to be.
    pub claim: Claim,
}

impl Unreadable {
    /// The class to answer and count it under: unknown, unless the tool's name could be read.
    pub fn class(&self) -> ToolClass {
        match self.claim {
            Claim::ToolCall(Some(class)) => class,
            Claim::Nothing | Claim::ToolCall(None) | Claim::Event(_) | Claim::OtherEvent { .. } => ToolClass::Unknown,
        }
    }
}

/// Reads one hook call from the bytes that the host wrote.
pub fn decode(input: &[u8]) -> Result<HostEvent, Unreadable> {
    match json::parse(input, limits::JSON_DEPTH) {
        Ok(value) => decode_value(&value),
        Err(error) => Err(Unreadable { error: error.into(), claim: Claim::Nothing }),
    }
}

/// Reads one hook call from JSON that is within the limits already.
pub fn decode_value(value: &Value) -> Result<HostEvent, Unreadable> {
    let Value::Object(object) = value else {
        return Err(Unreadable { error: DecodeError::NotAnObject, claim: Claim::Nothing });
    };
    let fields = Fields(object);
    fields.event().map_err(|error| Unreadable { error, claim: fields.claim() })
}

/// What a tool can do, by the host's name of it.
pub fn tool_class(tool_name: &str) -> ToolClass {
    ToolClass::of_tool(tool_name)
}

/// The exit code in the `error` text of a failed command: its first line is `Exit code N`.
fn exit_code(error: &str) -> Option<i32> {
    error.lines().next()?.strip_prefix("Exit code ")?.parse().ok()
}

struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    fn claim(&self) -> Claim {
        let Some(Value::String(name)) = self.0.get("hook_event_name") else { return Claim::Nothing };
        match EventName::from_host(name) {
            Some(EventName::PreToolUse) => Claim::ToolCall(self.tool_name().ok().map(tool_class)),
            Some(event) => Claim::Event(event),
            None => Claim::OtherEvent {
                names_a_tool: ["tool_name", "tool_input"].iter().any(|field| self.0.contains_key(*field)),
            },
        }
    }

    fn event(&self) -> Result<HostEvent, DecodeError> {
        let name = self.text("hook_event_name", limits::ID_BYTES)?;
        let event = EventName::from_host(name).ok_or(DecodeError::UnknownEvent)?;
        let kind = match event {
            EventName::SessionStart => HostEventKind::SessionStart { source: self.word("source")? },
            EventName::SessionEnd => HostEventKind::SessionEnd { reason: self.word("reason")? },
            EventName::UserPromptSubmit => {
                HostEventKind::Prompt { text: self.any_text("prompt", limits::FRAME_BYTES)?.to_owned() }
            }
            EventName::PreToolUse => HostEventKind::ToolCall(self.tool_use()?),
            EventName::PostToolUse => {
                HostEventKind::ToolDone { call: self.tool_use()?, duration_ms: self.optional_count("duration_ms")? }
            }
            EventName::PostToolUseFailure => HostEventKind::ToolFailed {
                call: self.tool_use()?,
                exit_code: exit_code(self.any_text("error", limits::FRAME_BYTES)?),
                interrupted: self.optional_flag("is_interrupt")?.unwrap_or(false),
                duration_ms: self.optional_count("duration_ms")?,
            },
            EventName::SubagentStart => {
                HostEventKind::SubagentStart { agent: self.id("agent_id")?, agent_type: self.word("agent_type")? }
            }
            EventName::SubagentStop => HostEventKind::SubagentStop { agent: self.id("agent_id")? },
            EventName::ConfigChange => HostEventKind::ConfigChange {
                source: self.word("source")?,
                file: self.0.contains_key("file_path").then(|| self.path("file_path")).transpose()?,
            },
            EventName::CwdChanged => {
                HostEventKind::CwdChanged { from: self.path("old_cwd")?, to: self.path("new_cwd")? }
            }
        };
        Ok(HostEvent {
            session: self.id("session_id")?,
            subagent: self.0.contains_key("agent_id").then(|| self.id("agent_id")).transpose()?,
            cwd: self.path("cwd")?,
            kind,
        })
    }

    fn tool_use(&self) -> Result<ToolUse, DecodeError> {
        let tool = self.tool_name()?;
        let input = self.get("tool_input")?;
        let Value::Object(inner) = input else { return Err(DecodeError::WrongType("tool_input")) };
        // The one input that decides what runs: a call without it has not been read.
        if tool_class(tool) == ToolClass::ShellExec && !matches!(inner.get("command"), Some(Value::String(_))) {
            return Err(DecodeError::WrongType("tool_input.command"));
        }
        Ok(ToolUse { call_id: self.id("tool_use_id")?, tool: tool.to_owned(), input: input.clone() })
    }

    fn tool_name(&self) -> Result<&'a str, DecodeError> {
        self.text("tool_name", limits::ID_BYTES)
    }

    fn get(&self, field: &'static str) -> Result<&'a Value, DecodeError> {
        self.0.get(field).ok_or(DecodeError::Missing(field))
    }

    /// Any text, also an empty one.
    fn any_text(&self, field: &'static str, limit: usize) -> Result<&'a str, DecodeError> {
        let Value::String(text) = self.get(field)? else { return Err(DecodeError::WrongType(field)) };
        if text.len() > limit {
            return Err(DecodeError::TooLong { field, length: text.len(), limit });
        }
        Ok(text)
    }

    /// Text on one line.
    fn text(&self, field: &'static str, limit: usize) -> Result<&'a str, DecodeError> {
        let text = self.any_text(field, limit)?;
        if text.is_empty() {
            return Err(DecodeError::EmptyField(field));
        }
        if text.chars().any(char::is_control) {
            return Err(DecodeError::BadText(field));
        }
        Ok(text)
    }

    fn word(&self, field: &'static str) -> Result<String, DecodeError> {
        self.text(field, limits::ID_BYTES).map(str::to_owned)
    }

    /// An id may become a file's name: nothing in it may lead elsewhere.
    fn id(&self, field: &'static str) -> Result<String, DecodeError> {
        let id = self.text(field, limits::ID_BYTES)?;
        if id.contains('/') || id.starts_with('.') {
            return Err(DecodeError::BadText(field));
        }
        Ok(id.to_owned())
    }

    fn path(&self, field: &'static str) -> Result<String, DecodeError> {
        let path = self.any_text(field, limits::PATH_BYTES)?;
        if path.is_empty() {
            return Err(DecodeError::EmptyField(field));
        }
        if !path.starts_with('/') || path.contains('\0') {
            return Err(DecodeError::BadText(field));
        }
        Ok(path.to_owned())
    }

    fn optional_count(&self, field: &'static str) -> Result<Option<u64>, DecodeError> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or(DecodeError::WrongType(field)),
        }
    }

    fn optional_flag(&self, field: &'static str) -> Result<Option<bool>, DecodeError> {
        match self.0.get(field) {
            None => Ok(None),
            Some(value) => value.as_bool().map(Some).ok_or(DecodeError::WrongType(field)),
        }
    }
}

#[cfg(test)]
mod tests;
