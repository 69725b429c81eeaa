//! The join: facts in, entries out.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};

use super::entry::{Entry, Finding, Losses, SessionReport, SessionSummary};
use super::fold::Clock;
use super::internal::{PatternError, Patterns};
use super::observe::Surroundings;
use super::refusal::{Attribution, NoPlans};
use super::text::{cut, shown_text};
use super::tree::{Item, Said, Tree, id_of};
use crate::fence::receipt::LaunchNotice;
use crate::host::{HostKind, ToolClass};
use crate::ipc::limits;
use crate::policy::judge::Decision;
use crate::probe::protocol::{Counters, Observation};
use crate::process::ProcessId;

/// Everything the ledger is told. Times are nanoseconds of CLOCK_BOOTTIME.
#[derive(Clone, Debug)]
pub enum Fact {
    /// A session began or was found.
    SessionOpened {
        /// Our id of the session: host session id plus subagent are columns of it.
        session: String,
        /// Which host.
        host: HostKind,
        /// Its version, when known.
        host_version: Option<String>,
        /// The host's process.
        host_process: Option<ProcessId>,
        /// The session's number in marks; `None` without a probe.
        mark: Option<u64>,
        /// Whether the tree was enrolled before its first instruction.
        complete: bool,
        /// When.
        time_ns: u64,
    },
    /// A tool call was decided.
    Decided {
        /// The session.
        session: String,
        /// The host's id of the call.
        call_id: String,
        /// The host's name of the tool.
        tool: String,
        /// Its class.
        class: ToolClass,
        /// Redacted summary.
        summary: String,
        /// The command's SHA-256, for tools that execute one.
        command_digest: Option<[u8; 32]>,
        /// Directory of the call.
        cwd: String,
        /// The decision.
        decision: Decision,
        /// For file edits: the file, and what it was before.
        file: Option<FileState>,
        /// When.
        time_ns: u64,
    },
    /// The launcher put a fence on.
    Launched {
        /// What it says.
        notice: LaunchNotice,
        /// Session and launch of the sender's mark; `None` without a probe.
        mark: Option<(u64, u64)>,
        /// The session found by the host's process, when there is no mark.
        session: Option<String>,
        /// When.
        time_ns: u64,
    },
    /// The kernel saw something.
    Observed(Observation),
    /// The host says how a call ended.
    HostResult {
        /// The session.
        session: String,
        /// The host's id of the call.
        call_id: String,
        /// Whether it failed, and with which exit code if the host says.
        failed: bool,
        /// See `failed`.
        exit_code: Option<i32>,
        /// How long the tool ran, as the host measured it.
        duration_ms: Option<u64>,
        /// For file edits: what the file is now.
        file: Option<FileState>,
        /// When.
        time_ns: u64,
    },
    /// A person can type into the host: it has a terminal. Without this no execution is taken for a typed line.
    Interactive {
        /// The session.
        session: String,
    },
    /// Lines that the host runs for its settings (hooks, MCP servers, the status line), by SHA-256 of the line, or of the
    /// NUL-separated arguments where no shell is between.
    HostLines {
        /// The session.
        session: String,
        /// Digest, and the kind that is listed for it.
        lines: Vec<([u8; 32], String)>,
    },
    /// The session ended.
    SessionClosed {
        /// The session.
        session: String,
        /// When.
        time_ns: u64,
    },
    /// The kernel's counters of a session.
    Counted {
        /// The session.
        session: String,
        /// What was counted.
        counters: Counters,
    },
    /// Time passes: entries whose windows are over are settled.
    Tick {
        /// Now.
        time_ns: u64,
    },
}

/// What a file was at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileState {
    /// The path as the call named it.
    pub path: String,
    /// Inode, size and SHA-256; `None` when it did not exist.
    pub content: Option<(u64, u64, [u8; 32])>,
}

/// What the ledger says after a fact: the service stores it.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A session began, ended, or its counts changed.
    Session(Box<SessionSummary>),
    /// An entry is new, or changed; `settled` when its verdict is final as far as can be known.
    Entry {
        /// The session.
        session: String,
        /// The entry as it is now: it replaces the one with its id.
        entry: Box<Entry>,
        /// Whether it is new.
        opened: bool,
        /// Whether it is final.
        settled: bool,
    },
    /// An entry was a mistake: its execution belongs to a call that was told of later.
    Retracted {
        /// The session.
        session: String,
        /// The entry.
        entry: String,
    },
    /// Something a person should know.
    Finding(Finding),
}

/// What the joiner is given at its construction. No I/O, no clock.
pub struct JoinerConfig {
    /// To tell wall time.
    pub clock: Clock,
    /// What hosts start for themselves.
    pub patterns: Patterns,
    /// Which layer refused a system call.
    pub attribution: Box<dyn Attribution>,
    /// What may be kept of a program's arguments.
    pub redact: fn(&[&[u8]]) -> String,
}

