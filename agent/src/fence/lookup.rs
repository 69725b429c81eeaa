//! Which plan a launch uses: the call's, else the session's, else the strictest live one of this person. Never none.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::plan::{HOOK_PLAN, LineKind, MCP_PLAN, Plan, PlanError, SESSION_PLAN, call_plan_name, session_directory};
use crate::ipc::limits::PLAN_BYTES;
use crate::process::{self, ProcessId};

/// Most session directories that are looked at for the strictest plan.
const MAX_SESSIONS: usize = 256;
/// Inode of `/proc/self/ns/user` in the first user namespace (PROC_USER_INIT_INO).
const FIRST_USER_NAMESPACE: u64 = 0xEFFF_FFFD;
/// Inode of `/proc/self/ns/pid` in the first pid namespace (PROC_PID_INIT_INO).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Only below this directory are files of the overflow uid taken for root's.
const PROBE_DIRECTORY: &str = "/run/ringfence";

/// Why there is no plan to launch by.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// No session of this person has a plan.
    #[error("no plan: no session of uid {0} is live, and nothing runs without a fence (is ringfenced running?)")]
    NoPlan(u32),
    /// It cannot be opened or read.
    #[error("{0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// It is somebody else's.
    #[error("{0} belongs to uid {1}: only root's plans are taken here{2}")]
    WrongOwner(PathBuf, u32, &'static str),
    /// Others may change it.
    #[error("{0} can be written by others (mode {1:o})")]
    Writable(PathBuf, u32),
    /// No regular file, or no directory where one should be.
    #[error("{0} is not {1}")]
    WrongKind(PathBuf, &'static str),
    /// It is not a plan.
    #[error("{0}: {1}")]
    Bad(PathBuf, #[source] PlanError),
    /// It says that it is for something else.
    #[error("{0} is a plan for another {1}")]
    Misplaced(PathBuf, &'static str),
}

/// A plan that was found, and how.
#[derive(Debug)]
pub struct Found {
    /// The plan.
    pub plan: Plan,
    /// Whether it is one of a single call.
    pub per_call: bool,
    /// Whether no ancestor has a session, so that the strictest live plan was taken.
    pub unknown_session: bool,
    /// What the line is, when it is not a tool's command.
    pub line: Option<LineKind>,
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// SHA-256 of the tool's command, if the line has one.
    pub command: Option<&'a [u8; 32]>,
    /// SHA-256 of the whole line.
    pub line: &'a [u8; 32],
}

/// Reads the plan that somebody names on the command line. The caller chose it, so root's and one's own are taken.
pub fn named(file: &Path) -> Result<Plan, LookupError> {
    read(file, &Owners::of_this_process(true))
}

/// Finds the plan of the session that this process belongs to, among `directories` in their order.
pub fn of_session(directories: &[PathBuf], wanted: Wanted<'_>) -> Result<Found, LookupError> {
    let uid = own_uid();
    let published = directories.iter().find(|dir| published_by_root(dir, &Owners::of_this_process(false)));
    // Where the probe publishes, a directory of one's own counts for nothing: an unfenced process could have made it.
    let (roots, owners) = match published {
        Some(one) => (std::slice::from_ref(one), Owners::of_this_process(false)),
        None => (directories, Owners::of_this_process(true)),
    };
    let mut next = process::stat(std::process::id()).map(|own| own.parent).unwrap_or(0);
    for _ in 0..64 {
        let Ok(ancestor) = process::stat(next) else { break };
        for root in roots {
            let directory = root.join(session_directory(ancestor.id));
            if directory.symlink_metadata().is_ok() {
                return in_session(&directory, ancestor.id, wanted, &owners);
            }
        }
        next = ancestor.parent;
    }
    strictest(roots, &owners)?.ok_or(LookupError::NoPlan(uid))
}

/// The plan of a session whose directory was found.
fn in_session(directory: &Path, host: ProcessId, wanted: Wanted<'_>, owners: &Owners) -> Result<Found, LookupError> {
    owners.check_directory(directory)?;
    let found = |plan, per_call, line| Found { plan, per_call, unknown_session: false, line };
    let belongs = |file: &Path, plan: &Plan, call: Option<&[u8; 32]>| {
        if plan.host.is_some_and(|of| of != host) {
            return Err(LookupError::Misplaced(file.to_owned(), "session"));
        }
        if plan.call.as_ref() != call {
            return Err(LookupError::Misplaced(file.to_owned(), "call"));
        }
        Ok(())
    };
    if let Some(command) = wanted.command {
        let file = directory.join(call_plan_name(command));
        if let Some(plan) = read_if_there(&file, owners)? {
            belongs(&file, &plan, Some(command))?;
            return Ok(found(plan, true, None));
        }
    }
    let file = directory.join(SESSION_PLAN);
    let session = read(&file, owners)?;
    belongs(&file, &session, None)?;
    let kind = if wanted.command.is_some() { None } else { session.line_kind(wanted.line) };
    let other = match kind {
        None => return Ok(found(session, false, None)),
        Some(LineKind::Own | LineKind::UserHook) => HOOK_PLAN,
        Some(LineKind::UserMcp) => MCP_PLAN,
    };
    let file = directory.join(other);
    match read_if_there(&file, owners)? {
        Some(plan) => {
            belongs(&file, &plan, None)?;
            Ok(found(plan, false, kind))
        }
        None => Ok(found(session, false, kind)),
    }
}

/// The strictest plan of any live session.
fn strictest(roots: &[PathBuf], owners: &Owners) -> Result<Option<Found>, LookupError> {
    // In another pid namespace (a host's own sandbox) the numbers of the directories say nothing: all count as live.
    let pids_are_ours = inode_of("/proc/self/ns/pid") == Some(FIRST_PID_NAMESPACE);
    let mut best: Option<Plan> = None;
    for root in roots {
        let Ok(entries) = std::fs::read_dir(root) else { continue };
        for entry in entries.flatten().take(MAX_SESSIONS) {
            let Some(host) = parse_session_directory(&entry.file_name()) else { continue };
            if pids_are_ours && !process::stat(host.pid).is_ok_and(|now| now.id == host) {
                continue;
            }
            let directory = entry.path();
            owners.check_directory(&directory)?;
            let Some(plan) = read_if_there(&directory.join(SESSION_PLAN), owners)? else { continue };
            if best.as_ref().is_none_or(|so_far| plan.strictness > so_far.strictness) {
                best = Some(plan);
            }
        }
    }
    Ok(best.map(|plan| Found { plan, per_call: false, unknown_session: true, line: None }))
}

fn parse_session_directory(name: &OsStr) -> Option<ProcessId> {
    let text = std::str::from_utf8(name.as_bytes()).ok()?;
    let (pid, start) = text.split_once('.')?;
    Some(ProcessId { pid: pid.parse().ok()?, start: start.parse().ok()? })
}

fn read_if_there(file: &Path, owners: &Owners) -> Result<Option<Plan>, LookupError> {
    match read(file, owners) {
        Ok(plan) => Ok(Some(plan)),
        Err(LookupError::Unreadable(_, error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens, checks and decodes one plan. What is checked is the open file, not its name.
fn read(file: &Path, owners: &Owners) -> Result<Plan, LookupError> {
    let unreadable = |error| LookupError::Unreadable(file.to_owned(), error);
    let mut opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(file)
        .map_err(unreadable)?;
    let meta = opened.metadata().map_err(unreadable)?;
    if !meta.is_file() {
        return Err(LookupError::WrongKind(file.to_owned(), "a regular file"));
    }
    owners.check(file, meta.uid(), meta.mode())?;
    if meta.len() > PLAN_BYTES as u64 {
        return Err(LookupError::Bad(file.to_owned(), PlanError::TooLarge(meta.len())));
    }
    let bytes = read_all(&mut opened, meta.len() as usize).map_err(unreadable)?;
    Plan::decode(&bytes).map_err(|error| LookupError::Bad(file.to_owned(), error))
}

fn read_all(file: &mut File, expected: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(expected + 1);
    file.take(PLAN_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whose plans are taken.
struct Owners {
    /// Our own uid, where no probe publishes.
    own: Option<u32>,
    /// Whether uid 0 is somebody else than us: not so inside a user namespace that maps us to it.
    root: bool,
    /// The uid that root shows as in a user namespace that does not map it.
    overflow: Option<u32>,
}

impl Owners {
    fn of_this_process(own_too: bool) -> Owners {
        let uid = own_uid();
        let first = inode_of("/proc/self/ns/user") == Some(FIRST_USER_NAMESPACE);
        // Without /proc nothing says which namespace this is: then root is root only to somebody who is not.
        let overflow = if first { None } else { overflow_uid() };
        Owners { own: own_too.then_some(uid), root: first || uid != 0, overflow }
    }

    /// Whether a file or directory of this owner and mode is taken.
    fn check(&self, path: &Path, owner: u32, mode: u32) -> Result<(), LookupError> {
        let by_root = owner == 0 && self.root;
        let by_overflow = Some(owner) == self.overflow && beyond_our_reach(path);
        if !(by_root || by_overflow || Some(owner) == self.own) {
            let hint = if self.own.is_some() { " or one's own" } else { ", since the probe publishes them" };
            return Err(LookupError::WrongOwner(path.to_owned(), owner, hint));
        }
        if mode & 0o022 != 0 {
            return Err(LookupError::Writable(path.to_owned(), mode & 0o7777));
        }
        Ok(())
    }

    fn check_directory(&self, directory: &Path) -> Result<(), LookupError> {
        let meta =
            directory.symlink_metadata().map_err(|error| LookupError::Unreadable(directory.to_owned(), error))?;
        if !meta.is_dir() {
            return Err(LookupError::WrongKind(directory.to_owned(), "a directory"));
        }
        self.check(directory, meta.uid(), meta.mode())
    }
}

fn published_by_root(directory: &Path, owners: &Owners) -> bool {
    owners.check_directory(directory).is_ok()
}

/// Whether a path lies under the probe's directory and neither it nor a parent can be written by us.
fn beyond_our_reach(path: &Path) -> bool {
    path.starts_with(PROBE_DIRECTORY)
        && !path.components().any(|part| part == std::path::Component::ParentDir)
        && path.ancestors().all(|one| !writable_by_us(one))
}

fn writable_by_us(path: &Path) -> bool {
    nix::unistd::eaccess(path, nix::unistd::AccessFlags::W_OK).is_ok()
}

fn overflow_uid() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok()
}

fn inode_of(path: &str) -> Option<u64> {
    std::fs::metadata(path).ok().map(|meta| meta.ino())
}

fn own_uid() -> u32 {
    nix::unistd::Uid::current().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::plan::tests::sample;
    use super::*;

    fn place(directory: &Path, name: &str, plan: &Plan) -> PathBuf {
        std::fs::create_dir_all(directory).unwrap();
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).unwrap();
        let file = directory.join(name);
        std::fs::write(&file, plan.encode().unwrap()).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        file
    }

    fn parent() -> ProcessId {
        process::stat(std::os::unix::process::parent_id()).unwrap().id
    }

    const LINE: [u8; 32] = [1; 32];

    #[test]
    fn the_calls_plan_comes_before_the_sessions_and_only_for_its_command() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join(session_directory(parent()));
        let session = Plan { host: Some(parent()), ..sample() };
        place(&directory, SESSION_PLAN, &session);
        let call = Plan { call: Some([5; 32]), fence: "strict".into(), ..session.clone() };
        place(&directory, &call_plan_name(&[5; 32]), &call);
        let roots = [root.path().to_owned()];
        let found = of_session(&roots, Wanted { command: Some(&[5; 32]), line: &LINE }).unwrap();
        assert!(found.per_call && found.plan.fence == "strict");
        let found = of_session(&roots, Wanted { command: Some(&[6; 32]), line: &LINE }).unwrap();
        assert!(!found.per_call && found.plan.fence == "default" && !found.unknown_session);
    }

    #[test]
    fn a_call_plan_under_another_calls_name_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join(session_directory(parent()));
        let session = Plan { host: Some(parent()), ..sample() };
        place(&directory, SESSION_PLAN, &session);
        place(&directory, &call_plan_name(&[6; 32]), &Plan { call: Some([5; 32]), ..session });
        let found = of_session(&[root.path().to_owned()], Wanted { command: Some(&[6; 32]), line: &LINE });
        assert!(matches!(found, Err(LookupError::Misplaced(_, "call"))), "{found:?}");
    }

    #[test]
    fn a_plan_of_another_session_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join(session_directory(parent()));
        place(&directory, SESSION_PLAN, &Plan { host: Some(ProcessId { pid: 1, start: 99 }), ..sample() });
        let found = of_session(&[root.path().to_owned()], Wanted { command: None, line: &LINE });
        assert!(matches!(found, Err(LookupError::Misplaced(_, "session"))));
    }

    #[test]
    fn an_unknown_session_gets_the_strictest_live_plan_and_never_a_dead_ones() {
        let root = tempfile::tempdir().unwrap();
        let own = process::stat(std::process::id()).unwrap().id;
        place(&root.path().join(session_directory(own)), SESSION_PLAN, &Plan { strictness: 5, host: None, ..sample() });
        let dead = ProcessId { pid: own.pid, start: own.start + 1 };
        place(&root.path().join(session_directory(dead)), SESSION_PLAN, &Plan { strictness: 90, ..sample() });
        let found = of_session(&[root.path().to_owned()], Wanted { command: None, line: &LINE }).unwrap();
        assert!(found.unknown_session);
        assert_eq!(found.plan.strictness, 5);
    }

    #[test]
    fn no_plan_anywhere_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let found = of_session(&[root.path().to_owned()], Wanted { command: None, line: &LINE });
        assert!(matches!(found, Err(LookupError::NoPlan(_))));
    }

    #[test]
    fn lines_of_the_person_get_their_own_plans() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join(session_directory(parent()));
        let session = Plan { host: Some(parent()), lines: vec![(LineKind::UserMcp, LINE)], ..sample() };
        place(&directory, SESSION_PLAN, &session);
        let roots = [root.path().to_owned()];
        let found = of_session(&roots, Wanted { command: None, line: &LINE }).unwrap();
        assert_eq!((found.plan.fence.as_str(), found.line), ("default", Some(LineKind::UserMcp)));
        place(&directory, MCP_PLAN, &Plan { fence: "mcp".into(), ..session });
        let found = of_session(&roots, Wanted { command: None, line: &LINE }).unwrap();
        assert_eq!(found.plan.fence, "mcp");
    }

    #[test]
    fn a_writable_a_linked_and_a_cut_plan_are_failed_steps() {
        let root = tempfile::tempdir().unwrap();
        let file = place(root.path(), "a.plan", &sample());
        assert!(named(&file).is_ok());
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(matches!(named(&link), Err(LookupError::Unreadable(..))));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o620)).unwrap();
        assert!(matches!(named(&file), Err(LookupError::Writable(..))));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(&file, &sample().encode().unwrap()[..40]).unwrap();
        assert!(matches!(named(&file), Err(LookupError::Bad(_, PlanError::Truncated(40)))));
        assert!(matches!(named(root.path()), Err(LookupError::WrongKind(..))));
    }
}
