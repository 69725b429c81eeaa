//! `control.sock`: what a person's CLI asks of the service. Frames of JSON, one request and one answer per connection.
#![forbid(unsafe_code)]

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::frame::{self, FrameError};
use super::limits;
use crate::process::ProcessId;
use crate::service::grade::Require;

/// Version of this protocol.
pub const PROTOCOL_VERSION: u32 = 1;

/// One request, with the version it is written in.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlRequest {
    /// See [`PROTOCOL_VERSION`].
    pub protocol_version: u32,
    /// What is asked.
    pub ask: Ask,
}

/// What can be asked. Everything but [`Ask::Change`] only reads or adds a session of the caller's own.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// What is enforced and proven now.
    Status,
    /// The report of one session, of the last one, or of all since the service's start.
    Report {
        /// Which.
        session: SessionChoice,
    },
    /// Sessions, newest first, at most `limit`.
    Sessions {
        /// How many.
        limit: u32,
    },
    /// Findings, newest first, at most `limit`.
    Findings {
        /// How many.
        limit: u32,
    },
    /// What the kernel's programs refuse to the trees that are open, or to one session's.
    Rules {
        /// The session, by id or a beginning of it.
        session: Option<String>,
    },
    /// Opens a session for a command that `ringfence run` is about to start in `child`, which waits.
    RunOpen {
        /// The waiting child, which becomes the launcher.
        child: ProcessId,
        /// The fence wanted.
        fence: String,
        /// The command's words.
        command: Vec<String>,
        /// Where it runs.
        cwd: PathBuf,
        /// What canaries must have proven, or nothing is run.
        #[serde(default)]
        require: Option<Require>,
    },
    /// The command ended; answers with its session's report once what it left has settled.
    RunClose {
        /// As [`Answer::RunOpened`] gave it.
        session: String,
        /// The command's exit code, or 128 + signal.
        exit_code: i32,
    },
    /// Anything that changes what is allowed, kept or shown: needs presence.
    Change {
        /// What.
        change: Change,
        /// The passphrase, when polkit is not there to ask for it.
        passphrase: Option<String>,
    },
}

/// Which session a report is of.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionChoice {
    /// The newest whose working tree holds this directory, else the newest.
    Last {
        /// The caller's directory.
        cwd: PathBuf,
    },
    /// By id, or a unique beginning of it.
    Id(String),
}

/// A change that needs presence and leaves an audit row.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// Days that events, and findings, are kept.
    Retention {
        /// Events.
        event_days: u32,
        /// Findings.
        finding_days: u32,
    },
    /// Forgets all history.
    ClearHistory,
    /// Sets the passphrase that stands in for polkit.
    SetPassphrase {
        /// The new one.
        new: String,
    },
}

impl Change {
    /// A fixed word for the audit log.
    pub fn name(&self) -> &'static str {
        match self {
            Change::Retention { .. } => "retention",
            Change::ClearHistory => "clear_history",
            Change::SetPassphrase { .. } => "passphrase",
        }
    }
}

/// What the service answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// JSON in the shape the command documents.
    Json(Value),
    /// To [`Ask::RunOpen`].
    RunOpened {
        /// The session.
        session: String,
        /// The launcher to start, and the plan it is to use.
        launcher: PathBuf,
        /// See `launcher`.
        plan: PathBuf,
        /// What a person should know before it starts.
        notes: Vec<String>,
    },
    /// A change was made.
    Done {
        /// One line.
        message: String,
    },
    /// Refused or failed.
    Refused {
        /// A fixed word for scripts.
        kind: Refusal,
        /// One line for the person.
        reason: String,
    },
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The peer is inside an agent's tree, or cannot be shown not to be.
    AgentPeer,
    /// The peer is not the installed `ringfence`.
    WrongProgram,
    /// Nobody proved to be there, and a passphrase would do.
    PassphraseNeeded,
    /// Nobody proved to be there.
    NoPresence,
    /// Unknown version, malformed or oversized request.
    Protocol,
    /// What was named does not exist.
    NotFound,
    /// What was asked cannot be done now.
    Failed,
}

/// Why the service could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nothing listens.
    #[error(
        "ringfenced is not running ({0} does not answer): start it with `systemctl --user start ringfenced`, or run a command with `ringfence run`"
    )]
    Down(PathBuf),
    /// The caller may not connect.
    #[error("{0} may not be reached from here: {1}")]
    Blocked(PathBuf, std::io::Error),
    /// The frame failed.
    #[error("the service's answer could not be read: {0}")]
    Frame(#[from] FrameError),
    /// The answer is not one.
    #[error("the service's answer is not of this version: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Largest answer: a report of a large session.
pub const ANSWER_BYTES: usize = 32 << 20;

/// Asks the service and waits for its answer.
pub fn ask(socket: &Path, ask: Ask, deadline: Duration) -> Result<Answer, ControlError> {
    let stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => ControlError::Down(socket.to_owned()),
        _ => ControlError::Blocked(socket.to_owned(), error),
    })?;
    let request = serde_json::to_vec(&ControlRequest { protocol_version: PROTOCOL_VERSION, ask })?;
    let mut timed = frame::Timed::new(&stream, deadline);
    frame::write(&mut timed, &request, limits::FRAME_BYTES)?;
    Ok(serde_json::from_slice(&frame::read(&mut timed, ANSWER_BYTES)?)?)
}
