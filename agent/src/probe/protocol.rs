//! `probe.sock`: bincode frames, bounded and versioned. The probe serves each uid only its own trees.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::rules::RuleSet;
use crate::process::ProcessId;

/// Version of this protocol.
pub const PROTOCOL_VERSION: u32 = 2;

/// Most descriptors with one [`Request::Identify`].
pub const IDENTIFIED: usize = ringfence_common::limits::IDENTIFIED;

/// What a mark says a process is. Order is not meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// The agent program.
    Host,
    /// Our hook, started by the host.
    Hook,
    /// What the host starts for itself.
    Internal,
    /// From `ringfence-exec` on: inherited, never lost.
    Launched,
}

/// The mark of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// The session's number, unique on this machine while the probe's maps live; never 0.
    pub session: u64,
    /// The launch's number, 0 for none.
    pub launch: u64,
    /// Generation of the policy that was current.
    pub generation: u32,
    /// What the process is.
    pub role: Role,
}

/// A value copied from the kernel, which may have been cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// The bytes, without a terminating NUL.
    pub bytes: Vec<u8>,
    /// Whether there was more.
    pub truncated: bool,
}

/// A file as the kernel keys it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileId {
    /// `s_dev` of the super block, in the kernel's encoding (not `stat`'s on btrfs and overlayfs).
    pub device: u32,
    /// Inode number.
    pub inode: u64,
    /// Inode generation.
    pub generation: u32,
}

/// One kernel event of a marked process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Nanoseconds of CLOCK_BOOTTIME.
    pub time_ns: u64,
    /// The mark of the process at that moment.
    pub mark: Mark,
    /// The process (never the thread).
    pub process: ProcessId,
    /// The thread that acted.
    pub thread: u32,
    /// What happened.
    pub kind: ObservationKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObservationKind {
    /// A child process was made; it carries the same session and launch.
    Fork {
        /// The child.
        child: ProcessId,
    },
    /// A program was started in place. The mark is the one after the exec's role change.
    Exec {
        /// The parent, at that moment.
        parent: ProcessId,
        /// `bprm->filename`: the caller's string; for a script it is the script.
        filename: Bytes,
        /// The file that was really mapped: for a script its interpreter.
        file: FileId,
        /// Path of that file, walked along its dentries and mounts.
        path: Bytes,
        /// The arguments, NUL-separated, from the new memory: cut at the record's size.
        argv: Bytes,
        /// Whether the file has no link (memfd, deleted).
        anonymous: bool,
    },
    /// The process (its last thread) ended.
    Exit {
        /// Exit code, 0 when killed.
        code: u8,
        /// The signal that ended it, 0 for none.
        signal: u8,
    },
    /// A connect or a datagram was attempted.
    Connect {
        /// Ties it to its [`ObservationKind::ConnectResult`]: unique per thread.
        attempt: u64,
        /// Where to.
        peer: Peer,
        /// `SOCK_STREAM` (1), `SOCK_DGRAM` (2), … as the kernel numbers them; 0 when not known.
        socket_type: u8,
        /// Whether a cgroup or LSM program of ours refused it.
        refused: bool,
        /// For a unix peer that an LSM program saw: whose socket it is.
        resolved: Option<ResolvedPeer>,
    },
    /// How it ended: 0, or an errno (EINPROGRESS is neither success nor failure).
    ConnectResult {
        /// See [`ObservationKind::Connect`].
        attempt: u64,
        /// Positive errno, 0 for success.
        errno: u16,
    },
    /// A system call of a launched process returned EACCES, EPERM or EXDEV: some layer refused something.
    SyscallRefused {
        /// Its number, on the ABI that `compat` names.
        syscall: i32,
        /// Whether it came through the 32-bit ABI, whose numbers are others; its arguments and path are then not read.
        compat: bool,
        /// Its six arguments.
        arguments: [u64; 6],
        /// Positive errno.
        errno: u16,
        /// The path argument (of two, the first; the socket address as raw bytes for `connect`, `bind`, `sendto`)
        /// as the caller's memory had it at return: for display, never for a decision.
        path: Bytes,
    },
    /// A gate of the kernel programs refused something, or let it pass and noted it (errno 0).
    Gate(GateEvent),
}

