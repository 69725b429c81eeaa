//! One host process and all that comes of it: its sessions, tool calls, launches and processes.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use sha2::{Digest, Sha256};

use super::entry::{Binding, Exit, Finding, Gravity, Losses, SessionSummary, Verdict};
use super::fold::{Clock, Fold};
use super::gate::GateFinding;
use super::internal::HostPatterns;
use super::join::FileState;
use super::text::{cut, hex, shown_text};
use crate::fence::receipt::LaunchNotice;
use crate::host::{HostKind, ToolClass};
use crate::policy::judge::{Decision, Outcome};
use crate::probe::protocol::Bytes;
use crate::process::ProcessId;

/// Nanoseconds of CLOCK_BOOTTIME.
pub(super) type Ns = u64;

/// One second.
pub(super) const SECOND: Ns = 1_000_000_000;
/// How long a launch waits for its decision or its notice, which may come later.
pub(super) const LAUNCH_HOLD: Ns = 2 * SECOND;
/// How long a program that the host started waits: it may still become the launcher.
pub(super) const PROGRAM_HOLD: Ns = SECOND;
/// How long after its end a call may still change its launch, or a denied one be seen to run.
pub(super) const SETTLE: Ns = 3 * SECOND;
/// How long a process is remembered after its end: exec and fork may come later than its exit.
const AFTERLIFE: Ns = 10 * SECOND;
/// How long a settled entry stays in memory when nothing of it lives.
const ENTRY_LIFE: Ns = 60 * SECOND;
/// Most entries of one tree in memory; beyond it the oldest settled ones go.
const MOST_ITEMS: usize = 4096;
/// Most processes of one tree in memory.
const MOST_PROCESSES: usize = 65_536;
/// Most entries for executions that nothing explains, per session; beyond it they are only counted.
pub(super) const MOST_STRAYS: u64 = 256;
/// Most findings of a session.
const MOST_FINDINGS: u32 = 512;

/// Where a process belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The host itself.
    Host,
    /// Our hook, or what it started.
    Hook,
    /// Forked by the host; runs no program of its own yet.
    Fresh,
    /// The host's own business.
    Internal,
    /// A launch, or what the host started without a launcher.
    Launch(u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Proc {
    pub(super) place: Place,
    pub(super) ended: Option<Ns>,
}

/// Whose a launch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Not known yet.
    Nobody,
    /// An entry.
    Item(u64),
    /// The host's own.
    Host,
}

/// A launch by our launcher - or, without `fenced`, a program that the host started without it.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) fenced: bool,
    pub(super) number: Option<u64>,
    pub(super) root: Option<ProcessId>,
    /// Earliest and latest moment it can have begun.
    pub(super) began: (Ns, Ns),
    pub(super) digest: Option<[u8; 32]>,
    pub(super) line_digests: Vec<[u8; 32]>,
    /// Whether it is a line as the host writes it for its shell.
    pub(super) shell_line: bool,
    pub(super) notice: Option<LaunchNotice>,
    pub(super) exec_seen: bool,
    pub(super) root_execs: u32,
    pub(super) root_exit: Option<(Exit, Ns)>,
    pub(super) alive: u64,
    pub(super) fold: Fold,
    pub(super) owner: Owner,
    /// When it is concluded, if it is not bound by then.
    pub(super) deadline: Ns,
    /// Words of its first program, redacted.
    pub(super) summary: String,
    /// Whether the program's wait is over: from here on it counts as run without the launcher.
    pub(super) ripe: bool,
    pub(super) frozen: bool,
    /// Refusals that came before the notice, without which the plan is not known.
    pub(super) unattributed: Vec<EarlyRefusal>,
    /// What its gates are to be told of, until it is known whose it is.
    pub(super) gate_findings: Vec<GateFinding>,
}

/// Most notices that wait for the kernel's word of their process.
pub(super) const MOST_EARLY_NOTICES: usize = 64;

/// A refused system call that waits for its launch's plan.
#[derive(Clone, Debug)]
pub(super) struct EarlyRefusal {
    pub(super) process: ProcessId,
    pub(super) syscall: i32,
    pub(super) compat: bool,
    pub(super) arguments: [u64; 6],
    pub(super) errno: u16,
    pub(super) path: Bytes,
}

/// What the host said of a call.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) failed: bool,
    pub(super) exit_code: Option<i32>,
    pub(super) duration_ms: Option<u64>,
    pub(super) file: Option<FileState>,
    pub(super) time_ns: Ns,
}

