//! `hook.sock`: what a hook or a launcher says to the service, and what it is told.

use serde::{Deserialize, Serialize};

use crate::policy::judge::{DecisionSource, Outcome};

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