impl JoinerConfig {
    /// The shipped patterns, no plans, program names only.
    pub fn plain(clock: Clock) -> Result<JoinerConfig, PatternError> {
        Ok(JoinerConfig { clock, patterns: Patterns::shipped()?, attribution: Box::new(NoPlans), redact: program_name })
    }
}

/// The base name of argument 0, and nothing else.
pub fn program_name(arguments: &[&[u8]]) -> String {
    let first = arguments.first().copied().unwrap_or_default();
    let name = first.rsplit(|b| *b == b'/').next().unwrap_or_default();
    super::text::cut(super::text::shown(name), 64)
}

/// Most trees in memory; beyond it the one idle for longest goes.
const MOST_TREES: usize = 512;
/// Most observations of one mark kept until its session is told of.
const MOST_EARLY: usize = 4096;
/// How long observations of a mark are kept after its last one, in nanoseconds.
const EARLY_NS: u64 = 10_000_000_000;
/// Most marks of which observations are kept.
const MOST_EARLY_MARKS: usize = 64;
/// Most results kept until their call is told of.
pub(super) const MOST_EARLY_RESULTS: usize = 256;
/// Entries that changed are told at the latest when so many have.
const MOST_DIRTY: usize = 256;

/// Facts in, entries out: pure, so that the same facts give the same ledger.
pub struct Joiner {
    config: JoinerConfig,
    trees: BTreeMap<u64, Tree>,
    next: u64,
    by_session: HashMap<String, u64>,
    by_mark: HashMap<u64, u64>,
    by_host: HashMap<ProcessId, u64>,
    early: HashMap<u64, Vec<Observation>>,
}

impl Joiner {
    /// An empty ledger.
    pub fn new(config: JoinerConfig) -> Joiner {
        let (by_session, by_mark, by_host, early) = Default::default();
        Joiner { config, trees: BTreeMap::new(), next: 0, by_session, by_mark, by_host, early }
    }

    /// Takes a fact; what it changed comes back. Observations come back with the next other fact, or when many changed.
    pub fn take(&mut self, fact: Fact) -> Vec<Change> {
        match fact {
            Fact::SessionOpened { session, host, host_version, host_process, mark, complete, time_ns } => {
                let opened = Opened { host, host_version, host_process, mark, complete, time_ns };
                self.open(session, opened)
            }
            Fact::Observed(observation) => self.observed(observation),
            Fact::Launched { notice, mark, session, time_ns } => {
                let by_session = || session.as_ref().and_then(|s| self.by_session.get(s));
                let found = mark.and_then(|(mark, _)| self.by_mark.get(&mark)).or_else(by_session);
                let Some(tree) = found.or_else(|| self.by_host.get(&notice.parent)).copied() else { return Vec::new() };
                let around = Surroundings { attribution: &*self.config.attribution, redact: self.config.redact };
                let Some(tree) = self.trees.get_mut(&tree) else { return Vec::new() };
                tree.launched(notice, mark.map(|(_, launch)| launch), time_ns);
                tree.attribute_early(&around);
                tree.changes()
            }
            Fact::Decided { session, call_id, tool, class, summary, command_digest, cwd, decision, file, time_ns } => {
                let item = Item {
                    tool: cut(shown_text(&tool), 64),
                    call_id: Some(cut(shown_text(&call_id), limits::ID_BYTES)),
                    class,
                    summary: cut(shown_text(&summary), 200),
                    digest: command_digest,
                    cwd: Some(cut(cwd, limits::PATH_BYTES)),
                    decision: Some(decision),
                    file,
                    ..Item::new(id_of(&[&session, &call_id, &time_ns.to_string()]), session.clone(), time_ns)
                };
                self.in_session(&session, |tree| tree.decided(item))
            }
            Fact::HostResult { session, call_id, failed, exit_code, duration_ms, file, time_ns } => {
                let said = Said { failed, exit_code, duration_ms, file, time_ns };
                let call = cut(shown_text(&call_id), limits::ID_BYTES);
                self.in_session(&session.clone(), |tree| tree.said((session, call), said))
            }
            Fact::SessionClosed { session, time_ns } => {
                self.in_session(&session.clone(), |tree| tree.closed(&session, time_ns))
            }
            Fact::Counted { session, counters } => {
                self.in_session(&session.clone(), |tree| tree.counted(&session, Losses::from(counters)))
            }
            Fact::Interactive { session } => self.in_session(&session.clone(), |tree| {
                if let Some(session) = tree.session_mut(&session) {
                    session.interactive = true;
                }
            }),
            Fact::HostLines { session, lines } => self.in_session(&session, |tree| {
                tree.host_lines
                    .extend(lines.into_iter().take(256).map(|(digest, kind)| (digest, cut(shown_text(&kind), 64))));
            }),
            Fact::Tick { time_ns } => self.tick(time_ns),
        }
    }

    /// Goes on with a session that the store holds, after a restart: its entries as they were stored. To be called after
    /// the session's [`Fact::SessionOpened`].
    pub fn resume(&mut self, summary: SessionSummary, entries: Vec<Entry>) {
        let Some(tree) = self.by_session.get(&summary.id).and_then(|key| self.trees.get_mut(key)) else { return };
        tree.resume(summary, entries);
    }