/// What becomes an entry.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) id: String,
    pub(super) session: String,
    pub(super) tool: String,
    pub(super) call_id: Option<String>,
    pub(super) class: ToolClass,
    pub(super) summary: String,
    pub(super) digest: Option<[u8; 32]>,
    pub(super) cwd: Option<String>,
    pub(super) decision: Option<Decision>,
    pub(super) file: Option<FileState>,
    pub(super) began: Ns,
    pub(super) said: Option<Said>,
    pub(super) launches: Vec<u64>,
    pub(super) binding: Binding,
    /// For what no decision explains: [`Verdict::Unhooked`] or [`Verdict::UserTyped`].
    pub(super) stray: Option<Verdict>,
    pub(super) verdict: Verdict,
    pub(super) announced: bool,
    /// Whether something changed since it was last told.
    pub(super) news: bool,
    pub(super) frozen: bool,
    pub(super) changed: Ns,
    pub(super) findings: Vec<(String, String)>,
    pub(super) more_launches: u64,
}

impl Item {
    pub(super) fn new(id: String, session: String, began: Ns) -> Item {
        Item {
            id,
            session,
            tool: String::new(),
            call_id: None,
            class: ToolClass::ShellExec,
            summary: String::new(),
            digest: None,
            cwd: None,
            decision: None,
            file: None,
            began,
            said: None,
            launches: Vec::new(),
            binding: Binding::None,
            stray: None,
            verdict: Verdict::Running,
            announced: false,
            news: true,
            frozen: false,
            changed: began,
            findings: Vec::new(),
            more_launches: 0,
        }
    }

    pub(super) fn denied(&self) -> bool {
        self.decision.as_ref().is_some_and(|d| d.outcome == Outcome::Deny)
    }

    /// Whether a launch may be this call's: it runs commands and was not denied.
    pub(super) fn may_launch(&self) -> bool {
        self.decision.is_some() && !self.denied() && self.digest.is_some()
    }
}

/// One session of the tree.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) summary: SessionSummary,
    pub(super) host: HostKind,
    /// Since when every process of the tree is marked.
    pub(super) marked: Option<Ns>,
    pub(super) interactive: bool,
    pub(super) hooks_seen: bool,
    pub(super) closed: Option<Ns>,
    pub(super) opened: Ns,
    pub(super) strays: u64,
    pub(super) findings: u32,
    pub(super) dirty: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) mark: Option<u64>,
    /// Notices of processes that were gone when they were read, and when that was.
    pub(super) early_notices: Vec<(LaunchNotice, Ns)>,
    pub(super) hosts: HashSet<ProcessId>,
    /// Oldest first; the last open one is the one that the host works in.
    pub(super) sessions: Vec<Session>,
    pub(super) patterns: HostPatterns,
    pub(super) host_lines: HashMap<[u8; 32], String>,
    pub(super) procs: HashMap<ProcessId, Proc>,
    pub(super) launches: BTreeMap<u64, Launch>,
    pub(super) by_number: HashMap<u64, u64>,
    pub(super) by_root: HashMap<ProcessId, u64>,
    pub(super) items: BTreeMap<u64, Item>,
    pub(super) by_call: HashMap<(String, String), u64>,
    pub(super) by_digest: HashMap<[u8; 32], Vec<u64>>,
    pub(super) early_results: VecDeque<((String, String), Said)>,
    /// Launches that are not bound.
    pub(super) waiting: BTreeSet<u64>,
    pub(super) dirty: BTreeSet<u64>,
    pub(super) retracted: Vec<(String, String)>,
    pub(super) findings: Vec<Finding>,
    pub(super) with_gate_findings: BTreeSet<u64>,
    /// Session, entry and text of what was told of gates.
    pub(super) told_of_gates: HashSet<(String, Option<u64>, String)>,
    pub(super) next: u64,
    pub(super) now: Ns,
    pub(super) clock: Clock,
}

