//! Every size and depth that untrusted input is held to, in one place.
#![forbid(unsafe_code)]

/// Largest frame on any socket, in bytes.
pub const FRAME_BYTES: usize = 1 << 20;
/// Deepest nesting of JSON that is read.
pub const JSON_DEPTH: usize = 128;
/// Longest id (session, call, agent, tool name) that a host may give, in bytes.
pub const ID_BYTES: usize = 256;
/// Longest path that a host may give, in bytes (PATH_MAX).
pub const PATH_BYTES: usize = 4096;
/// Largest answer on `hook.sock`, in bytes.
pub const REPLY_BYTES: usize = 16 << 10;
/// Most values (array elements, object members) in one JSON document.
pub const JSON_VALUES: usize = 100_000;
/// Largest plan file, in bytes.
pub const PLAN_BYTES: usize = 256 << 10;
