//! Who is here: sessions opened by their first call, remembered while their host lives, closed with it.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use super::Pipeline;
use crate::clock::boottime_ns;
use crate::fence::tree::Tree;
use crate::host::{HostEvent, HostEventKind, HostKind, version};
use crate::ipc::peer;
use crate::ledger::join::Fact;
use crate::policy::judge::World;
use crate::process::{self, ProcessId};
use crate::service::callers::Caller;
use crate::service::rules::Subject;
use crate::service::sessions::{Session, place};

/// Longest prompt that is kept in memory for the task anchor, in bytes.
const PROMPT_BYTES: usize = 16 << 10;

impl Pipeline {
    /// The event's session is open when this returns, and its host's tree is marked if there is a probe.
    pub(super) async fn attend(&self, event: &HostEvent, caller: &Caller) {
        // Two first calls at once would open two sessions: one after the other.
        let _turn = self.attending.lock().await;
        let known = self.sessions.borrow_mut().get_mut(&event.session).map(|session| {
            session.last_event_ns = boottime_ns();
            session.clone()
        });
        match known {
            None => self.meet(event, caller).await,
            Some(session) if session.host_process == caller.host => {
                if session.mark.is_none() {
                    self.mark_late(session, caller).await;
                }
            }
            // A hook that has gone already cannot be told from; its session stays as it is.
            Some(_) if caller.host.is_none() => {}
            Some(session) if session.host_process.is_some_and(lives) => {
                let text = "another process than the session's host sent a hook call in its name";
                self.records.finding("session_claimed", Some(&session.id), text);
            }
            Some(_) => self.meet(event, caller).await,
        }
    }

    /// A session that is not known yet, or that goes on in a new host process.
    async fn meet(&self, event: &HostEvent, caller: &Caller) {
        // One host process may hold several sessions in turn: the mark and the plan go on.
        let sibling = caller.host.and_then(|host| self.sessions.borrow().of_host(host).cloned());
        let host_version = caller
            .host
            .and_then(|host| peer::executable(host).ok())
            .and_then(|program| version::claude_code(&program.path));
        let at_start =
            matches!(&event.kind, HostEventKind::SessionStart { source } if source == "startup" || source == "resume");
        // What an earlier service recorded of it goes on. Read before the session is opened anew, which overwrites it.
        let earlier = if at_start { None } else { self.records.unfinished(&event.session) };
        // The working tree is fixed by the first directory, also across a restart of this service: the host's may have moved.
        let first = earlier.as_ref().and_then(|_| self.records.first_directory(&event.session));
        let cwd = first.unwrap_or_else(|| PathBuf::from(&event.cwd));
        let tree = self.plans.tree_of(&cwd);
        let mark = match &sibling {
            Some(sibling) => sibling.mark,
            None => self.mark_of_host(caller, &event.session, place(tree.as_ref(), &cwd)).await,
        };
        self.open_session(Session {
            id: event.session.clone(),
            host: HostKind::ClaudeCode,
            host_version,
            host_process: caller.host,
            mark,
            // A host met at its own start has run only itself; one met later has a past that nobody saw.
            complete: sibling.as_ref().map_or(at_start, |sibling| sibling.complete),
            tree,
            first_cwd: cwd,
            plan: sibling.and_then(|sibling| sibling.plan),
            task: None,
            last_event_ns: boottime_ns(),
        });
        if let Some((summary, entries)) = earlier {
            self.joiner.borrow_mut().resume(summary, entries);
        }
    }

    /// The number of a host's tree: the one it has, as long as the probe knows it, else a new one.
    async fn mark_of_host(&self, caller: &Caller, session: &str, tree: Tree) -> Option<u64> {
        let subject = Subject {
            session: session.to_owned(),
            host: HostKind::ClaudeCode,
            tree,
            fence: self.policy.default_fence().to_owned(),
        };
        if let Some(mark) = caller.mark
            && self.probe.counters(mark.session).await.is_some()
        {
            self.set_rules(mark.session, subject).await;
            return Some(mark.session);
        }
        self.mark_tree(caller.host?, subject).await
    }

    /// Marks a tree whose rules are in the kernel already: no process of it runs a moment without them.
    pub(crate) async fn mark_tree(&self, root: ProcessId, subject: Subject) -> Option<u64> {
        let mark = self.probe.new_session().await?;
        self.set_rules(mark, subject).await;
        let marked = self.probe.enrol(mark, root).await;
        if marked.is_none() {
            self.rules.forget(mark);
        }
        marked.map(|_| mark)
    }

    async fn set_rules(&self, mark: u64, subject: Subject) {
        let session = subject.session.clone();
        if let Err(error) = self.rules.set(mark, subject).await {
            self.rules_failed(&session, &error.to_string());
        }
    }

    /// A session that was opened while the probe was away is marked as soon as it answers.
    async fn mark_late(&self, session: Session, caller: &Caller) {
        let Some(mark) = self.mark_of_host(caller, &session.id, session.place()).await else { return };
        let marked = Session { mark: Some(mark), complete: false, ..session };
        self.tell_opened(&marked);
        if let Some(open) = self.sessions.borrow_mut().get_mut(&marked.id) {
            (open.mark, open.complete) = (Some(mark), false);
        }
    }

    fn tell_opened(&self, session: &Session) {
        self.keep(Fact::SessionOpened {
            session: session.id.clone(),
            host: session.host,
            host_version: session.host_version.clone(),
            host_process: session.host_process,
            mark: session.mark,
            complete: session.complete,
            time_ns: boottime_ns(),
        });
    }

    /// Adds a session and tells the ledger.
    pub(crate) fn open_session(&self, session: Session) {
        self.tell_opened(&session);
        self.prove_soon.notify_one();
        if session.tree.is_none() {
            self.records.finding(
                "no_working_tree",
                Some(&session.id),
                "the host was started in /, the home or above it: commands may not write there",
            );
        }
        if let Some(crowded_out) = self.sessions.borrow_mut().open(session) {
            self.keep(Fact::SessionClosed { session: crowded_out.id.clone(), time_ns: boottime_ns() });
            self.linger(crowded_out);
        }
    }

    /// The session is over. Its mark stays while anything of its tree may live.
    pub(crate) async fn session_ended(&self, id: &str) {
        let Some(session) = self.sessions.borrow_mut().close(id) else { return };
        self.count_losses_of(&session).await;
        self.keep(Fact::SessionClosed { session: id.to_owned(), time_ns: boottime_ns() });
        self.linger(session);
    }

    /// Kept until nothing of its tree lives. One host's sessions in turn share a mark: the last one stands for all.
    fn linger(&self, session: Session) {
        let mut lingering = self.lingering.borrow_mut();
        lingering.retain(|other| other.host_process.is_none() || other.host_process != session.host_process);
        lingering.push(session);
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
        let world =
            World { tree: open.and_then(|open| open.tree.as_ref().map(|tree| tree.top.clone())), ..self.world.clone() };
        (world, open.and_then(|open| open.task.clone()))
    }
}

/// Whether a process has not ended.
pub(super) fn lives(process: ProcessId) -> bool {
    process::stat(process.pid).is_ok_and(|now| now.id == process)
}
