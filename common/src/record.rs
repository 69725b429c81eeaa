//! What the ring buffers carry: a fixed header, then one of the bodies below, named by [`Header::kind`].

use crate::limits::{EXEC_DATA_BYTES, PATH_BYTES, REFUSED_PATH_BYTES, UNIX_NAME_BYTES};
use crate::maps::FileKey;
use crate::mark::Mark;
use crate::plain;

/// [`Fork`].
pub const KIND_FORK: u32 = 1;
/// [`ExecHead`] and its data.
pub const KIND_EXEC: u32 = 2;
/// [`Exit`].
pub const KIND_EXIT: u32 = 3;
/// [`Connect`].
pub const KIND_CONNECT: u32 = 4;
/// [`ConnectResult`].
pub const KIND_CONNECT_RESULT: u32 = 5;
/// [`RefusedHead`] and its path.
pub const KIND_REFUSED: u32 = 6;
/// [`GateHead`] and its path: a program of ours refused.
pub const KIND_DENIED: u32 = 7;
/// [`GateHead`] and its path: allowed, and to be known.
pub const KIND_NOTED: u32 = 8;
/// One more than the largest kind, with room for more.
pub const KINDS: usize = 16;

plain! {
    /// First in every record.
    pub struct Header {
        /// A `KIND_*`.
        pub kind: u32,
        /// Length of the whole record in bytes.
        pub len: u32,
        /// Nanoseconds of CLOCK_BOOTTIME.
        pub time_ns: u64,
        /// The mark of the acting task.
        pub mark: Mark,
        /// Start of its process, nanoseconds of CLOCK_BOOTTIME.
        pub start_ns: u64,
        /// Its thread-group id.
        pub pid: u32,
        /// Its thread id.
        pub thread: u32,
    }
}

plain! {
    /// A child process was made.
    pub struct Fork {
        /// The header.
        pub header: Header,
        /// The child's start.
        pub child_start_ns: u64,
        /// The child's thread-group id.
        pub child_pid: u32,
        /// Always 0.
        pub reserved: u32,
    }
}

/// The mapped file has no link.
pub const EXEC_ANONYMOUS: u32 = 1;
/// `bprm->filename` was cut.
pub const EXEC_FILENAME_CUT: u32 = 1 << 1;
/// The path was cut at its beginning (too deep or too long), or could not be read.
pub const EXEC_PATH_CUT: u32 = 1 << 2;
/// The arguments were cut, or could not be read.
pub const EXEC_ARGV_CUT: u32 = 1 << 3;
/// The path does not begin at a root: the file is on no mount that has a place (memfd, pipe).
pub const EXEC_PATH_DETACHED: u32 = 1 << 4;

plain! {
    /// A program was started. After it: file name, path components (leaf first, each with a NUL), arguments (each with
    /// a NUL), one after the other.
    pub struct ExecHead {
        /// The header, with the mark after the exec.
        pub header: Header,
        /// Start of the parent.
        pub parent_start_ns: u64,
        /// Thread-group id of the parent.
        pub parent_pid: u32,
        /// `EXEC_*`.
        pub flags: u32,
        /// The mapped file.
        pub file: FileKey,
        /// Bytes of the file name, its NUL included.
        pub filename_len: u32,
        /// Bytes of the path components.
        pub path_len: u32,
        /// Bytes of the arguments.
        pub argv_len: u32,
        /// Always 0.
        pub reserved: u32,
    }
}

/// An exec record where it is put together: twice the data, so that the verifier sees every copy stay inside.
#[repr(C)]
pub struct ExecScratch {
    /// The fixed part.
    pub head: ExecHead,
    /// The variable part.
    pub data: [u8; EXEC_DATA_BYTES * 2],
}

plain! {
    /// A process ended.
    pub struct Exit {
        /// The header.
        pub header: Header,
        /// As `wait` gives it: exit code in bits 8 to 15, signal in bits 0 to 6.
        pub status: u32,
        /// Always 0.
        pub reserved: u32,
    }
}

/// A cgroup or LSM program of ours refused it.
pub const CONNECT_REFUSED: u32 = 1;
/// The unix name was cut.
pub const CONNECT_NAME_CUT: u32 = 1 << 1;
/// The unix name is the peer socket's own (an LSM program saw the resolved peer), not the caller's string.
pub const CONNECT_RESOLVED: u32 = 1 << 2;
/// The peer socket was made in the same tree.
pub const CONNECT_INSIDE: u32 = 1 << 3;

