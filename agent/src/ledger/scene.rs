//! For tests: facts of one host and what it starts, written as a story.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::entry::{Entry, Finding, SessionSummary};
use super::fold::Clock;
use super::join::{Change, Fact, FileState, Joiner, JoinerConfig};
use crate::fence::receipt::{LaunchNotice, Receipt};
use crate::host::{HostKind, ToolClass};
use crate::policy::judge::{Decision, DecisionSource, Outcome};
use crate::probe::protocol::{Bytes, FileId, Mark, Observation, ObservationKind, Peer, Role};
use crate::process::ProcessId;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const HOST_VERSION: &str = "2.1.332";

pub(crate) fn sha(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes { bytes: text.into(), truncated: false }
}

/// The line that Claude Code makes of a command.
pub(crate) fn line(command: &str) -> String {
    let quoted = command.replace('\'', r#"'"'"'"#);
    format!(
        "source /h/.claude/shell-snapshots/s.sh 2>/dev/null || true && eval '{quoted}' < /dev/null && pwd -P >| /tmp/claude-1-cwd"
    )
}

pub(crate) fn decision(outcome: Outcome) -> Decision {
    let denied = outcome == Outcome::Deny;
    Decision {
        outcome,
        reason_code: if denied { "TR-CRED-EXFIL".into() } else { "none".into() },
        explanation: if denied { "a credential reaches an upload".into() } else { String::new() },
        rules: if denied { vec!["TR-CRED-EXFIL".into()] } else { Vec::new() },
        source: DecisionSource::LocalRule,
        policy: "sha256:0".into(),
        fence: "default".into(),
    }
}

/// A joiner and what it has said so far.
pub(crate) struct Ledger {
    pub(super) joiner: Joiner,
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) settled: BTreeMap<String, bool>,
    pub(super) sessions: BTreeMap<String, SessionSummary>,
    pub(super) findings: Vec<Finding>,
    pub(super) session_of: BTreeMap<String, String>,
}

impl Ledger {
    pub(crate) fn new() -> Ledger {
        Ledger::with(JoinerConfig::plain(Clock { boot_unix_ns: 1_700_000_000_000_000_000 }).unwrap())
    }

    pub(crate) fn with(config: JoinerConfig) -> Ledger {
        let joiner = Joiner::new(config);
        Ledger {
            joiner,
            entries: BTreeMap::new(),
            settled: BTreeMap::new(),
            sessions: BTreeMap::new(),
            findings: Vec::new(),
            session_of: BTreeMap::new(),
        }
    }

    pub(crate) fn take(&mut self, fact: Fact) {
        for change in self.joiner.take(fact) {
            match change {
                Change::Session(summary) => drop(self.sessions.insert(summary.id.clone(), *summary)),
                Change::Entry { session, entry, opened, settled } => {
                    assert!(self.sessions.contains_key(&session), "a session stands before its entries");
                    self.session_of.insert(entry.id.clone(), session.clone());
                    let old = self.entries.insert(entry.id.clone(), (*entry).clone());
                    assert_eq!(opened, old.is_none(), "an entry is opened once");
                    self.settled.insert(entry.id, settled);
                }
                Change::Retracted { entry, .. } => {
                    assert!(self.entries.remove(&entry).is_some(), "only what was told is taken back")
                }
                Change::Finding(finding) => self.findings.push(finding),
            }
        }
    }

    pub(crate) fn call(&self, call: &str) -> &Entry {
        self.entries
            .values()
            .find(|e| e.call_id.as_deref() == Some(call))
            .unwrap_or_else(|| panic!("no entry for {call}"))
    }

    pub(crate) fn strays(&self) -> Vec<&Entry> {
        self.entries.values().filter(|e| e.call_id.is_none()).collect()
    }
}

