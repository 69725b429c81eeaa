//! What hooks, launchers and the clock tell a tree; and what it tells of itself.
#![forbid(unsafe_code)]

use super::entry::{
    Binding, Counts, DecisionRecord, Entry, Evidence, Gravity, HostResultRecord, LaunchRecord, Losses, SessionReport,
    SessionSummary, Verdict,
};
use super::fold::{Fold, sum};
use super::internal::HostPatterns;
use super::join::{Change, MOST_EARLY_RESULTS, Opened};
use super::text::{digest_of_hex, hex};
use super::tree::{Item, LAUNCH_HOLD, Launch, MOST_EARLY_NOTICES, Ns, Owner, Place, Said, Session, Tree};
use crate::fence::receipt::{LaunchNotice, Receipt};
use crate::host::{HostKind, ToolClass};
use crate::policy::judge::{Decision, Outcome};
use crate::process::ProcessId;

/// A clock tick of [`ProcessId::start`] in nanoseconds: `_SC_CLK_TCK` is 100 in the kernel's interface to programs.
const TICK_NS: Ns = 10_000_000;

impl Tree {
    pub(super) fn opened(&mut self, id: String, opened: Opened, patterns: HostPatterns) {
        let Opened { host, host_version, host_process, mark, complete, time_ns } = opened;
        self.now = self.now.max(time_ns);
        self.mark = mark.or(self.mark);
        if let Some(process) = host_process {
            self.hosts.insert(process);
            self.place(process, Place::Host);
        }
        // A host under `ringfence run` opens a second session in the run's tree: then the host's patterns count.
        if host != HostKind::Run || self.sessions.is_empty() {
            self.patterns = patterns;
        }
        let history = match complete {
            true => "complete".to_owned(),
            false => format!("unknown before {}", self.clock.wall(time_ns)),
        };
        let patterns_of = self.patterns.taken_from.clone();
        if let Some(known) = self.session_mut(&id) {
            // Resumed, or told again with more: a mark, a version.
            known.closed = None;
            known.summary.ended = None;
            known.summary.mark = mark.or(known.summary.mark);
            known.summary.host_version = host_version.or(known.summary.host_version.take());
            known.marked = known.marked.or(mark.map(|_| time_ns));
            known.dirty = true;
            return;
        }
        let summary = SessionSummary {
            id,
            host: host_name(host).into(),
            host_version,
            history,
            host_internal: 0,
            host_internal_kinds: Default::default(),
            unhooked: 0,
            patterns_of,
            losses: Losses::default(),
            started: self.clock.wall(time_ns),
            ended: None,
            mark,
        };
        self.sessions.push(Session {
            summary,
            host,
            marked: mark.map(|_| time_ns),
            interactive: false,
            hooks_seen: false,
            closed: None,
            opened: time_ns,
            strays: 0,
            findings: 0,
            dirty: true,
        });
    }

    pub(super) fn decided(&mut self, item: Item) {
        self.now = self.now.max(item.began);
        let Some(call) = item.call_id.clone() else { return };
        let call = (item.session.clone(), call);
        if let Some(session) = self.session_mut(&item.session) {
            session.hooks_seen = true;
        }
        if let Some(known) = self.by_call.get(&call).copied() {
            // Asked again: the stricter decision stays.
            if item.denied()
                && let Some(old) = self.items.get_mut(&known)
            {
                old.decision = item.decision;
            }
            return self.touch(known);
        }
        let key = self.fresh_key();
        let (digest, began, executes) = (item.digest, item.began, item.may_launch());
        let rule = item.decision.as_ref().filter(|d| !d.rules.is_empty()).map(|d| {
            let gravity = if d.outcome == Outcome::Deny { Gravity::Alarm } else { Gravity::Warning };
            (d.rules.join(", "), gravity, d.explanation.clone())
        });
        let session = item.session.clone();
        self.items.insert(key, item);
        self.by_call.insert(call.clone(), key);
        self.touch(key);
        if let Some((rules, gravity, explanation)) = rule {
            self.find(&session, Some(key), "rule", gravity, &format!("{rules}: {explanation}"));
        }
        if let Some(digest) = digest {
            self.by_digest.entry(digest).or_default().push(key);
            self.reconsider(digest, began);
            if executes {
                self.deal(digest);
            }
        }
        if let Some(at) = self.early_results.iter().position(|(of, _)| *of == call)
            && let Some((_, said)) = self.early_results.remove(at)
        {
            self.said(call, said);
        }
    }

