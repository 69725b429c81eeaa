//! `hook.sock`: what a hook or a launcher says to the service, and what it is told.
//!
//! [`ask`](fn@ask) is the hook's side, [`decode_request`] the service's.
#![forbid(unsafe_code)]

mod ask;
mod request;

use serde::{Deserialize, Serialize};

pub use ask::{AskError, PeerFault, ProtocolFault, ask};
pub use request::{RequestError, decode_request, refusal_reply, request_key};

use crate::host::ToolClass;
use crate::policy::judge::{DecisionSource, Outcome};
use crate::process::ProcessId;

/// The version this build speaks; the one before it is understood too.
pub const PROTOCOL_VERSION: u32 = 1;

/// What a frame asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// A hook call of the host; `host_payload` is its JSON.
    HookEvent,
    /// A hook judged by itself while the service was away; `host_payload` is a [`Gap`].
    Gap,
    /// A launcher put a fence on; `host_payload` is a [`crate::fence::receipt::LaunchNotice`]. It is not answered.
    LaunchNotice,
}

/// The envelope around every request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// See [`PROTOCOL_VERSION`].
    pub protocol_version: u32,
    /// A UUID; a duplicate of a pending one waits on the same answer.
    pub request_id: String,
    /// What is asked.
    pub request_kind: RequestKind,
    /// `claude-code`, `codex`, `run`.
    pub adapter: String,
    /// Version of our adapter.
    pub adapter_version: String,
    /// When the hook read its input, in milliseconds of CLOCK_REALTIME.
    pub received_at_ms: u64,
    /// When the hook answers by itself, in milliseconds of CLOCK_BOOTTIME.
    pub hard_deadline_ms: u64,
    /// The host's version, when the hook can know it.
    pub host_version: Option<String>,
    /// 128 random bits in hex: a new one is a new request.
    pub invocation_nonce: String,
    /// The host's own bounded JSON, untouched.
    pub host_payload: serde_json::Value,
}

/// What the service answers. `no_override` is not a permission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// See [`PROTOCOL_VERSION`].
    pub protocol_version: u32,
    /// The request's id.
    pub request_id: String,
    /// The outcome.
    pub decision: Outcome,
    /// A rule id or a reason.
    pub reason_code: String,
    /// One line for the person and the agent.
    pub explanation: String,
    /// The finding that was recorded, if any.
    pub finding_id: Option<String>,
    /// Who decided.
    pub decision_source: DecisionSource,
    /// The tool's class, see [`crate::host::ToolClass`].
    pub coverage_class: String,
    /// Whether executions of this host are observed: `kernel`, `launcher`, `none`.
    pub execution_observed: String,
}

/// Reason of a reply to a peer that the service has no room for. Not "down": executing and mutating calls are denied.
pub const QUEUE_FULL: &str = "queue_full";

/// What a hook leaves behind when it decided without the service: digests and features, nothing of the input itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// When, in milliseconds of CLOCK_REALTIME.
    pub time_ms: u64,
    /// When, in nanoseconds of CLOCK_BOOTTIME.
    pub boottime_ns: u64,
    /// Why the service did not decide.
    pub cause: GapCause,
    /// The process that started the hook.
    pub host: Option<ProcessId>,
    /// The host's name of the event, when it is one of ours.
    pub event: Option<String>,
    /// The host's session id, when it could be read.
    pub session: Option<String>,
    /// The subagent, when there is one.
    pub subagent: Option<String>,
    /// The host's id of the call, when there is one.
    pub call_id: Option<String>,
    /// What the tool can do, when it is a tool call.
    pub class: Option<ToolClass>,
    /// Lowercase hex SHA-256 of the command, for tools that execute one.
    pub command_digest: Option<String>,
    /// What was answered.
    pub outcome: Outcome,
    /// Why.
    pub reason_code: String,
    /// The rules that matched.
    pub rules: Vec<String>,
}

/// Why a decision was made without the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GapCause {
    /// Nobody listens on `hook.sock`.
    ServiceDown,
    /// The host's own sandbox refuses the connection.
    BlockedByHostSandbox,
    /// The service has no room.
    ServiceFull,
    /// The service did not answer in time.
    ServiceLate,
    /// The service vanished twice before it answered, or answered what is no answer.
    ServiceConfused,
    /// The service refused to listen to this hook.
    ServiceRefused,
    /// What listens there is not this user's service.
    ServiceUntrusted,
    /// The hook's own places could not be found.
    NoPlaces,
    /// The host's input could not be read.
    InputUnreadable,
    /// A change of the host's settings would have removed Ringfence.
    SettingsChange,
}
