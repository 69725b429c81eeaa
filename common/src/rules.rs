//! What the kernel refuses: gates, and the keys and values of the policy maps.
//!
//! A rule set is written whole under a generation of its own and is never changed; [`Policy`] says which generation of
//! them a session's processes are judged by, and is replaced in one write. A generation is given once.

use crate::maps::FileKey;
use crate::plain;

/// What a decision is about. The number is part of every [`crate::record::GateHead`], and a bit of [`Rules::refuse`].
pub mod gate {
    /// Running a file: `bprm_check_security`, `mmap_file` with PROT_EXEC; SIGKILL at `sched_process_exec`.
    pub const EXEC: u32 = 1;
    /// Running a file that no name leads to (memfd, deleted).
    pub const EXEC_ANONYMOUS: u32 = 2;
    /// Connecting to an internet address by stream.
    pub const CONNECT: u32 = 3;
    /// Sending datagrams to an internet address, connected or not.
    pub const DATAGRAM: u32 = 4;
    /// Binding an internet address.
    pub const BIND: u32 = 5;
    /// Listening on an internet socket.
    pub const LISTEN: u32 = 6;
    /// A unix socket with a path that was made outside the tree.
    pub const UNIX: u32 = 7;
    /// An abstract unix socket that was made outside the tree.
    pub const ABSTRACT: u32 = 8;
    /// Making a socket of a family that is not in [`super::Rules::families`].
    pub const FAMILY: u32 = 9;
    /// Looking into or steering a process outside the tree.
    pub const TRACE: u32 = 10;
    /// Signalling a process outside the tree.
    pub const SIGNAL: u32 = 11;
    /// Making a user namespace.
    pub const NAMESPACE: u32 = 12;
    /// The system call `bpf`.
    pub const BPF: u32 = 13;
    /// Opening a file for reading.
    pub const READ: u32 = 14;
    /// Writing, making, removing or renaming a file.
    pub const WRITE: u32 = 15;
    /// Mode, owner, times, attributes and access lists of a file outside the writable trees.
    pub const METADATA: u32 = 16;
    /// Taking over a file outside the writable trees that another process opened for writing.
    pub const RECEIVE: u32 = 17;
    /// Making a child that cannot be marked.
    pub const FORK: u32 = 18;
    /// One more than the largest gate.
    pub const GATES: u32 = 19;
}

plain! {
    /// `POLICIES`: by session. Only the probe writes it.
    pub struct Policy {
        /// Generation of the rule set for processes of a launch, 0 for none.
        pub launched: u32,
        /// Generation of the rule set for the host, its hooks, and what it starts for itself; 0 for none.
        pub host: u32,
    }
}

plain! {
    /// `RULES`: by generation: what happens where no rule speaks.
    pub struct Rules {
        /// Bit `1 << gate`: refused unless a rule allows it. A gate whose bit is not set passes unless a rule refuses it.
        pub refuse: u64,
        /// Bit `1 << family`: what [`gate::FAMILY`] lets pass.
        pub families: u64,
        /// Every `NAME_*` that some rule of the set has: what none has is not looked for.
        pub names: u32,
        /// Always 0.
        pub reserved: u32,
    }
}

/// Bit of [`Rules::refuse`]: where no LSM program knows the resolved peer, [`gate::UNIX`] and [`gate::ABSTRACT`] refuse
/// every unix socket, the tree's own too. Without it they let all pass there, and note it.
pub const UNIX_ALL_OFF: u64 = 1 << 63;

/// Ranges of ports that one prefix can have.
pub const PORT_RANGES: usize = 16;

plain! {
    /// Ports of an address.
    pub struct PortRange {
        /// First port, host order.
        pub first: u16,
        /// Last port, host order.
        pub last: u16,
        /// Bits `1 << gate` that it speaks of ([`gate::CONNECT`], [`gate::DATAGRAM`], [`gate::BIND`]); 0 ends the list.
        pub gates: u16,
        /// 1: refused, which wins over any range of this prefix that allows. 0: allowed.
        pub refused: u16,
    }
}

plain! {
    /// `ADDRESSES4`, `ADDRESSES6`: all that the rules say of the addresses under a prefix, those of shorter prefixes
    /// included.
    pub struct Ports {
        /// What is not used is zero.
        pub ranges: [PortRange; PORT_RANGES],
    }
}

plain! {
    /// Key of `ADDRESSES4`, a trie of longest prefixes. Bytes are compared from the left, so the generation comes first.
    pub struct Prefix4 {
        /// Bits that count: 32 more than of the address.
        pub bits: u32,
        /// Generation.
        pub generation: u32,
        /// Address as it is on the wire.
        pub address: [u8; 4],
    }
}