    pub(super) fn said(&mut self, call: (String, String), said: Said) {
        self.now = self.now.max(said.time_ns);
        let Some(key) = self.by_call.get(&call).copied() else {
            self.early_results.push_back((call, said));
            if self.early_results.len() > MOST_EARLY_RESULTS {
                self.early_results.pop_front();
            }
            return;
        };
        let Some(item) = self.items.get_mut(&key) else { return };
        item.said = Some(said);
        let digest = item.digest;
        self.touch(key);
        if let Some(digest) = digest {
            self.deal(digest);
        }
    }

    pub(super) fn launched(&mut self, notice: LaunchNotice, number: Option<u64>, time_ns: Ns) {
        self.now = self.now.max(time_ns);
        let process = notice.process;
        let first = process.start.saturating_mul(TICK_NS);
        let began = (first.min(time_ns), (first + TICK_NS).min(time_ns).max(first.min(time_ns)));
        let by_root = self.by_root.get(&process).copied().filter(|l| self.launches.get(l).is_some_and(|l| l.fenced));
        let key = match (number.filter(|n| *n != 0), by_root) {
            (Some(number), _) => self.launch_of_number(number, process, began.1),
            (None, Some(known)) => known,
            // Where the kernel watches, a notice of a process that is gone counts once its exec of the launcher was seen.
            (None, None) if self.mark.is_some() => {
                self.early_notices.retain(|(_, at)| at + LAUNCH_HOLD > time_ns);
                if self.early_notices.len() < MOST_EARLY_NOTICES {
                    self.early_notices.push((notice, time_ns));
                }
                return;
            }
            (None, None) => self.new_launch(true, began),
        };
        // The shell before the prefix, seen without a launch, is a part of it.
        if let Some(Place::Launch(before)) = self.procs.get(&process).map(|p| p.place)
            && before != key
            && self.launches.get(&before).is_some_and(|l| !l.fenced && l.owner == Owner::Nobody)
        {
            self.drop_launch(before, Place::Launch(key));
        }
        let Some(launch) = self.launches.get_mut(&key) else { return };
        // The launcher tells once, before it becomes the command: whatever comes after that is somebody else's.
        if launch.notice.is_some() || launch.root.is_some_and(|root| root != process) {
            return;
        }
        if !launch.exec_seen {
            launch.began = began;
        }
        // The launcher read the whole line; what the kernel record shows of it may be cut.
        launch.digest = digest_of_hex(&notice.command_digest).or(launch.digest);
        if let Some(digest) = launch.digest
            && !launch.line_digests.contains(&digest)
        {
            launch.line_digests.push(digest);
        }
        launch.notice = Some(notice);
        self.set_root(key, process);
        self.touch_launch(key);
        self.rebind(key);
    }

    pub(super) fn closed(&mut self, id: &str, time_ns: Ns) {
        self.now = self.now.max(time_ns);
        let wall = self.clock.wall(time_ns);
        let Some(session) = self.session_mut(id) else { return };
        session.closed = Some(time_ns);
        session.summary.ended = Some(wall);
        session.dirty = true;
        let open: Vec<u64> = self
            .items
            .iter()
            .filter(|(_, i)| i.session == id && i.verdict == Verdict::Running)
            .map(|(k, _)| *k)
            .collect();
        self.dirty.extend(open);
    }

    pub(super) fn ticked(&mut self, time_ns: Ns) {
        self.now = self.now.max(time_ns);
        let closed = self.sessions.iter().all(|s| s.closed.is_some_and(|at| at + super::tree::SECOND <= time_ns));
        self.conclude(closed);
        self.freeze();
        let running = self.items.iter().filter(|(_, item)| item.verdict == Verdict::Running).map(|(key, _)| *key);
        self.dirty.extend(running);
    }