/// What a gate decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateEvent {
    /// A constant of [`ringfence_common::rules::gate`].
    pub gate: u32,
    /// Positive errno that the caller got; 0: it was let pass, and is to be known.
    pub errno: u16,
    /// The label of the rule in its rule set, 0 for the gate's default.
    pub label: u32,
    /// The file, directory or peer socket.
    pub file: Option<FileId>,
    /// Where to, for what goes to an address.
    pub peer: Option<Peer>,
    /// The path of the file or dentry, as far as it was walked; an exec's or peer's own name.
    pub path: Bytes,
    /// The path begins at the root of its own file system.
    pub path_in_file_system: bool,
    /// The path was too deep to be judged, and so refused.
    pub too_deep: bool,
    /// The process was killed before its first instruction.
    pub killed: bool,
    /// A cgroup program or a tracepoint decided, not an LSM program.
    pub fallback: bool,
    /// The system's git did it.
    pub by_git: bool,
    /// The process that was to be signalled or traced, or that listens at the peer; 0 for none.
    pub other_pid: u32,
    /// The family of a socket that was to be made (`AF_*`), 0 for none.
    pub family: u32,
    /// Signal, `PTRACE_MODE_*`, `bpf` command, or type of the socket that was to be made.
    pub detail: u32,
}

impl ObservationKind {
    /// The word used in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            ObservationKind::Fork { .. } => "fork",
            ObservationKind::Exec { .. } => "exec",
            ObservationKind::Exit { .. } => "exit",
            ObservationKind::Connect { .. } => "connect",
            ObservationKind::ConnectResult { .. } => "connect_result",
            ObservationKind::SyscallRefused { .. } => "syscall_refused",
            ObservationKind::Gate(event) if event.errno == 0 => "noted",
            ObservationKind::Gate(_) => "denied",
        }
    }
}

/// What an LSM program knows of a unix peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedPeer {
    /// It was made in the same tree.
    pub inside: bool,
    /// The process that listens there, 0 when not known.
    pub pid: u32,
}

/// Where a connection goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peer {
    /// IPv4 address and port in host order.
    V4([u8; 4], u16),
    /// IPv6 address and port in host order.
    V6([u8; 16], u16),
    /// A unix socket by path, as the caller named it.
    UnixPath(Bytes),
    /// An abstract unix socket's name, without the leading NUL.
    UnixAbstract(Bytes),
    /// A unix socket without a name.
    UnixUnnamed,
}

/// What was counted in the kernel for one session: `attempted = reported + lost`, for all and for each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Events of marked processes.
    pub attempted: u64,
    /// Put into the ring buffer.
    pub reported: u64,
    /// Dropped because it was full.
    pub lost: u64,
    /// Children that could not be marked: what they do is neither judged nor seen.
    pub unmarked_children: u64,
    /// The same by kind.
    pub by_kind: ByKind,
}

/// Counts of one kind of event: `attempted = reported + lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counted {
    /// Happened.
    pub attempted: u64,
    /// Put into the ring buffer.
    pub reported: u64,
    /// Dropped because it was full.
    pub lost: u64,
}

/// Counts by the kind of event, as [`ObservationKind::name`] calls them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "each is documented at ObservationKind's variant of that name")]
pub struct ByKind {
    pub fork: Counted,
    pub exec: Counted,
    pub exit: Counted,
    pub connect: Counted,
    pub connect_result: Counted,
    pub syscall_refused: Counted,
    pub denied: Counted,
    pub noted: Counted,
}

impl std::ops::Add for Counted {
    type Output = Counted;

    fn add(self, other: Counted) -> Counted {
        Counted {
            attempted: self.attempted + other.attempted,
            reported: self.reported + other.reported,
            lost: self.lost + other.lost,
        }
    }
}

impl std::ops::Add for ByKind {
    type Output = ByKind;

    fn add(self, other: ByKind) -> ByKind {
        ByKind {
            fork: self.fork + other.fork,
            exec: self.exec + other.exec,
            exit: self.exit + other.exit,
            connect: self.connect + other.connect,
            connect_result: self.connect_result + other.connect_result,
            syscall_refused: self.syscall_refused + other.syscall_refused,
            denied: self.denied + other.denied,
            noted: self.noted + other.noted,
        }
    }
}

/// State of one kernel program or gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramState {
    /// Its name in the object.
    pub program: String,
    /// Whether it is attached now.
    pub attached: bool,
    /// Why not, or why only in part.
    pub reason: Option<String>,
}

