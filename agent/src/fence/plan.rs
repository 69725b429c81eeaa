//! The plan: the file that carries a compiled fence to the launcher.
//!
//! Layout: `RFPLAN`, the version (u16, little-endian), the body's length (u32, little-endian), the body in bincode.
//! It is read before anything is enforced, so it is strict and bounded: whatever is not exactly a plan is an error.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use landlock::AccessFs;
use serde::{Deserialize, Serialize};

use crate::ipc::limits::{ID_BYTES, PATH_BYTES, PLAN_BYTES};
use crate::process::ProcessId;

/// First bytes of every plan.
const MAGIC: &[u8; 6] = b"RFPLAN";
/// The version that this build writes and reads.
pub const PLAN_VERSION: u16 = 1;
/// Bytes before the body.
const HEADER_BYTES: usize = MAGIC.len() + 2 + 4;
/// Most path rules: at 3 µs each they are the dearest part of a launch.
pub const MAX_RULES: usize = 256;
/// Most digests, names and variables in any one list.
const MAX_ITEMS: usize = 1024;
/// Most instructions of a seccomp program (the kernel's BPF_MAXINSNS), 8 bytes each.
pub const MAX_FILTER_BYTES: usize = 4096 * 8;

/// Name of the plan of a whole session, in its directory `<host pid>.<host start>/`.
pub const SESSION_PLAN: &str = "session.plan";
/// Name of the plan for the person's own hook commands, beside [`SESSION_PLAN`].
pub const HOOK_PLAN: &str = "host-hook.plan";
/// Name of the plan for the person's own MCP servers, beside [`SESSION_PLAN`].
pub const MCP_PLAN: &str = "mcp.plan";

/// Sets of Landlock rights, as `landlock_path_beneath_attr.allowed_access` has them.
pub mod rights {
    use landlock::AccessFs;

    /// Opening files for reading, listing directories, running programs.
    pub const READ: u64 = AccessFs::Execute as u64 | AccessFs::ReadFile as u64 | AccessFs::ReadDir as u64;
    /// Listing directories: what the way to an excluded path gets.
    pub const LIST: u64 = AccessFs::ReadDir as u64;
    /// Changing what lies in a directory. Device nodes are not made by builds, so no fence grants that.
    pub const WRITE: u64 = AccessFs::WriteFile as u64
        | AccessFs::RemoveDir as u64
        | AccessFs::RemoveFile as u64
        | AccessFs::MakeDir as u64
        | AccessFs::MakeReg as u64
        | AccessFs::MakeSock as u64
        | AccessFs::MakeFifo as u64
        | AccessFs::MakeSym as u64
        | AccessFs::Refer as u64
        | AccessFs::Truncate as u64;
    /// Using a device that is no terminal (`/dev/null`).
    pub const DEVICE: u64 = AccessFs::ReadFile as u64 | AccessFs::WriteFile as u64 | AccessFs::Truncate as u64;
    /// Using a terminal: raw mode and window size are ioctls.
    pub const TERMINAL: u64 = DEVICE | AccessFs::IoctlDev as u64;
    /// Connecting to a unix socket that was made outside (ABI 9).
    pub const SOCKET: u64 = AccessFs::ResolveUnix as u64;
}

/// Names of the rights in `bits`, for receipts and `why`.
pub fn right_names(bits: u64) -> Vec<&'static str> {
    const NAMES: [(AccessFs, &str); 17] = [
        (AccessFs::Execute, "execute"),
        (AccessFs::WriteFile, "write_file"),
        (AccessFs::ReadFile, "read_file"),
        (AccessFs::ReadDir, "read_dir"),
        (AccessFs::RemoveDir, "remove_dir"),
        (AccessFs::RemoveFile, "remove_file"),
        (AccessFs::MakeChar, "make_char"),
        (AccessFs::MakeDir, "make_dir"),
        (AccessFs::MakeReg, "make_reg"),
        (AccessFs::MakeSock, "make_sock"),
        (AccessFs::MakeFifo, "make_fifo"),
        (AccessFs::MakeBlock, "make_block"),
        (AccessFs::MakeSym, "make_sym"),
        (AccessFs::Refer, "refer"),
        (AccessFs::Truncate, "truncate"),
        (AccessFs::IoctlDev, "ioctl_dev"),
        (AccessFs::ResolveUnix, "resolve_unix"),
    ];
    NAMES.iter().filter(|(right, _)| bits & *right as u64 != 0).map(|(_, name)| *name).collect()
}