plain! {
    /// Key of `ADDRESSES6`. An IPv4 address in IPv6 form is looked up as IPv4.
    pub struct Prefix6 {
        /// Bits that count: 32 more than of the address.
        pub bits: u32,
        /// Generation.
        pub generation: u32,
        /// Address as it is on the wire.
        pub address: [u8; 16],
    }
}

plain! {
    /// Key of `OBJECTS`: executables, sockets and directories, as the kernel keys their inodes. The probe holds each
    /// open, so that no other inode can get its number.
    pub struct ObjectKey {
        /// Generation of the rule set.
        pub generation: u32,
        /// Always 0.
        pub reserved: u32,
        /// The inode.
        pub file: FileKey,
    }
}

plain! {
    /// What the rules say of an inode, or of a name below one.
    pub struct Object {
        /// `OBJECT_*` and `NAME_*`.
        pub bits: u32,
        /// What a refusal by it is called: the rule set's own numbering, 0 for nothing.
        pub label: u32,
        /// For a directory: where its names go on in `NAMES`; 0 for nowhere.
        pub state: u32,
        /// Always 0.
        pub reserved: u32,
    }
}

/// An executable that is not run.
pub const OBJECT_EXEC_REFUSED: u32 = 1;
/// An executable that is run where the rest is not.
pub const OBJECT_EXEC_ALLOWED: u32 = 1 << 1;
/// A socket that can be spoken to although it was made outside.
pub const OBJECT_SOCKET_ALLOWED: u32 = 1 << 2;
/// A socket that is refused even where those made outside are not.
pub const OBJECT_SOCKET_REFUSED: u32 = 1 << 3;
/// A socket for hooks alone.
pub const OBJECT_SOCKET_HOOKS: u32 = 1 << 4;

/// The file, and what lies below it, is not written, made, removed, renamed or replaced, and keeps its metadata.
pub const NAME_WRITE_REFUSED: u32 = 1 << 8;
/// The file, and what lies below it, is not opened.
pub const NAME_READ_REFUSED: u32 = 1 << 9;
/// Below it no executable file is made or changed, nor a file made executable.
pub const NAME_PROGRAM_REFUSED: u32 = 1 << 10;
/// The way to such a name: it may be made as a directory, and not be renamed, replaced, linked or removed.
pub const NAME_WAY: u32 = 1 << 11;
/// What is refused for writing is allowed to the system's git.
pub const NAME_GIT: u32 = 1 << 12;
/// What is refused for writing is allowed to the host.
pub const NAME_HOST: u32 = 1 << 13;
/// A change is allowed, and recorded.
pub const NAME_RECORDED: u32 = 1 << 14;
/// Belongs to what the fence lets write: [`gate::METADATA`] and [`gate::RECEIVE`] pass at and below it.
pub const NAME_WRITABLE: u32 = 1 << 15;
/// What a shorter name refused for reading is allowed again at and below this one.
pub const NAME_READ_ALLOWED: u32 = 1 << 16;
/// Every `NAME_*`.
pub const NAME_BITS: u32 = 0x1_ff00;

/// Longest component of a protected name, with its NUL.
pub const NAME_BYTES: usize = 64;
/// Deepest protected name below the nearest directory that exists.
pub const NAME_DEPTH: usize = 8;
/// Deepest path that is walked to find such a directory: what is deeper is refused where anything is protected.
pub const WALK_DEPTH: usize = 40;

plain! {
    /// Key of `NAMES`: a step from a directory to a name in it.
    pub struct NameKey {
        /// Generation of the rule set.
        pub generation: u32,
        /// [`Object::state`] of the directory.
        pub state: u32,
        /// The name, filled up with NUL; all NUL stands for any name that has no step of its own.
        pub name: [u8; NAME_BYTES],
    }
}

plain! {
    /// Key of `ABSTRACT_NAMES`; the value is an [`Object`] with `OBJECT_SOCKET_*`.
    pub struct AbstractKey {
        /// Generation of the rule set.
        pub generation: u32,
        /// Bytes of the name.
        pub len: u32,
        /// The name without its leading NUL, filled up with NUL.
        pub name: [u8; crate::limits::UNIX_NAME_BYTES],
    }
}

plain! {
    /// `SOCKETS`: socket storage: which tree made a socket.
    pub struct MadeBy {
        /// The session.
        pub session: u64,
    }
}