/// A request to the probe. The peer's uid is the owner of all that it names; a marked peer is refused everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// First on each connection.
    Hello {
        /// See [`PROTOCOL_VERSION`].
        protocol_version: u32,
    },
    /// What is loaded.
    Status,
    /// Makes a session number for this uid.
    OpenSession,
    /// Forgets a session whose tree has ended; marks of what still lives stay.
    CloseSession {
        /// The session.
        session: u64,
    },
    /// This uid's open sessions, after a restart of the service.
    Sessions,
    /// Marks every thread of a process and of its descendants, which must all be this uid's.
    Enrol {
        /// The session.
        session: u64,
        /// Where the tree begins.
        root: ProcessId,
        /// What the processes found now are: `Host` for an integrated host.
        role: Role,
    },
    /// The mark of a process of this uid, by pid and start time, checked before and after.
    MarkOf {
        /// The process.
        process: ProcessId,
    },
    /// The same for the process whose pidfd came with this frame (SCM_RIGHTS): it cannot be another one by then.
    MarkOfPassed,
    /// How the kernel keys the files whose descriptors (O_PATH is enough) came with this frame, at most
    /// [`IDENTIFIED`] of them. The probe holds them for the session until [`Request::SetRules`] has come twice, so that
    /// no other inode can get the number of one that rules speak of.
    Identify {
        /// The session.
        session: u64,
    },
    /// From now on this session's processes are judged by these. They are written beside the old ones and made current
    /// in one step; rules that do not fit the kernel's maps change nothing.
    SetRules {
        /// The session.
        session: u64,
        /// For what came of a launch.
        launched: Box<RuleSet>,
        /// For the host, its hooks, and what it starts for itself.
        host: Box<RuleSet>,
    },
    /// Makes sure that refusals of system calls are observed from now on, until no launch has lived for a while
    /// (60 s unless the probe was told otherwise).
    ExpectLaunch {
        /// The session.
        session: u64,
    },
    /// Writes a plan (root-owned, readable by this uid) under the probe's plan directory; answers with its path.
    /// One of the same name is replaced in one step.
    PublishPlan {
        /// `<host pid>.<host start>/<lower case letters, digits, hyphens>.plan`
        name: String,
        /// Its bytes.
        plan: Vec<u8>,
    },
    /// Removes a plan; one that is not there is no error.
    RemovePlan {
        /// As it was published.
        name: String,
    },
    /// Makes the runtime directory of a user who has no `/run/user/UID`.
    RuntimeDirectory,
    /// Counters of a session.
    Counters {
        /// The session.
        session: u64,
    },
    /// Answered with [`Response::Done`]; from then on this connection carries only [`Response::Observations`], and
    /// anything that the subscriber says ends it. One stream per uid at a time.
    Stream,
}

/// An answer of the probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// To [`Request::Hello`].
    Welcome {
        /// See [`PROTOCOL_VERSION`].
        protocol_version: u32,
        /// The probe's version.
        version: String,
        /// Where it publishes this uid's plans.
        plan_directory: String,
    },
    /// To [`Request::Status`].
    Status {
        /// Each program, attached or not.
        programs: Vec<ProgramState>,
        /// Whether refused system calls are observed now, which costs every process of the machine a little.
        syscall_refusals_observed: bool,
    },
    /// To [`Request::OpenSession`].
    Session {
        /// The new session.
        session: u64,
    },
    /// To [`Request::Sessions`].
    Sessions {
        /// Those that are open.
        sessions: Vec<u64>,
    },
    /// To [`Request::Enrol`].
    Enrolled {
        /// How many threads were marked.
        threads: u32,
    },
    /// To [`Request::MarkOf`] and [`Request::MarkOfPassed`].
    Mark {
        /// The mark, `None` when the process is in no tree.
        mark: Option<Mark>,
    },
    /// To [`Request::PublishPlan`].
    Published {
        /// Where it is.
        path: String,
    },
    /// To [`Request::RuntimeDirectory`].
    RuntimeDirectory {
        /// The directory, 0700 and this uid's own.
        path: String,
    },
    /// To [`Request::Identify`], in the order of the descriptors.
    Identified {
        /// How the kernel keys each.
        files: Vec<FileId>,
    },
    /// To [`Request::SetRules`].
    RulesSet {
        /// Generation of the rule set for what came of a launch: observations name it.
        launched: u32,
        /// Generation of the other one.
        host: u32,
    },
    /// To requests that have nothing else to say.
    Done,
    /// To [`Request::Counters`]. What was reported and did not arrive on the stream was lost on the way to it (a
    /// subscriber that vanished with frames unread): the subscriber counts what it gets.
    Counters(Box<Counters>),
    /// On a stream: what happened, in the order of the ring buffers.
    Observations(Vec<Observation>),
    /// Refused or failed.
    Refused {
        /// Why, for programs.
        kind: Refusal,
        /// Why, for the person.
        reason: String,
    },
}

/// Why the probe refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// The peer is inside a marked tree.
    MarkedPeer,
    /// The session, process or plan is not this uid's.
    NotYours,
    /// Unknown version or malformed frame.
    Protocol,
    /// Too many sessions, plans or connections of this uid.
    Limit,
    /// The process is gone or its start time differs.
    Gone,
    /// The kernel refused.
    Kernel,
    /// The probe could not do its own part: a directory, a file, a full disk.
    Unavailable,
}
