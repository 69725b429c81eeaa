//! Entries, and the JSON that scripts rely on (schema 1: fields are added, never renamed; `docs/report-schema.md`).
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fence::receipt::Receipt;
use crate::policy::judge::{DecisionSource, Outcome};
use crate::probe::protocol::{ByKind, Counters};

/// Version of the JSON.
pub const SCHEMA: u32 = 1;

/// What a report holds: `ringfence report --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// Version of Ringfence that wrote it.
    pub ringfence: String,
    /// What is enforced and proven.
    pub coverage: Coverage,
    /// Kernel events of the sessions shown: attempted = reported + lost.
    pub losses: Losses,
    /// The sessions.
    pub sessions: Vec<SessionReport>,
}

/// Coverage, layer by layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// `landlock`, `seccomp`, `bpf_lsm`, `cgroup`, `observation`, ….
    pub layers: Vec<LayerState>,
    /// Gate by gate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateState>,
}

/// One gate of this machine: what it refuses, by which layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateState {
    /// `exec`, `connect_v4`, `unix_path`, ….
    pub gate: String,
    /// The layer that refuses, or that would: `bpf_lsm`, `cgroup`, `signal`, `landlock`, `seccomp`.
    pub layer: String,
    /// Whether it holds.
    pub state: State,
    /// Why it is as it is.
    pub reason: String,
    /// When a canary proved it (RFC 3339).
    pub proven_at: Option<String>,
}

/// One layer of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerState {
    /// Its name.
    pub layer: String,
    /// Whether it holds.
    pub state: State,
    /// Why it is as it is.
    pub reason: String,
    /// When a canary last proved it (RFC 3339).
    pub proven_at: Option<String>,
}

/// Whether a layer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All of it, and a canary has just proven it.
    Enforced,
    /// Part of it, or not proven.
    Degraded,
    /// Nothing.
    Absent,
}

/// Kernel events counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Events of marked processes.
    pub attempted: u64,
    /// Reported to the service.
    pub reported: u64,
    /// Dropped because a ring buffer was full.
    pub lost: u64,
    /// Children that could not be marked: what they did is not known.
    #[serde(default)]
    pub unmarked_children: u64,
    /// The same by kind of event.
    #[serde(default)]
    pub by_kind: ByKind,
}

impl From<Counters> for Losses {
    fn from(Counters { attempted, reported, lost, unmarked_children, by_kind }: Counters) -> Self {
        Losses { attempted, reported, lost, unmarked_children, by_kind }
    }
}

/// One session with its entries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Our id of the session.
    pub id: String,
    /// `claude-code`, `codex`, `run`, or `unknown`.
    pub host: String,
    /// The host's version, when known.
    pub host_version: Option<String>,
    /// `complete`, or `unknown before` and a time.
    pub history: String,
    /// In the order they began.
    pub entries: Vec<Entry>,
    /// Programs that the host started for itself.
    pub host_internal: u64,
    /// Executions that no decision explains.
    pub unhooked: u64,
    /// `host_internal` by kind.
    #[serde(default)]
    pub host_internal_kinds: BTreeMap<String, u64>,
    /// The older host version whose patterns told them, when this version has none of its own.
    #[serde(default)]
    pub patterns_of: Option<String>,
    /// Kernel events of this session.
    #[serde(default)]
    pub losses: Losses,
    /// When it began (RFC 3339).
    #[serde(default)]
    pub started: Option<String>,
    /// When it ended (RFC 3339).
    #[serde(default)]
    pub ended: Option<String>,
    /// Entries that exist but are not in `entries`.
    #[serde(default)]
    pub more_entries: u64,
}

/// A session without its entries: what changes while it lives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionSummary {
    /// As in [`SessionReport`], and so the rest.
    pub id: String,
    /// Which host.
    pub host: String,
    /// Its version.
    pub host_version: Option<String>,
    /// How much of it was seen.
    pub history: String,
    /// Programs of the host's own.
    pub host_internal: u64,
    /// By kind.
    pub host_internal_kinds: BTreeMap<String, u64>,
    /// Executions that no decision explains.
    pub unhooked: u64,
    /// Patterns of an older version.
    pub patterns_of: Option<String>,
    /// Kernel events.
    pub losses: Losses,
    /// When it began (RFC 3339).
    pub started: String,
    /// When it ended (RFC 3339).
    pub ended: Option<String>,
    /// The session's number in marks.
    pub mark: Option<u64>,
}

