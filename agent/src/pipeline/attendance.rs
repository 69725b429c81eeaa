//! Who is here: sessions opened by their first call, remembered while their host lives, closed with it.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use super::Pipeline;
use crate::clock::boottime_ns;
use crate::host::{HostEvent, HostEventKind, HostKind, version};
use crate::ipc::peer;
use crate::ledger::join::Fact;
use crate::policy::judge::World;
use crate::service::callers::Caller;
use crate::service::sessions::Session;

/// Longest prompt that is kept in memory for the task anchor, in bytes.
const PROMPT_BYTES: usize = 16 << 10;

impl Pipeline {
    /// The event's session is open when this returns, and its host's tree is marked if there is a probe.
    pub(super) async fn attend(&self, event: &HostEvent, caller: &Caller) {
        let now = boottime_ns();
        if let Some(session) = self.sessions.borrow_mut().get_mut(&event.session) {
            session.last_event_ns = now;
            if session.host_process == caller.host {
                return;
            }
        }
        // One host process may hold several sessions in turn: the mark and the plan go on.
        let sibling = caller.host.and_then(|host| self.sessions.borrow().of_host(host).cloned());
        let mark = match (&sibling, caller.mark, caller.host) {
            (Some(sibling), ..) => sibling.mark,
            // Marked already: this service was restarted, and the tree kept its number.
            (None, Some(mark), _) => Some(mark.session),
            (None, None, Some(host)) => self.probe.open_session(host).await.map(|(mark, _)| mark),
            (None, None, None) => None,
        };
        let host_version = caller
            .host
            .and_then(|host| peer::executable(host).ok())
            .and_then(|program| version::claude_code(&program.path));
        let at_start =
            matches!(&event.kind, HostEventKind::SessionStart { source } if source == "startup" || source == "resume");
        // What an earlier service recorded of it goes on. Read before the session is opened anew, which overwrites it.
        let earlier = if at_start { None } else { self.records.unfinished(&event.session) };
        let cwd = PathBuf::from(&event.cwd);
        self.open_session(Session {
            id: event.session.clone(),
            host: HostKind::ClaudeCode,
            host_version,
            host_process: caller.host,
            mark,
            // A host met at its own start has run only itself; one met later has a past that nobody saw.
            complete: sibling.as_ref().map_or(at_start, |sibling| sibling.complete),
            tree: self.plans.tree_of(&cwd),
            first_cwd: cwd,
            plan: sibling.and_then(|sibling| sibling.plan),
            task: None,
            last_event_ns: now,
        });
        if let Some((summary, entries)) = earlier {
            self.joiner.borrow_mut().resume(summary, entries);
        }
    }

    /// Adds a session and tells the ledger.
    pub(crate) fn open_session(&self, session: Session) {
        self.keep(Fact::SessionOpened {
            session: session.id.clone(),
            host: session.host,
            host_version: session.host_version.clone(),
            host_process: session.host_process,
            mark: session.mark,
            complete: session.complete,
            time_ns: boottime_ns(),
        });
        if session.tree.is_none() {
            self.records.finding(
                "no_working_tree",
                Some(&session.id),
                "the host was started in /, the home or above it: commands may not write there",
            );
        }
        if let Some(crowded_out) = self.sessions.borrow_mut().open(session) {
            self.keep(Fact::SessionClosed { session: crowded_out.id, time_ns: boottime_ns() });
        }
    }

    /// The session is over. Its mark stays while anything of its tree may live.
    pub(crate) async fn session_ended(&self, id: &str) {
        let Some(session) = self.sessions.borrow_mut().close(id) else { return };
        self.count_losses_of(&session).await;
        self.keep(Fact::SessionClosed { session: id.to_owned(), time_ns: boottime_ns() });
        let shared = session.host_process.is_some_and(|host| self.sessions.borrow().of_host(host).is_some());
        if !shared {
            self.lingering.borrow_mut().push(session);
        }
    }

    /// A prompt is kept in memory alone, for the task anchor.
    pub(super) fn prompted(&self, session: &str, text: &str) {
        if let Some(session) = self.sessions.borrow_mut().get_mut(session) {
            let end = (0..=text.len().min(PROMPT_BYTES)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            session.task = Some(text[..end].to_owned());
        }
    }

    /// What the policy may know around a call of this session.
    pub(super) fn surroundings(&self, session: &str) -> (World, Option<String>) {
        let sessions = self.sessions.borrow();
        let open = sessions.get(session);
        let world = World { tree: open.and_then(|open| open.tree.clone()), ..self.world.clone() };
        (world, open.and_then(|open| open.task.clone()))
    }
}