impl Tree {
    pub(super) fn fresh_key(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The session that the host works in now.
    pub(super) fn current(&mut self) -> Option<&mut Session> {
        let at = self.sessions.iter().rposition(|s| s.closed.is_none()).or(self.sessions.len().checked_sub(1))?;
        self.sessions.get_mut(at)
    }

    pub(super) fn session(&self, id: &str) -> Option<&Session> {
        self.sessions.iter().find(|s| s.summary.id == id)
    }

    pub(super) fn session_mut(&mut self, id: &str) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|s| s.summary.id == id)
    }

    pub(super) fn is_run(&self) -> bool {
        !self.sessions.is_empty() && self.sessions.iter().all(|s| s.host == HostKind::Run)
    }

    /// Whether whatever came of a call would have been seen: the tree was marked before it, and nothing was lost.
    pub(super) fn sees_everything(&self, item: &Item) -> bool {
        let marked_before = |s: &Session| s.marked.is_some_and(|at| at <= item.began) && s.summary.losses.lost == 0;
        self.session(&item.session).is_some_and(marked_before)
    }

    pub(super) fn count_internal(&mut self, kind: &str) {
        let kind = kind.to_owned();
        if let Some(session) = self.current() {
            session.summary.host_internal += 1;
            *session.summary.host_internal_kinds.entry(kind).or_default() += 1;
            session.dirty = true;
        }
    }

    pub(super) fn touch(&mut self, item: u64) {
        let now = self.now;
        if let Some(item) = self.items.get_mut(&item) {
            item.changed = now;
            item.news = true;
        }
        self.dirty.insert(item);
    }

    pub(super) fn touch_launch(&mut self, launch: u64) {
        if let Some(Owner::Item(item)) = self.launches.get(&launch).map(|l| l.owner.clone()) {
            self.touch(item);
        }
    }

    /// A launch that nothing is known of yet.
    pub(super) fn new_launch(&mut self, fenced: bool, began: (Ns, Ns)) -> u64 {
        let key = self.fresh_key();
        let hold = if fenced { LAUNCH_HOLD } else { PROGRAM_HOLD };
        let launch = Launch {
            fenced,
            number: None,
            root: None,
            began,
            digest: None,
            line_digests: Vec::new(),
            shell_line: false,
            notice: None,
            exec_seen: false,
            root_execs: 0,
            root_exit: None,
            alive: 0,
            fold: Fold::default(),
            owner: Owner::Nobody,
            deadline: self.now.max(began.1) + hold,
            summary: String::new(),
            ripe: fenced,
            frozen: false,
            unattributed: Vec::new(),
            gate_findings: Vec::new(),
        };
        self.launches.insert(key, launch);
        self.waiting.insert(key);
        key
    }

    /// Takes a launch away: it turned out to be a part of another, or the host's own.
    pub(super) fn drop_launch(&mut self, key: u64, place: Place) {
        self.waiting.remove(&key);
        let Some(mut gone) = self.launches.remove(&key) else { return };
        self.with_gate_findings.remove(&key);
        if let Place::Launch(to) = place
            && let Some(launch) = self.launches.get_mut(&to)
        {
            launch.fold.take_refusals_of(std::mem::take(&mut gone.fold));
            launch.gate_findings.append(&mut gone.gate_findings);
            if !launch.gate_findings.is_empty() {
                self.with_gate_findings.insert(to);
            }
        }
        if let Some(root) = gone.root
            && self.by_root.get(&root) == Some(&key)
        {
            self.by_root.remove(&root);
        }
        for proc in self.procs.values_mut().filter(|p| p.place == Place::Launch(key)) {
            proc.place = place;
            if let Place::Launch(to) = place
                && proc.ended.is_none()
                && let Some(launch) = self.launches.get_mut(&to)
            {
                launch.alive += 1;
                launch.fold.new_process();
            }
        }
    }

    /// Puts a process where it belongs. A process has one place at a time.
    pub(super) fn place(&mut self, process: ProcessId, place: Place) {
        let old = self.procs.get(&process).copied();
        if old.is_some_and(|old| old.place == place) {
            return;
        }
        let alive = old.is_none_or(|old| old.ended.is_none());
        if let Some(Proc { place: Place::Launch(from), .. }) = old
            && alive
            && let Some(launch) = self.launches.get_mut(&from)
        {
            launch.alive = launch.alive.saturating_sub(1);
        }
        if let Place::Launch(to) = place
            && let Some(launch) = self.launches.get_mut(&to)
        {
            launch.fold.new_process();
            launch.alive += u64::from(alive);
        }
        if old.is_none() && self.procs.len() >= MOST_PROCESSES {
            self.prune_processes(0);
            if self.procs.len() >= MOST_PROCESSES {
                return;
            }
        }
        self.procs.insert(process, Proc { place, ended: old.and_then(|old| old.ended) });
    }

    pub(super) fn prune_processes(&mut self, afterlife: Ns) {
        let now = self.now;
        self.procs.retain(|_, p| p.ended.is_none_or(|ended| ended + afterlife > now));
    }

    /// A finding, unless this entry has one of that kind or the session has too many.
    pub(super) fn find(&mut self, session: &str, item: Option<u64>, kind: &str, gravity: Gravity, text: &str) {
        let text = cut(shown_text(text), 300);
        let entry = item.and_then(|key| self.items.get_mut(&key)).map(|item| {
            let known = item.findings.iter().any(|(have, _)| have == kind);
            if !known {
                item.findings.push((kind.to_owned(), text.clone()));
            }
            (item.id.clone(), known)
        });
        if entry.as_ref().is_some_and(|(_, known)| *known) {
            return;
        }
        let (clock, now) = (self.clock, self.now);
        let Some(of) = self.session_mut(session) else { return };
        of.findings += 1;
        if of.findings > MOST_FINDINGS {
            return;
        }
        let entry = entry.map(|(id, _)| id);
        let id =
            id_of(&[session, kind, entry.as_deref().unwrap_or(""), &of.findings.to_string(), &of.opened.to_string()]);
        self.findings.push(Finding {
            id,
            session: session.to_owned(),
            entry,
            kind: kind.to_owned(),
            gravity,
            text,
            time: clock.wall(now),
        });
    }

    pub(super) fn counted(&mut self, session: &str, losses: Losses) {
        let Some(of) = self.session_mut(session) else { return };
        if of.summary.losses == losses {
            return;
        }
        let unmarked_first = of.summary.losses.unmarked_children == 0 && losses.unmarked_children > 0;
        let lost_more = losses.lost > of.summary.losses.lost;
        let first = of.summary.losses.lost == 0;
        of.summary.losses = losses;
        of.dirty = true;
        if lost_more && first {
            let text = format!(
                "{} of {} kernel events were lost: what is not shown may still have happened",
                losses.lost, losses.attempted
            );
            self.find(session, None, "loss", Gravity::Warning, &text);
        }
        if unmarked_first {
            let text = format!(
                "{} processes could not be marked: what they and their children do is neither judged nor seen",
                losses.unmarked_children
            );
            self.find(session, None, "unmarked", Gravity::Alarm, &text);
        }
    }

    /// Forgets what cannot change any more. `true` when the whole tree can go.
    pub(super) fn forget(&mut self) -> bool {
        self.prune_processes(AFTERLIFE);
        let now = self.now;
        let over = self.items.len().saturating_sub(MOST_ITEMS);
        let mut old: Vec<u64> = Vec::new();
        for (key, item) in &self.items {
            let done = !matches!(item.verdict, Verdict::Running) && !self.dirty.contains(key);
            let alive = item.launches.iter().filter_map(|l| self.launches.get(l)).any(|l| l.alive > 0);
            if done && (old.len() < over || (!alive && item.changed + ENTRY_LIFE < now)) {
                old.push(*key);
            }
        }
        for key in old {
            self.forget_item(key);
        }
        let launches = &self.launches;
        let gone: Vec<u64> = launches
            .iter()
            .filter(|(_, l)| l.owner == Owner::Host && l.alive == 0 && l.began.1 + ENTRY_LIFE < now)
            .map(|(key, _)| *key)
            .collect();
        gone.into_iter().for_each(|key| self.forget_launch(key));
        self.sessions.iter().all(|s| s.closed.is_some_and(|closed| closed + ENTRY_LIFE < now)) && self.items.is_empty()
    }

    pub(super) fn forget_launch(&mut self, key: u64) {
        self.waiting.remove(&key);
        if let Some(launch) = self.launches.remove(&key) {
            launch.number.map(|n| self.by_number.remove(&n));
            launch.root.map(|r| self.by_root.remove(&r));
        }
    }

    pub(super) fn forget_item(&mut self, key: u64) {
        let Some(item) = self.items.remove(&key) else { return };
        self.dirty.remove(&key);
        if let Some(call) = item.call_id {
            self.by_call.remove(&(item.session, call));
        }
        if let Some(digest) = item.digest
            && let Some(keys) = self.by_digest.get_mut(&digest)
        {
            keys.retain(|k| *k != key);
            if keys.is_empty() {
                self.by_digest.remove(&digest);
            }
        }
        for launch in item.launches {
            self.forget_launch(launch);
        }
    }
}

/// An id made of what it names, so that the same facts give the same ledger.
pub(super) fn id_of(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hex(&hash.finalize()[..16])
}