impl SessionSummary {
    /// The session as a report shows it.
    pub fn with_entries(self, entries: Vec<Entry>, more_entries: u64) -> SessionReport {
        let SessionSummary {
            id,
            host,
            host_version,
            history,
            host_internal,
            host_internal_kinds,
            unhooked,
            patterns_of,
            losses,
            started,
            ended,
            mark: _,
        } = self;
        SessionReport {
            id,
            host,
            host_version,
            history,
            entries,
            host_internal,
            unhooked,
            host_internal_kinds,
            patterns_of,
            losses,
            started: Some(started),
            ended,
            more_entries,
        }
    }
}

/// How an entry was bound to what ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Binding {
    /// A one-time ticket of the decision.
    Ticket,
    /// The command's digest, working directory and host tree.
    Digest,
    /// Started by the host inside the call's window.
    Window,
    /// Not bound.
    None,
}

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Executions that the kernel saw, or that it would have seen.
    Kernel,
    /// The launcher's own notice.
    Launcher,
    /// The file changed as the call asked.
    File,
    /// Only the host's word.
    Host,
    /// Nothing.
    None,
}

/// Whether decided, confined and observed agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// What happened is what was decided, inside the fence.
    Confirmed,
    /// Denied, and nothing of it was seen to run.
    Blocked,
    /// Ran, and a layer refused part of it.
    RefusedInKernel,
    /// Not denied, but it did not run.
    NotExecuted,
    /// Denied yet it ran, ran twice, or ran otherwise than decided.
    Diverged,
    /// No decision explains it and it is not the host's own business.
    Unhooked,
    /// Only the host can say.
    HostReported,
    /// A line that the person typed in the host.
    UserTyped,
    /// It should have left evidence and did not.
    Unobserved,
    /// Not finished.
    Running,
}

/// One tool call, or one execution that no tool call explains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The ledger's own id.
    pub id: String,
    /// The host's name of the tool; `run` for a supervised command, `process` where no call is known.
    pub tool: String,
    /// The host's id of the call.
    pub call_id: Option<String>,
    /// Redacted, at most 200 bytes.
    pub summary: String,
    /// What was decided; null where nothing was.
    pub decision: Option<DecisionRecord>,
    /// How it was bound.
    pub binding: Binding,
    /// What the verdict rests on.
    pub evidence: Evidence,
    /// The verdict.
    pub verdict: Verdict,
    /// Why, in one line.
    pub why: String,
    /// The launch, if a launcher put a fence on.
    pub launch: Option<LaunchRecord>,
    /// Further launches of the same call: one is too many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_launches: Vec<LaunchRecord>,
    /// Programs that ran: the first and the last ones.
    pub executions: Vec<Execution>,
    /// Connections, equal ones folded.
    pub connections: Vec<Connection>,
    /// Refusals, equal ones folded.
    pub refusals: Vec<Refusal>,
    /// What a person should know.
    pub findings: Vec<String>,
    /// Totals, also of what is not listed.
    #[serde(default)]
    pub counts: Counts,
    /// How many of each list are left out.
    #[serde(default)]
    pub more: More,
    /// When it was decided or first seen (RFC 3339).
    pub started: String,
    /// When it ended (RFC 3339).
    pub ended: Option<String>,
    /// What the host said afterwards.
    #[serde(default)]
    pub host_result: Option<HostResultRecord>,
    /// Lowercase hex SHA-256 of the command.
    #[serde(default)]
    pub command_digest: Option<String>,
    /// Directory of the call.
    #[serde(default)]
    pub cwd: Option<String>,
}

/// A decision as the ledger keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionRecord {
    /// The outcome.
    pub outcome: Outcome,
    /// A rule id or a reason.
    pub reason: String,
    /// The rules that matched.
    pub rules: Vec<String>,
    /// Who decided.
    pub source: DecisionSource,
    /// `sha256:…` over the policy.
    pub policy: String,
    /// The fence chosen.
    #[serde(default)]
    pub fence: String,
}

/// One launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRecord {
    /// Its process.
    pub pid: u32,
    /// The fence's name; `unknown` when the launcher could not tell (inside a host's own sandbox).
    pub fence: String,
    /// What was in force; no layers when the launcher could not tell.
    pub receipt: Receipt,
    /// How its first process ended; null while it runs or when that was not seen.
    pub exit: Option<Exit>,
    /// The launch's number in marks.
    #[serde(default)]
    pub number: Option<u64>,
    /// Start of the process in clock ticks since boot: with the pid, its identity.
    #[serde(default)]
    pub start: u64,
    /// The plan it used.
    #[serde(default)]
    pub plan: Option<String>,
    /// Its processes that still live.
    #[serde(default)]
    pub alive: u64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code; 128 + signal when killed.
    pub code: i32,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u8>,
}

