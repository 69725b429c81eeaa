//! The join: facts in, entries out.

use crate::fence::receipt::LaunchNotice;
use crate::host::{HostKind, ToolClass};
use crate::policy::judge::Decision;
use crate::probe::protocol::{Counters, Observation};
use crate::process::ProcessId;

/// Everything the ledger is told. Times are nanoseconds of CLOCK_BOOTTIME.
#[derive(Clone, Debug)]
pub enum Fact {
    /// A session began or was found.
    SessionOpened {
        /// Our id of the session: host session id plus subagent are columns of it.
        session: String,
        /// Which host.
        host: HostKind,
        /// Its version, when known.
        host_version: Option<String>,
        /// The host's process.
        host_process: Option<ProcessId>,
        /// The session's number in marks; `None` without a probe.
        mark: Option<u64>,
        /// Whether the tree was enrolled before its first instruction.
        complete: bool,
        /// When.
        time_ns: u64,
    },
    /// A tool call was decided.
    Decided {
        /// The session.
        session: String,
        /// The host's id of the call.
        call_id: String,
        /// The host's name of the tool.
        tool: String,
        /// Its class.
        class: ToolClass,
        /// Redacted summary.
        summary: String,
        /// The command's SHA-256, for tools that execute one.
        command_digest: Option<[u8; 32]>,
        /// Directory of the call.
        cwd: String,
        /// The decision.
        decision: Decision,
        /// For file edits: the file, and what it was before.
        file: Option<FileState>,
        /// When.
        time_ns: u64,
    },
    /// The launcher put a fence on.
    Launched {
        /// What it says.
        notice: LaunchNotice,
        /// Session and launch of the sender's mark; `None` without a probe.
        mark: Option<(u64, u64)>,
        /// The session found by the host's process, when there is no mark.
        session: Option<String>,
        /// When.
        time_ns: u64,
    },
    /// The kernel saw something.
    Observed(Observation),
    /// The host says how a call ended.
    HostResult {
        /// The session.
        session: String,
        /// The host's id of the call.
        call_id: String,
        /// Whether it failed, and with which exit code if the host says.
        failed: bool,
        /// See `failed`.
        exit_code: Option<i32>,
        /// For file edits: what the file is now.
        file: Option<FileState>,
        /// When.
        time_ns: u64,
    },
    /// The session ended.
    SessionClosed {
        /// The session.
        session: String,
        /// When.
        time_ns: u64,
    },
    /// The kernel's counters of a session.
    Counted {
        /// The session.
        session: String,
        /// What was counted.
        counters: Counters,
    },
    /// Time passes: entries whose windows are over are settled.
    Tick {
        /// Now.
        time_ns: u64,
    },
}

/// What a file was at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileState {
    /// The path as the call named it.
    pub path: String,
    /// Inode, size and SHA-256; `None` when it did not exist.
    pub content: Option<(u64, u64, [u8; 32])>,
}
