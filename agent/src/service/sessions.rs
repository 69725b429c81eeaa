//! The sessions that are open: which host process they belong to, their working tree, their mark.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::fence::tree::Tree;
use crate::host::HostKind;
use crate::process::{self, ProcessId};

/// Most sessions that are kept open at once; beyond it the one idle for longest is closed.
pub const MOST_SESSIONS: usize = 256;

/// One open session.
#[derive(Clone, Debug)]
pub struct Session {
    /// The host's session id, or one of ours for `ringfence run`.
    pub id: String,
    /// Which host.
    pub host: HostKind,
    /// Its version, when it could be found.
    pub host_version: Option<String>,
    /// The host's process. Without it nothing can be launched for the session.
    pub host_process: Option<ProcessId>,
    /// The session's number in marks; `None` without a probe.
    pub mark: Option<u64>,
    /// Whether the tree was marked before its first instruction.
    pub complete: bool,
    /// The first directory, which fixes the working tree.
    pub first_cwd: PathBuf,
    /// The working tree; `None` where the first directory may not be one (`/`, the home or an ancestor of it).
    pub tree: Option<Tree>,
    /// The session's plan, once published.
    pub plan: Option<PathBuf>,
    /// The person's last prompt, in memory only.
    pub task: Option<String>,
    /// Nanoseconds of CLOCK_BOOTTIME of the last event.
    pub last_event_ns: u64,
}

impl Session {
    /// The working tree; the first directory alone where that may be none.
    pub fn place(&self) -> Tree {
        place(self.tree.as_ref(), &self.first_cwd)
    }
}

/// [`Session::place`] of a session that is not open yet.
pub fn place(tree: Option<&Tree>, first_cwd: &Path) -> Tree {
    tree.cloned().unwrap_or_else(|| Tree { top: first_cwd.to_owned(), git: Vec::new() })
}

/// All open sessions of this user.
#[derive(Debug, Default)]
pub struct Sessions {
    by_id: HashMap<String, Session>,
}

impl Sessions {
    /// Adds a session, or replaces the one of that id. Answers with the one that had to make room, if any.
    #[must_use]
    pub fn open(&mut self, session: Session) -> Option<Session> {
        let crowded = self.by_id.len() >= MOST_SESSIONS && !self.by_id.contains_key(&session.id);
        let oldest =
            crowded.then(|| self.by_id.values().min_by_key(|s| s.last_event_ns).map(|s| s.id.clone())).flatten();
        let gone = oldest.and_then(|id| self.by_id.remove(&id));
        self.by_id.insert(session.id.clone(), session);
        gone
    }

    /// The session of that id.
    pub fn get(&self, id: &str) -> Option<&Session> {
        self.by_id.get(id)
    }

    /// The session of that id, to change.
    pub fn get_mut(&mut self, id: &str) -> Option<&mut Session> {
        self.by_id.get_mut(id)
    }

    /// Forgets a session.
    pub fn close(&mut self, id: &str) -> Option<Session> {
        self.by_id.remove(id)
    }

    /// A host process's newest session: one process can hold several in turn (`/clear`).
    pub fn of_host(&self, host: ProcessId) -> Option<&Session> {
        self.by_id.values().filter(|s| s.host_process == Some(host)).max_by_key(|s| s.last_event_ns)
    }

    /// The newest session with that mark.
    pub fn of_mark(&self, mark: u64) -> Option<&Session> {
        self.by_id.values().filter(|s| s.mark == Some(mark)).max_by_key(|s| s.last_event_ns)
    }

    /// The sessions whose host has ended.
    pub fn ended(&self) -> Vec<String> {
        let gone = |host: ProcessId| process::stat(host.pid).map_or(true, |now| now.id != host);
        self.by_id.values().filter(|s| s.host_process.is_some_and(gone)).map(|s| s.id.clone()).collect()
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Session> {
        self.by_id.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(id: &str, host: Option<ProcessId>, at: u64) -> Session {
        Session {
            id: id.into(),
            host: HostKind::ClaudeCode,
            host_version: None,
            host_process: host,
            mark: Some(7),
            complete: true,
            first_cwd: "/tmp".into(),
            tree: None,
            plan: None,
            task: None,
            last_event_ns: at,
        }
    }

    #[test]
    fn the_newest_session_of_a_host_process_answers_for_it() {
        let host = process::stat(std::process::id()).unwrap().id;
        let mut sessions = Sessions::default();
        assert!(sessions.open(session("first", Some(host), 1)).is_none());
        assert!(sessions.open(session("second", Some(host), 2)).is_none());
        assert_eq!(sessions.of_host(host).unwrap().id, "second");
        assert_eq!(sessions.of_mark(7).unwrap().id, "second");
        assert!(sessions.ended().is_empty());
        let reused = ProcessId { pid: host.pid, start: host.start + 1 };
        assert!(sessions.open(session("stale", Some(reused), 3)).is_none());
        assert_eq!(sessions.ended(), ["stale"]);
    }

    #[test]
    fn the_idlest_session_makes_room() {
        let mut sessions = Sessions::default();
        for at in 0..MOST_SESSIONS as u64 {
            assert!(sessions.open(session(&format!("s{at}"), None, at)).is_none());
        }
        assert_eq!(sessions.open(session("one more", None, 9999)).unwrap().id, "s0");
        assert_eq!(sessions.len(), MOST_SESSIONS);
    }
}
