//! The coding agents: what their hooks say, and how they are answered.

pub mod claude_code;
pub mod version;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A host that Ringfence knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostKind {
    /// Anthropic's Claude Code.
    ClaudeCode,
    /// OpenAI's Codex CLI.
    Codex,
    /// No host: a command supervised by `ringfence run`.
    Run,
}

/// One hook call, decoded. Every id is the host's own text, bounded by [`crate::ipc::limits`].
#[derive(Clone, Debug, PartialEq)]
pub struct HostEvent {
    /// The host's session id.
    pub session: String,
    /// The subagent that acts, if it is not the main one.
    pub subagent: Option<String>,
    /// The session's current directory, as the host says it.
    pub cwd: String,
    /// What happened.
    pub kind: HostEventKind,
}

/// What a hook call is about.
#[derive(Clone, Debug, PartialEq)]
pub enum HostEventKind {
    /// A session begins.
    SessionStart {
        /// startup, resume, clear, compact.
        source: String,
    },
    /// A session ends.
    SessionEnd {
        /// The host's word for why.
        reason: String,
    },
    /// The person sent a prompt.
    Prompt {
        /// For the task anchor only, and never stored.
        text: String,
    },
    /// A tool is about to run. This is the one that is decided.
    ToolCall(ToolUse),
    /// A tool ran.
    ToolDone {
        /// The call, as it was when it was decided (or as another hook rewrote it since).
        call: ToolUse,
        /// How long it took, as the host says.
        duration_ms: Option<u64>,
    },
    /// A tool ran and failed (Claude Code: a non-zero exit, too).
    ToolFailed {
        /// See [`HostEventKind::ToolDone`].
        call: ToolUse,
        /// The command's exit code, where the host says one.
        exit_code: Option<i32>,
        /// The person interrupted it.
        interrupted: bool,
        /// How long it took, as the host says.
        duration_ms: Option<u64>,
    },
    /// A subagent starts.
    SubagentStart {
        /// Its id.
        agent: String,
        /// The host's name of its kind.
        agent_type: String,
    },
    /// A subagent stops.
    SubagentStop {
        /// Its id.
        agent: String,
    },
    /// A settings file of the host changed.
    ConfigChange {
        /// Which settings: `user_settings`, `project_settings`, `local_settings`, `policy_settings`, ….
        source: String,
        /// The file, where the host says it.
        file: Option<String>,
    },
    /// The session's directory changed.
    CwdChanged {
        /// The old one.
        from: String,
        /// The new one.
        to: String,
    },
}

/// One tool use the host asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse {
    /// The host's id of the call.
    pub call_id: String,
    /// The host's name of the tool.
    pub tool: String,
    /// The tool's input, unmodified; numbers keep their text.
    pub input: Value,
}

/// What a tool can do, which decides how an unreadable call is answered and what coverage is claimed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolClass {
    /// Runs commands.
    ShellExec,
    /// Changes files inside the host's process.
    FileEdit,
    /// Reads files inside the host's process.
    FileRead,
    /// Fetches from the network inside the host's process.
    Fetch,
    /// Calls an MCP server.
    Mcp,
    /// Starts a subagent.
    Subagent,
    /// A tool that is not known: treated like one that executes.
    Unknown,
}

impl ToolClass {
    /// The class of a tool by the name that Claude Code or Codex gives it.
    pub fn of_tool(tool: &str) -> ToolClass {
        match tool {
            "Bash" => ToolClass::ShellExec,
            "Write" | "Edit" | "MultiEdit" | "NotebookEdit" | "apply_patch" => ToolClass::FileEdit,
            "Read" | "Glob" | "Grep" | "LS" => ToolClass::FileRead,
            "WebFetch" | "WebSearch" => ToolClass::Fetch,
            "Task" | "Agent" => ToolClass::Subagent,
            _ if tool.starts_with("mcp__") => ToolClass::Mcp,
            _ => ToolClass::Unknown,
        }
    }

    /// The word used in replies, rows and metrics.
    pub fn word(self) -> &'static str {
        match self {
            ToolClass::ShellExec => "shell_exec",
            ToolClass::FileEdit => "file_edit",
            ToolClass::FileRead => "file_read",
            ToolClass::Fetch => "fetch",
            ToolClass::Mcp => "mcp",
            ToolClass::Subagent => "subagent",
            ToolClass::Unknown => "unknown",
        }
    }

    /// Whether an unreadable call of this class is denied.
    pub fn executes_or_mutates(self) -> bool {
        !matches!(self, ToolClass::FileRead | ToolClass::Fetch | ToolClass::Subagent)
    }
}