/// A compiled fence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Names this plan in receipts: `<session>/<what>`.
    pub id: String,
    /// The host's process whose tree it is for; `None` for a plan that is named on the command line.
    pub host: Option<ProcessId>,
    /// Our id of the session.
    pub session: String,
    /// The fence's name.
    pub fence: String,
    /// `sha256:…` over the whole policy.
    pub policy: String,
    /// For a plan of one call: SHA-256 of that call's command.
    pub call: Option<[u8; 32]>,
    /// Orders the plans of one person: an unknown session gets the highest, never a lower one.
    pub strictness: u32,
    /// Whether any layer or right that is missing refuses the launch.
    pub strict: bool,
    /// Whether a machine without Landlock refuses the launch, strict or not.
    pub require_landlock: bool,
    /// The working tree (W), an absolute path.
    pub tree: Vec<u8>,
    /// Rules for paths; `None` for a fence without Landlock.
    pub landlock: Option<LandlockPlan>,
    /// The seccomp program for this machine's architecture, 8 bytes an instruction; empty for none.
    pub seccomp: Vec<u8>,
    /// What the program refuses, for people.
    pub refuses: Vec<String>,
    /// The environment.
    pub environment: EnvironmentPlan,
    /// The private TMPDIR, made by the launcher if it is gone.
    pub temporary: Option<Vec<u8>>,
    /// `(resource, soft, hard)` as setrlimit(2) numbers them.
    pub limits: Vec<(u32, u64, u64)>,
    /// Lines that are not a tool's command, by the SHA-256 of the whole line.
    pub lines: Vec<(LineKind, [u8; 32])>,
    /// Descriptors above 2 that stay open, besides pipes.
    pub keep: Vec<i32>,
    /// The shell that runs a host's line.
    pub shell: Vec<u8>,
    /// Where the launch is told; `None` tells nobody.
    pub notice_socket: Option<Vec<u8>>,
    /// What the compiler left out or changed, for the receipt.
    pub remarks: Vec<String>,
}

/// What a host's line is, when it is not a tool's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LineKind {
    /// Our own hook, as the installer wrote it.
    Own,
    /// A hook of the person's own settings.
    UserHook,
    /// An MCP server of the person's own settings.
    UserMcp,
}

/// What Landlock is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandlockPlan {
    /// Grants.
    pub paths: Vec<PathRule>,
    /// TCP ports; `None` leaves the network to others.
    pub ports: Option<PortsPlan>,
    /// The filter refuses TCP, so that a kernel without port rights loses nothing.
    pub filter_covers_tcp: bool,
    /// The filter refuses UDP, likewise.
    pub filter_covers_udp: bool,
    /// Unix sockets made outside are refused unless a rule grants [`rights::SOCKET`] (ABI 9).
    pub outside_sockets: bool,
    /// No signal leaves the fence.
    pub scope_signals: bool,
    /// No abstract unix socket made outside is connected to.
    pub scope_abstract_unix: bool,
    /// How reading is kept from credentials, for the receipt.
    pub reads: String,
}

impl LandlockPlan {
    /// The rights that are granted on a path without links and all below it.
    pub fn granted(&self, path: &Path) -> u64 {
        self.paths.iter().filter(|rule| path.starts_with(rule.path())).fold(0, |sum, rule| sum | rule.access)
    }

    /// Whether files can be made in a directory.
    pub fn makes_files_in(&self, directory: &Path) -> bool {
        self.granted(directory) & AccessFs::MakeReg as u64 != 0
    }
}

/// One grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRule {
    /// Absolute, without links.
    pub path: Vec<u8>,
    /// `(st_dev, st_ino)` as they were before the tree ran. `None`: a directory that comes later (a host's shell
    /// snapshots), opened by name; such a rule grants reading at most.
    pub identity: Option<(u64, u64)>,
    /// Rights, see [`rights`].
    pub access: u64,
    /// Whether a launch fails without it.
    pub required: bool,
}

impl PathRule {
    /// Its path.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }
}

/// TCP ports that are open, in host order. Empty means none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortsPlan {
    /// To connect to.
    pub connect: Vec<u16>,
    /// To bind.
    pub bind: Vec<u16>,
}

/// What happens to the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentPlan {
    /// Variables that make a program load or run something: names, or prefixes that end in `*`.
    pub watched: Vec<String>,
    /// Whether the watched ones are dropped, or only recorded.
    pub drop_watched: bool,
    /// Added, over what is there.
    pub set: Vec<(String, String)>,
}