    /// The sessions as they are in memory: for a report when the store cannot be used.
    pub fn report(&self, session: Option<&str>) -> Vec<SessionReport> {
        let trees = self.trees.values();
        trees.flat_map(|tree| tree.reports().into_iter().filter(|r| session.is_none_or(|id| id == r.id))).collect()
    }

    /// Whether anything of a session's launches may still live, as far as was observed.
    pub fn lives(&self, session: &str) -> bool {
        let tree = self.by_session.get(session).and_then(|key| self.trees.get(key));
        tree.is_some_and(|tree| tree.launches.values().any(|launch| launch.alive > 0))
    }

    fn open(&mut self, session: String, opened: Opened) -> Vec<Change> {
        let Opened { host, host_version, host_process, mark, complete, time_ns } = opened;
        let by_mark = mark.and_then(|m| self.by_mark.get(&m));
        let by_host = || host_process.and_then(|p| self.by_host.get(&p));
        let known = self.by_session.get(&session).or(by_mark).or_else(by_host).copied();
        let key = known.unwrap_or_else(|| {
            self.next += 1;
            self.trees.insert(self.next, Tree { clock: self.config.clock, ..Tree::default() });
            self.next
        });
        self.by_session.insert(session.clone(), key);
        mark.map(|mark| self.by_mark.insert(mark, key));
        host_process.map(|host| self.by_host.insert(host, key));
        let patterns = self.config.patterns.of(host, host_version.as_deref());
        let opened = Opened { host, host_version, host_process, mark, complete, time_ns };
        let mut changes = self.with(key, |tree| tree.opened(session, opened, patterns));
        for observation in mark.and_then(|mark| self.early.remove(&mark)).unwrap_or_default() {
            changes.extend(self.observed(observation));
        }
        if self.trees.len() > MOST_TREES
            && let Some(idle) = self.trees.iter().min_by_key(|(_, tree)| tree.now).map(|(key, _)| *key)
        {
            changes.extend(self.with(idle, |tree| tree.conclude(true)));
            self.remove(idle);
        }
        changes
    }

    fn observed(&mut self, observation: Observation) -> Vec<Change> {
        let mark = observation.mark.session;
        let Some(key) = self.by_mark.get(&mark).copied() else {
            // Marks that nobody tells of (a tree of an earlier service, a canary) make room for those that will be.
            let time_ns = observation.time_ns;
            self.early.retain(|_, early| early.last().is_some_and(|last| last.time_ns + EARLY_NS > time_ns));
            if self.early.len() < MOST_EARLY_MARKS || self.early.contains_key(&mark) {
                let early = self.early.entry(mark).or_default();
                if early.len() < MOST_EARLY {
                    early.push(observation);
                }
            }
            return Vec::new();
        };
        let Some(tree) = self.trees.get_mut(&key) else { return Vec::new() };
        let around = Surroundings { attribution: &*self.config.attribution, redact: self.config.redact };
        tree.observe(&observation, &around);
        if tree.dirty.len() > MOST_DIRTY { tree.changes() } else { Vec::new() }
    }

    fn in_session(&mut self, session: &str, act: impl FnOnce(&mut Tree)) -> Vec<Change> {
        let mut changes = Vec::new();
        if !self.by_session.contains_key(session) {
            let opened = Opened {
                host: HostKind::ClaudeCode,
                host_version: None,
                host_process: None,
                mark: None,
                complete: false,
                time_ns: 0,
            };
            changes = self.open(session.to_owned(), opened);
        }
        if let Some(key) = self.by_session.get(session).copied() {
            changes.extend(self.with(key, act));
        }
        changes
    }

    fn with(&mut self, key: u64, act: impl FnOnce(&mut Tree)) -> Vec<Change> {
        let Some(tree) = self.trees.get_mut(&key) else { return Vec::new() };
        act(tree);
        tree.changes()
    }

    fn tick(&mut self, time_ns: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut over = Vec::new();
        let around = Surroundings { attribution: &*self.config.attribution, redact: self.config.redact };
        for (key, tree) in &mut self.trees {
            tree.ticked(time_ns);
            tree.attribute_early(&around);
            changes.extend(tree.changes());
            if tree.forget() {
                over.push(*key);
            }
        }
        over.into_iter().for_each(|key| self.remove(key));
        changes
    }

    fn remove(&mut self, key: u64) {
        self.trees.remove(&key);
        self.by_session.retain(|_, tree| *tree != key);
        self.by_mark.retain(|_, tree| *tree != key);
        self.by_host.retain(|_, tree| *tree != key);
    }
}

/// What opens a session.
pub(super) struct Opened {
    pub(super) host: HostKind,
    pub(super) host_version: Option<String>,
    pub(super) host_process: Option<ProcessId>,
    pub(super) mark: Option<u64>,
    pub(super) complete: bool,
    pub(super) time_ns: u64,
}
