//! Every size that kernel and agent share.

/// Version of the layouts of maps, records and pins. A probe takes over only maps of its own version.
pub const MAP_ABI: u32 = 3;

/// Open sessions on one machine.
pub const SESSIONS: usize = 1024;
/// Users that may have ring buffers.
pub const USERS: usize = 64;
/// Executables that give a role.
pub const IDENTITIES: usize = 256;
/// Files that are identified in one walk.
pub const IDENTIFIED: usize = 32;
/// Rule sets on one machine: two a session, twice while they are replaced.
pub const RULE_SETS: usize = 4 * SESSIONS;
/// Prefixes of one address family on one machine.
pub const ADDRESSES: usize = 1 << 20;
/// Inodes of which rules speak on one machine.
pub const OBJECTS: usize = 1 << 18;
/// Steps to protected names on one machine.
pub const NAMES: usize = 1 << 18;
/// Abstract unix names on one machine.
pub const ABSTRACT_NAMES: usize = 1 << 16;
/// Bytes of one user's ring buffer for everything but refusals: a power of two of pages.
pub const RING_BYTES: u32 = 8 << 20;
/// Bytes of one user's ring buffer for refusals.
pub const REFUSAL_RING_BYTES: u32 = 1 << 20;

/// Longest `bprm->filename` that is kept, with its NUL.
pub const FILENAME_BYTES: usize = 1024;
/// Space for the components of a mapped file's path.
pub const PATH_BYTES: usize = 2048;
/// Longest component of a path, with its NUL (NAME_MAX + 1).
pub const COMPONENT_BYTES: usize = 256;
/// Deepest path (directories plus mounts) that is walked.
pub const PATH_DEPTH: usize = 48;
/// Bytes of the arguments that are kept.
pub const ARGV_BYTES: usize = 4096;
/// Variable part of an exec record: a power of two, for the verifier's sake, that holds all of the above.
pub const EXEC_DATA_BYTES: usize = 8192;
/// Longest path argument of a refused system call that is kept, with its NUL.
pub const REFUSED_PATH_BYTES: usize = 1024;
/// `sun_path` (108) rounded up to a multiple of eight.
pub const UNIX_NAME_BYTES: usize = 112;

const _: () = assert!(FILENAME_BYTES + PATH_BYTES + ARGV_BYTES < EXEC_DATA_BYTES);
const _: () = assert!(EXEC_DATA_BYTES.is_power_of_two());