/// Why bytes are not a plan, or a plan cannot be written.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// Over [`PLAN_BYTES`].
    #[error("a plan of {0} bytes is over the limit of {PLAN_BYTES}")]
    TooLarge(u64),
    /// Not even a header, or cut in the body.
    #[error("the plan is cut off after {0} bytes")]
    Truncated(usize),
    /// Something else.
    #[error("this is not a plan: it does not start with RFPLAN")]
    NotAPlan,
    /// Made by another version.
    #[error("the plan has version {0} and this launcher reads {PLAN_VERSION}: restart the service after an upgrade")]
    UnknownVersion(u16),
    /// The body is not what the version says.
    #[error("the plan is malformed: {0}")]
    Malformed(String),
    /// A value is over its bound.
    #[error("the plan is malformed: {0} is over its bound")]
    OutOfBounds(&'static str),
}

/// What bincode is held to: no length in the body can ask for more memory than this.
fn codec() -> impl bincode::config::Config {
    bincode::config::standard().with_little_endian().with_variable_int_encoding().with_limit::<PLAN_BYTES>()
}

impl Plan {
    /// The plan as bytes.
    pub fn encode(&self) -> Result<Vec<u8>, PlanError> {
        self.check()?;
        let body = bincode::serde::encode_to_vec(self, codec()).map_err(|e| PlanError::Malformed(e.to_string()))?;
        let total = HEADER_BYTES + body.len();
        if total > PLAN_BYTES {
            return Err(PlanError::TooLarge(total as u64));
        }
        let mut bytes = Vec::with_capacity(total);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&PLAN_VERSION.to_le_bytes());
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        Ok(bytes)
    }

    /// A plan from bytes, or what is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Plan, PlanError> {
        if bytes.len() > PLAN_BYTES {
            return Err(PlanError::TooLarge(bytes.len() as u64));
        }
        if !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]) {
            return Err(PlanError::NotAPlan);
        }
        let Some((header, body)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(PlanError::Truncated(bytes.len()));
        };
        let version = u16::from_le_bytes([header[6], header[7]]);
        if version != PLAN_VERSION {
            return Err(PlanError::UnknownVersion(version));
        }
        let length = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        if body.len() < length {
            return Err(PlanError::Truncated(bytes.len()));
        }
        if body.len() > length {
            return Err(PlanError::Malformed(format!("{} bytes after its end", body.len() - length)));
        }
        let (plan, used): (Plan, usize) =
            bincode::serde::decode_from_slice(body, codec()).map_err(|e| PlanError::Malformed(e.to_string()))?;
        if used != length {
            return Err(PlanError::Malformed(format!("{} bytes of its body say nothing", length - used)));
        }
        plan.check()?;
        Ok(plan)
    }

    /// Everything that must hold of a plan before any of it is used.
    fn check(&self) -> Result<(), PlanError> {
        let bounded = |ok: bool, what: &'static str| if ok { Ok(()) } else { Err(PlanError::OutOfBounds(what)) };
        let absolute = |path: &[u8]| path.starts_with(b"/") && path.len() < PATH_BYTES && !path.contains(&0);
        for (text, what) in
            [(&self.id, "id"), (&self.session, "session"), (&self.fence, "fence"), (&self.policy, "policy")]
        {
            bounded(text.len() <= 2 * ID_BYTES, what)?;
        }
        bounded(absolute(&self.tree), "tree")?;
        bounded(absolute(&self.shell), "shell")?;
        bounded(self.temporary.as_deref().is_none_or(absolute), "temporary")?;
        bounded(self.notice_socket.as_deref().is_none_or(absolute), "notice_socket")?;
        bounded(self.seccomp.len() <= MAX_FILTER_BYTES && self.seccomp.len().is_multiple_of(8), "seccomp")?;
        bounded(self.limits.len() <= 16, "limits")?;
        bounded(self.lines.len() <= MAX_ITEMS, "lines")?;
        bounded(self.keep.len() <= 64 && self.keep.iter().all(|fd| (3..1 << 20).contains(fd)), "keep")?;
        bounded(self.refuses.len() <= MAX_ITEMS && self.remarks.len() <= MAX_ITEMS, "remarks")?;
        let EnvironmentPlan { watched, drop_watched: _, set } = &self.environment;
        bounded(watched.len() <= MAX_ITEMS && set.len() <= MAX_ITEMS, "environment")?;
        let plain = |text: &str| !text.contains('\0');
        bounded(set.iter().all(|(k, v)| plain(k) && plain(v) && !k.is_empty() && !k.contains('=')), "environment")?;
        if let Some(LandlockPlan { paths, ports, .. }) = &self.landlock {
            bounded(paths.len() <= MAX_RULES, "landlock.paths")?;
            bounded(paths.iter().all(|rule| absolute(&rule.path)), "landlock.paths")?;
            bounded(
                paths.iter().all(|rule| rule.identity.is_some() || rule.access & !rights::READ == 0),
                "landlock.paths: a directory that comes later",
            )?;
            bounded(
                ports.as_ref().is_none_or(|p| p.connect.len() <= MAX_ITEMS && p.bind.len() <= MAX_ITEMS),
                "landlock.ports",
            )?;
        }
        Ok(())
    }

    /// What a line is, if it is not a tool's command.
    pub fn line_kind(&self, digest: &[u8; 32]) -> Option<LineKind> {
        self.lines.iter().find(|(_, known)| known == digest).map(|(kind, _)| *kind)
    }
}