    /// What changed since it was last asked.
    pub(super) fn changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut entries = Vec::new();
        self.tell_gate_findings();
        for key in std::mem::take(&mut self.dirty) {
            let Some(item) = self.items.get(&key) else { continue };
            let judged = self.judge(item);
            let touched = item.news || item.verdict != judged.verdict;
            let opened = !item.announced;
            let session = item.session.clone();
            if let Some((kind, gravity, text)) = &judged.finding {
                self.find(&session, Some(key), kind, *gravity, text);
            }
            let Some(item) = self.items.get_mut(&key) else { continue };
            // A running entry that nothing happened to is not told again at each tick.
            if !touched && judged.verdict == Verdict::Running {
                continue;
            }
            item.news = false;
            item.verdict = judged.verdict;
            item.announced = true;
            let settled = judged.verdict != Verdict::Running;
            let Some(entry) = self.items.get(&key).map(|item| self.entry(item)) else { continue };
            entries.push(Change::Entry { session, entry: Box::new(entry), opened, settled });
        }
        // A session stands before its entries, and an entry before its findings.
        let news = self
            .sessions
            .iter_mut()
            .filter_map(|s| std::mem::take(&mut s.dirty).then(|| Change::Session(Box::new(s.summary.clone()))));
        changes.extend(news);
        changes.extend(
            std::mem::take(&mut self.retracted)
                .into_iter()
                .map(|(session, entry)| Change::Retracted { session, entry }),
        );
        changes.extend(entries);
        changes.extend(std::mem::take(&mut self.findings).into_iter().map(Change::Finding));
        changes
    }

    /// The entry as it is now.
    pub(super) fn entry(&self, item: &Item) -> Entry {
        let judged = self.judge(item);
        let launches: Vec<&Launch> = item.launches.iter().filter_map(|l| self.launches.get(l)).collect();
        let (mut executions, mut connections, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
        let (mut counts, mut more) = (Counts::default(), super::entry::More::default());
        for launch in &launches {
            let (e, c, r) = launch.fold.lists(self.clock);
            executions.extend(e);
            connections.extend(c);
            refusals.extend(r);
            counts = sum(counts, launch.fold.counts());
            let m = launch.fold.more();
            more.executions += m.executions;
            more.connections += m.connections;
            more.refusals += m.refusals;
        }
        let mut records = launches.iter().filter(|l| l.fenced).map(|l| record(l));
        let first = records.next();
        let ended =
            launches.first().and_then(|l| l.root_exit).map(|(_, at)| at).or(item.said.as_ref().map(|s| s.time_ns));
        Entry {
            id: item.id.clone(),
            tool: item.tool.clone(),
            call_id: item.call_id.clone(),
            summary: item.summary.clone(),
            decision: item.decision.as_ref().map(|d| DecisionRecord {
                outcome: d.outcome,
                reason: d.reason_code.clone(),
                rules: d.rules.clone(),
                source: d.source,
                policy: d.policy.clone(),
                fence: d.fence.clone(),
            }),
            binding: if launches.is_empty() { Binding::None } else { item.binding },
            evidence: judged.evidence,
            verdict: judged.verdict,
            why: judged.why,
            launch: first,
            other_launches: records.collect(),
            executions,
            connections,
            refusals,
            findings: item.findings.iter().map(|(_, text)| text.clone()).collect(),
            counts,
            more,
            started: self.clock.wall(item.began),
            ended: ended.map(|at| self.clock.wall(at)),
            host_result: item.said.as_ref().map(|s| HostResultRecord { failed: s.failed, exit_code: s.exit_code }),
            command_digest: item.digest.map(|d| hex(&d)),
            cwd: item.cwd.clone(),
        }
    }

    pub(super) fn reports(&self) -> Vec<SessionReport> {
        let of = |session: &Session| {
            let mine = self.items.values().filter(|item| item.session == session.summary.id);
            session.summary.clone().with_entries(mine.map(|item| self.entry(item)).collect(), 0)
        };
        self.sessions.iter().map(of).collect()
    }

    /// Takes up entries as they were stored.
    pub(super) fn resume(&mut self, summary: SessionSummary, entries: Vec<Entry>) {
        let Some(session) = self.session_mut(&summary.id) else { return };
        let id = summary.id.clone();
        session.hooks_seen = !entries.is_empty();
        session.strays = summary.unhooked;
        session.summary = SessionSummary { ended: None, mark: session.summary.mark.or(summary.mark), ..summary };
        for entry in entries {
            let began = nanoseconds(&entry.started, self.clock);
            let key = self.fresh_key();
            let mut item = Item {
                announced: true,
                news: false,
                verdict: entry.verdict,
                binding: entry.binding,
                ..Item::new(entry.id.clone(), id.clone(), began)
            };
            item.tool.clone_from(&entry.tool);
            item.call_id.clone_from(&entry.call_id);
            item.class = class_of(&entry);
            item.summary.clone_from(&entry.summary);
            item.digest = entry.command_digest.as_deref().and_then(digest_of_hex);
            item.cwd.clone_from(&entry.cwd);
            item.stray = matches!(entry.verdict, Verdict::Unhooked | Verdict::UserTyped).then_some(entry.verdict);
            item.findings =
                entry.findings.iter().map(|text| (finding_kind(entry.verdict).to_owned(), text.clone())).collect();
            item.decision = entry.decision.as_ref().map(|d| Decision {
                outcome: d.outcome,
                reason_code: d.reason.clone(),
                explanation: String::new(),
                rules: d.rules.clone(),
                source: d.source,
                policy: d.policy.clone(),
                fence: d.fence.clone(),
            });
            item.said = entry.host_result.map(|said| {
                let time_ns = entry.ended.as_deref().map_or(began, |at| nanoseconds(at, self.clock));
                Said { failed: said.failed, exit_code: said.exit_code, duration_ms: None, file: None, time_ns }
            });
            if let Some(record) = &entry.launch {
                let launch = self.new_launch(true, (began, began));
                self.waiting.remove(&launch);
                self.set_root(launch, ProcessId { pid: record.pid, start: record.start });
                if let Some(number) = record.number {
                    self.by_number.insert(number, launch);
                }
                if let Some(launch) = self.launches.get_mut(&launch) {
                    launch.number = record.number;
                    launch.digest = item.digest;
                    launch.exec_seen = entry.evidence == Evidence::Kernel;
                    launch.root_exit = record.exit.map(|exit| (exit, began));
                    launch.alive = record.alive;
                    launch.fold = Fold::resumed(&entry);
                    launch.owner = Owner::Item(key);
                    launch.notice = Some(LaunchNotice {
                        process: ProcessId { pid: record.pid, start: record.start },
                        parent: ProcessId { pid: 0, start: 0 },
                        command_digest: entry.command_digest.clone().unwrap_or_default(),
                        plan: record.plan.clone().unwrap_or_default(),
                        per_call: false,
                        fence: record.fence.clone(),
                        cwd: entry.cwd.clone().unwrap_or_default(),
                        receipt: record.receipt.clone(),
                    });
                }
                item.launches.push(launch);
            }
            // An edit's file was not kept: its verdict stands as it is.
            item.frozen = entry.verdict != Verdict::Running;
            if let Some(call) = item.call_id.clone() {
                self.by_call.insert((id.clone(), call), key);
            }
            if let Some(digest) = item.digest {
                self.by_digest.entry(digest).or_default().push(key);
            }
            self.items.insert(key, item);
        }
    }
}