plain! {
    /// A connect or a datagram was attempted.
    pub struct Connect {
        /// The header.
        pub header: Header,
        /// Ties it to its [`ConnectResult`]; unique in its thread.
        pub attempt: u64,
        /// `AF_INET`, `AF_INET6` or `AF_UNIX`.
        pub family: u32,
        /// Port in host order.
        pub port: u32,
        /// `SOCK_*`, 0 when not known.
        pub socket_type: u32,
        /// `CONNECT_*`.
        pub flags: u32,
        /// Bytes of `name`.
        pub name_len: u32,
        /// Process that listens at a resolved unix peer, 0 when not known.
        pub peer_pid: u32,
        /// IPv4 in the first four bytes, or IPv6.
        pub address: [u8; 16],
        /// `sun_path`.
        pub name: [u8; UNIX_NAME_BYTES],
    }
}

plain! {
    /// How a connect ended.
    pub struct ConnectResult {
        /// The header.
        pub header: Header,
        /// See [`Connect::attempt`].
        pub attempt: u64,
        /// Positive errno, 0 for success.
        pub errno: u32,
        /// Always 0.
        pub reserved: u32,
    }
}

/// The system call came through the 32-bit ABI.
pub const REFUSED_COMPAT: u32 = 1;
/// The path was cut.
pub const REFUSED_PATH_CUT: u32 = 1 << 1;

plain! {
    /// A system call was refused. After it: the path argument.
    pub struct RefusedHead {
        /// The header.
        pub header: Header,
        /// Its number.
        pub syscall: u32,
        /// Positive errno.
        pub errno: u32,
        /// `REFUSED_*`.
        pub flags: u32,
        /// Bytes of the path.
        pub path_len: u32,
        /// Its arguments.
        pub arguments: [u64; 6],
    }
}

/// A refusal record where it is put together; see [`ExecScratch`].
#[repr(C)]
pub struct RefusedScratch {
    /// The fixed part.
    pub head: RefusedHead,
    /// The variable part.
    pub path: [u8; REFUSED_PATH_BYTES * 2],
}

/// The path was cut, or could not be read.
pub const GATE_PATH_CUT: u32 = 1;
/// The path begins at the root of its own file system, not at the caller's.
pub const GATE_PATH_PART: u32 = 1 << 1;
/// The path is too deep to be judged.
pub const GATE_TOO_DEEP: u32 = 1 << 2;
/// The process was killed before its first instruction, since the exec could not be refused.
pub const GATE_KILLED: u32 = 1 << 3;
/// No LSM program, but a cgroup program or a tracepoint decided.
pub const GATE_FALLBACK: u32 = 1 << 4;
/// The path is one string, not components: the peer's name, or an exec's file name.
pub const GATE_PATH_WHOLE: u32 = 1 << 5;
/// The change was made by the system's git.
pub const GATE_BY_GIT: u32 = 1 << 6;

plain! {
    /// A gate refused something, or let it pass and noted it. After it: a path, components leaf first, each with a NUL,
    /// unless [`GATE_PATH_WHOLE`] is set.
    pub struct GateHead {
        /// The header; its mark's generation is that of the rule set that judged.
        pub header: Header,
        /// A constant of [`crate::rules::gate`].
        pub gate: u32,
        /// Positive errno that the caller got; 0 when it was let pass.
        pub errno: u32,
        /// `GATE_*`.
        pub flags: u32,
        /// [`crate::rules::Object::label`] of the rule, 0 for none.
        pub label: u32,
        /// The file, directory or peer socket; zero for none.
        pub file: FileKey,
        /// `AF_*` of an address, or of the socket that was to be made; 0 for none.
        pub family: u32,
        /// Port in host order, or the type of the socket that was to be made.
        pub port: u32,
        /// IPv4 in the first four bytes, or IPv6.
        pub address: [u8; 16],
        /// The process that was to be signalled or traced, or that listens at the peer; 0 for none.
        pub other_pid: u32,
        /// Signal, `PTRACE_MODE_*`, `bpf` command, or protocol of the socket that was to be made.
        pub detail: u32,
        /// Bytes of the path.
        pub path_len: u32,
        /// Always 0.
        pub reserved: u32,
    }
}

/// A gate's record where it is put together; see [`ExecScratch`].
#[repr(C)]
pub struct GateScratch {
    /// The fixed part.
    pub head: GateHead,
    /// The variable part.
    pub path: [u8; PATH_BYTES * 2],
}