/// Name of the plan of one call, by the SHA-256 of its command.
pub fn call_plan_name(digest: &[u8; 32]) -> String {
    format!("call-{}.plan", hex(digest))
}

/// Name of a session's directory among the plans.
pub fn session_directory(host: ProcessId) -> String {
    format!("{}.{}", host.pid, host.start)
}

/// Lowercase hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)] as char, DIGITS[usize::from(b & 15)] as char]).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small plan that is valid.
    pub(crate) fn sample() -> Plan {
        Plan {
            id: "s1/session".into(),
            host: Some(ProcessId { pid: 10, start: 20 }),
            session: "s1".into(),
            fence: "default".into(),
            policy: "sha256:00".into(),
            call: None,
            strictness: 10,
            strict: false,
            require_landlock: false,
            tree: b"/work/tree".to_vec(),
            landlock: Some(LandlockPlan {
                paths: vec![PathRule {
                    path: b"/work/tree\xff".to_vec(),
                    identity: Some((1, 2)),
                    access: rights::READ | rights::WRITE,
                    required: true,
                }],
                ports: Some(PortsPlan { connect: vec![443], bind: vec![] }),
                filter_covers_tcp: false,
                filter_covers_udp: false,
                outside_sockets: true,
                scope_signals: true,
                scope_abstract_unix: true,
                reads: "siblings".into(),
            }),
            seccomp: vec![6, 0, 0, 0, 0, 0, 0xff, 0x7f],
            refuses: vec!["ptrace".into()],
            environment: EnvironmentPlan {
                watched: vec!["LD_*".into()],
                drop_watched: false,
                set: vec![("EXTRA".into(), "e".into())],
            },
            temporary: Some(b"/tmp/x".to_vec()),
            limits: vec![],
            lines: vec![(LineKind::Own, [7; 32])],
            keep: vec![],
            shell: b"/bin/bash".to_vec(),
            notice_socket: None,
            remarks: vec![],
        }
    }

    #[test]
    fn a_plan_survives_its_file() {
        let plan = sample();
        assert_eq!(Plan::decode(&plan.encode().unwrap()).unwrap(), plan);
    }

    #[test]
    fn every_cut_is_truncated_and_every_tail_malformed() {
        let bytes = sample().encode().unwrap();
        for end in 0..bytes.len() {
            assert!(matches!(Plan::decode(&bytes[..end]), Err(PlanError::Truncated(_))), "cut at {end}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(matches!(Plan::decode(&longer), Err(PlanError::Malformed(_))));
    }

    #[test]
    fn another_version_another_file_and_too_much_are_told_apart() {
        let mut bytes = sample().encode().unwrap();
        bytes[6] = 9;
        assert_eq!(Plan::decode(&bytes), Err(PlanError::UnknownVersion(9)));
        assert_eq!(Plan::decode(b"#!/bin/sh\necho hello"), Err(PlanError::NotAPlan));
        assert!(matches!(Plan::decode(&vec![0; PLAN_BYTES + 1]), Err(PlanError::TooLarge(_))));
    }

    #[test]
    fn a_huge_length_in_the_body_asks_for_no_memory() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(PLAN_VERSION.to_le_bytes());
        let body = [253, 255, 255, 255, 255, 255, 255, 255, 127];
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(body);
        assert!(matches!(Plan::decode(&bytes), Err(PlanError::Malformed(_))));
    }

    #[test]
    fn changed_bytes_never_panic_and_never_pass_the_checks_unseen() {
        let bytes = sample().encode().unwrap();
        for at in 0..bytes.len() {
            for change in [1u8, 0x80, 0xff] {
                let mut other = bytes.clone();
                other[at] ^= change;
                if let Ok(plan) = Plan::decode(&other) {
                    plan.check().unwrap();
                }
            }
        }
    }

    #[test]
    fn a_directory_that_comes_later_grants_no_writing() {
        let mut plan = sample();
        plan.landlock.as_mut().unwrap().paths[0].identity = None;
        assert!(matches!(plan.encode(), Err(PlanError::OutOfBounds(_))));
    }
}