fn record(launch: &Launch) -> LaunchRecord {
    let process = launch.root.unwrap_or(ProcessId { pid: 0, start: 0 });
    LaunchRecord {
        pid: process.pid,
        fence: launch.notice.as_ref().map_or_else(|| "unknown".into(), |n| n.fence.clone()),
        receipt: launch.notice.as_ref().map_or_else(Receipt::default, |n| n.receipt.clone()),
        exit: launch.root_exit.map(|(exit, _)| exit),
        number: launch.number,
        start: process.start,
        plan: launch.notice.as_ref().map(|n| n.plan.clone()),
        alive: launch.alive,
    }
}

fn host_name(host: HostKind) -> &'static str {
    match host {
        HostKind::ClaudeCode => "claude-code",
        HostKind::Codex => "codex",
        HostKind::Run => "run",
    }
}

/// The class of a stored entry, as far as its verdict needs it.
fn class_of(entry: &Entry) -> ToolClass {
    match (entry.command_digest.is_some() || entry.launch.is_some(), entry.verdict) {
        (true, _) => ToolClass::ShellExec,
        (false, _) => ToolClass::Mcp,
    }
}

fn finding_kind(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Diverged => "diverged",
        Verdict::Unhooked => "unhooked",
        Verdict::Unobserved => "unobserved",
        _ => "rule",
    }
}

fn nanoseconds(wall: &str, clock: super::fold::Clock) -> Ns {
    let unix = wall.parse::<jiff::Timestamp>().map_or(0, |t| t.as_nanosecond());
    u64::try_from(unix - i128::from(clock.boot_unix_ns)).unwrap_or(0)
}