/// One program that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    /// Process id.
    pub pid: u32,
    /// The file that was run; for a script its interpreter.
    pub path: String,
    /// When (RFC 3339).
    pub started: String,
    /// How it ended; null while it runs, when another program took its place, or when the end was not seen.
    pub exit: Option<Exit>,
    /// Parent's process id.
    #[serde(default)]
    pub parent: u32,
    /// The script, by the name it was called with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// Redacted words of it.
    #[serde(default)]
    pub summary: String,
    /// Lowercase hex SHA-256 of the arguments, if they were seen whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv_digest: Option<String>,
    /// Whether the process went on as another program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
    /// Whether the file has no name (memfd, deleted).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anonymous: bool,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectOutcome {
    /// It was made (or the datagram was taken).
    Ok,
    /// A layer refused it.
    Refused,
    /// It failed otherwise.
    Failed,
    /// Its end was not seen, or it was still in progress.
    Attempted,
}

/// A connection, or equal ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// `ipv4`, `ipv6`, `unix`.
    pub family: String,
    /// `127.0.0.1:443`, `[::1]:443`, a path, `@abstract`, `unnamed`.
    pub peer: String,
    /// How it ended.
    pub outcome: ConnectOutcome,
    /// The layer that refused it.
    pub layer: Option<Layer>,
    /// How many.
    #[serde(default)]
    pub count: u64,
    /// The first one's process.
    #[serde(default)]
    pub pid: u32,
    /// When the first one was (RFC 3339).
    #[serde(default)]
    pub started: String,
    /// When the last one was (RFC 3339).
    #[serde(default)]
    pub last: String,
    /// `stream`, `datagram`, `other`.
    #[serde(default)]
    pub socket: String,
    /// Positive errno of a refusal or failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<u16>,
    /// The process outside the tree that listens there, where the kernel knows it: what it does on the caller's behalf is
    /// not seen as the caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker: Option<u32>,
}

/// Who refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Landlock.
    Landlock,
    /// The seccomp filter.
    Seccomp,
    /// A BPF LSM program of ours.
    BpfLsm,
    /// A cgroup program of ours.
    Cgroup,
    /// Our program at the start of programs, which killed the process before its first instruction.
    Signal,
    /// A rule at the hook.
    Rule,
    /// Something else, such as ordinary permissions: not ours, and never guessed.
    Other,
}

impl Layer {
    /// Whether it is a layer of the fence around what runs.
    pub fn is_fence(self) -> bool {
        matches!(self, Layer::Landlock | Layer::Seccomp | Layer::BpfLsm | Layer::Cgroup | Layer::Signal)
    }
}

/// A refusal, or equal ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Who.
    pub layer: Layer,
    /// What: `open for writing /home/x/.bashrc`.
    pub what: String,
    /// The rule or plan line, when known.
    pub rule: Option<String>,
    /// How many.
    #[serde(default)]
    pub count: u64,
    /// The first one's process.
    #[serde(default)]
    pub pid: u32,
    /// Positive errno.
    #[serde(default)]
    pub errno: u16,
    /// Whether the layer is known by the errno alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inferred: bool,
}

/// Totals of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Processes.
    pub processes: u64,
    /// Programs run.
    pub executions: u64,
    /// Connections and datagrams.
    pub connections: u64,
    /// Refusals by a layer of the fence.
    pub refusals: u64,
    /// Refusals by others, such as ordinary permissions.
    pub other_refusals: u64,
}

/// What is left out of an entry's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct More {
    /// Programs between the first and the last ones.
    pub executions: u64,
    /// Connections to further peers.
    pub connections: u64,
    /// Refusals of further kinds.
    pub refusals: u64,
}

/// What the host said of a call afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostResultRecord {
    /// Whether it failed.
    pub failed: bool,
    /// With which exit code, if it said so.
    pub exit_code: Option<i32>,
}

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gravity {
    /// To know.
    Note,
    /// To look at.
    Warning,
    /// Something went against what was decided.
    Alarm,
}

/// Something a person should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Its id.
    pub id: String,
    /// The session.
    pub session: String,
    /// The entry it is about.
    pub entry: Option<String>,
    /// `rule`, `diverged`, `unhooked`, `unfenced`, `loss`, ….
    pub kind: String,
    /// How grave.
    pub gravity: Gravity,
    /// One line, redacted.
    pub text: String,
    /// When (RFC 3339).
    pub time: String,
}

/// Where a layer's name comes from in text.
impl std::fmt::Display for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Layer::Landlock => "Landlock",
            Layer::Seccomp => "seccomp",
            Layer::BpfLsm => "kernel rule",
            Layer::Cgroup => "kernel rule (cgroup)",
            Layer::Signal => "kernel rule (killed at its start)",
            Layer::Rule => "rule",
            Layer::Other => "not by the fence",
        })
    }
}