/// One host with the numbers that its marks and processes get.
pub(crate) struct Scene {
    pub(super) ledger: Ledger,
    pub(super) session: String,
    pub(super) mark: Option<u64>,
    pub(super) host: ProcessId,
    pub(super) now: u64,
    next_pid: u32,
    next_launch: u64,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        Scene::begin(Some(7), HostKind::ClaudeCode)
    }

    pub(crate) fn begin(mark: Option<u64>, host: HostKind) -> Scene {
        let mut scene = Scene {
            ledger: Ledger::new(),
            session: "s1".into(),
            mark,
            host: ProcessId { pid: 100, start: 1 },
            now: 1_000_000 * MS,
            next_pid: 1000,
            next_launch: 0,
        };
        scene.open(host);
        scene
    }

    pub(crate) fn open(&mut self, host: HostKind) {
        self.ledger.take(Fact::SessionOpened {
            session: self.session.clone(),
            host,
            host_version: Some(HOST_VERSION.into()),
            host_process: Some(self.host),
            mark: self.mark,
            complete: true,
            time_ns: self.now,
        });
    }

    pub(crate) fn later(&mut self, ms: u64) -> u64 {
        self.now += ms * MS;
        self.now
    }

    pub(crate) fn tick(&mut self, ms: u64) {
        let time_ns = self.later(ms);
        self.ledger.take(Fact::Tick { time_ns });
    }

    pub(crate) fn close(&mut self) {
        let time_ns = self.later(1);
        self.ledger.take(Fact::SessionClosed { session: self.session.clone(), time_ns });
        self.tick(5000);
    }

    pub(crate) fn process(&mut self) -> ProcessId {
        self.next_pid += 1;
        ProcessId { pid: self.next_pid, start: self.now / (10 * MS) }
    }

    pub(crate) fn decide(&mut self, call: &str, command: &str, outcome: Outcome) {
        let time_ns = self.later(1);
        self.decide_at(call, command, outcome, time_ns);
    }

    pub(crate) fn decide_at(&mut self, call: &str, command: &str, outcome: Outcome, time_ns: u64) {
        self.ledger.take(Fact::Decided {
            session: self.session.clone(),
            call_id: call.into(),
            tool: "Bash".into(),
            class: ToolClass::ShellExec,
            summary: "redacted".into(),
            command_digest: Some(sha(command)),
            cwd: "/w".into(),
            decision: decision(outcome),
            file: None,
            time_ns,
        });
    }

    pub(crate) fn decide_tool(&mut self, call: &str, tool: &str, class: ToolClass, file: Option<FileState>) {
        let time_ns = self.later(1);
        self.ledger.take(Fact::Decided {
            session: self.session.clone(),
            call_id: call.into(),
            tool: tool.into(),
            class,
            summary: "redacted".into(),
            command_digest: None,
            cwd: "/w".into(),
            decision: decision(Outcome::NoOverride),
            file,
            time_ns,
        });
    }

    pub(crate) fn result(&mut self, call: &str, failed: bool, exit_code: Option<i32>) {
        self.result_file(call, failed, exit_code, None);
    }

    pub(crate) fn result_file(&mut self, call: &str, failed: bool, exit_code: Option<i32>, file: Option<FileState>) {
        let time_ns = self.later(1);
        self.ledger.take(Fact::HostResult {
            session: self.session.clone(),
            call_id: call.into(),
            failed,
            exit_code,
            duration_ms: None,
            file,
            time_ns,
        });
    }

    pub(crate) fn observe(&mut self, process: ProcessId, launch: u64, role: Role, kind: ObservationKind) {
        let Some(session) = self.mark else { return };
        let time_ns = self.later(1);
        let mark = Mark { session, launch, generation: 1, role };
        self.ledger.take(Fact::Observed(Observation { time_ns, mark, process, thread: process.pid, kind }));
    }

    pub(crate) fn fork(&mut self, parent: ProcessId, launch: u64) -> ProcessId {
        let child = self.process();
        let role = if launch == 0 { Role::Host } else { Role::Launched };
        self.observe(parent, launch, role, ObservationKind::Fork { child });
        child
    }

    pub(crate) fn exec(&mut self, process: ProcessId, parent: ProcessId, launch: u64, path: &str, argv: &[&str]) {
        let role = if launch == 0 { Role::Internal } else { Role::Launched };
        self.observe(process, launch, role, exec_of(parent, path, argv));
    }

    pub(crate) fn exit(&mut self, process: ProcessId, launch: u64, code: u8) {
        let role = if launch == 0 { Role::Internal } else { Role::Launched };
        self.observe(process, launch, role, ObservationKind::Exit { code, signal: 0 });
    }

    pub(crate) fn connect(&mut self, process: ProcessId, launch: u64, peer: Peer, errno: u16) {
        let attempt = self.now;
        self.observe(
            process,
            launch,
            Role::Launched,
            ObservationKind::Connect { attempt, peer, socket_type: 1, refused: false, resolved: None },
        );
        self.observe(process, launch, Role::Launched, ObservationKind::ConnectResult { attempt, errno });
    }

    pub(crate) fn notice(&mut self, process: ProcessId, launch: u64, command: &str) {
        let time_ns = self.later(1);
        let notice = notice_of(process, self.host, command, "/w");
        let mark = self.mark.map(|mark| (mark, launch));
        self.ledger.take(Fact::Launched { notice, mark, session: Some(self.session.clone()), time_ns });
    }

    /// The host starts a command through the prefix, as Claude Code does. Answers with its process and launch.
    pub(crate) fn launch(&mut self, command: &str) -> (ProcessId, u64) {
        let (process, launch) = self.launch_unnoticed(command);
        self.notice(process, launch, command);
        let text = line(command);
        self.exec(process, self.host, launch, "/usr/bin/bash", &["/bin/bash", "-c", &text]);
        (process, launch)
    }

    pub(crate) fn launch_unnoticed(&mut self, command: &str) -> (ProcessId, u64) {
        let host = self.host;
        let process = self.fork(host, 0);
        let text = line(command);
        let quoted = format!("/opt/ringfence-exec '{}'", text.replace('\'', r#"'"'"'"#));
        self.exec(process, host, 0, "/usr/bin/bash", &["/bin/bash", "-c", &quoted]);
        self.next_launch += 1;
        let launch = self.next_launch;
        self.exec(process, host, launch, "/opt/ringfence-exec", &["/opt/ringfence-exec", &text]);
        (process, launch)
    }
}

pub(crate) fn exec_of(parent: ProcessId, path: &str, argv: &[&str]) -> ObservationKind {
    ObservationKind::Exec {
        parent,
        filename: bytes(path),
        file: FileId::default(),
        path: bytes(path),
        argv: bytes(&argv.join("\0")),
        anonymous: false,
    }
}

pub(crate) fn notice_of(process: ProcessId, parent: ProcessId, command: &str, cwd: &str) -> LaunchNotice {
    LaunchNotice {
        process,
        parent,
        command_digest: super::text::hex(&sha(command)),
        plan: "p".into(),
        per_call: false,
        fence: "default".into(),
        cwd: cwd.into(),
        receipt: Receipt::default(),
    }
}
