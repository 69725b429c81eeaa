//! What one launch did, folded: the first and the last programs, equal connections and refusals once. Bounded.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use sha2::{Digest, Sha256};

use super::entry::{ConnectOutcome, Connection, Counts, Entry, Execution, Exit, Layer, More, Refusal};
use super::refusal::Attributed;
use super::text::{cut, hex, shown};
use crate::probe::protocol::{Bytes, Peer};
use crate::process::ProcessId;

/// Programs kept at each end of a launch.
const ENDS: usize = 48;
/// Distinct connections, and distinct refusals, kept of a launch.
const DISTINCT: usize = 64;
/// Connects whose result is awaited.
const AWAITED: usize = 256;
/// Longest path or peer, in bytes.
const PATH_BYTES: usize = 1024;
/// Longest redacted words of a program, in bytes.
const SUMMARY_BYTES: usize = 200;

/// When the machine was booted, to tell wall time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// CLOCK_REALTIME minus CLOCK_BOOTTIME, in nanoseconds.
    pub boot_unix_ns: i64,
}

impl Clock {
    /// RFC 3339 in UTC, to the microsecond.
    pub fn wall(self, boottime_ns: u64) -> String {
        let ns = i128::from(self.boot_unix_ns) + i128::from(boottime_ns);
        let micros = i64::try_from(ns / 1000).unwrap_or(0);
        jiff::Timestamp::from_microsecond(micros).unwrap_or_default().to_string()
    }
}

/// A program that was started.
#[derive(Clone, Debug)]
pub(super) struct Started<'a> {
    pub process: ProcessId,
    pub parent: u32,
    pub time_ns: u64,
    pub filename: &'a Bytes,
    pub path: &'a Bytes,
    pub argv: &'a Bytes,
    pub anonymous: bool,
    pub summary: String,
}

#[derive(Clone, Debug)]
struct Ran {
    process: ProcessId,
    time_ns: u64,
    execution: Execution,
}

#[derive(Clone, Debug)]
struct Connected {
    first_ns: u64,
    last_ns: u64,
    connection: Connection,
}

#[derive(Clone, Debug)]
struct Awaited {
    thread: u32,
    attempt: u64,
    connected: Connected,
}

/// Where a connection goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub peer: &'a Peer,
    /// As the kernel numbers it.
    pub socket_type: u8,
    /// The process outside the tree that listens there, if the kernel knows it.
    pub broker: Option<u32>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Fold {
    first: Vec<Ran>,
    last: VecDeque<Ran>,
    connections: Vec<Connected>,
    awaited: VecDeque<Awaited>,
    refusals: Vec<Refusal>,
    more: More,
    counts: Counts,
    /// Exits of processes whose programs are still listed.
    exits: HashMap<ProcessId, Exit>,
    /// What was stored before the service started again: shown first, never changed.
    before: (Vec<Execution>, Vec<Connection>, Vec<Refusal>),
}

impl Fold {
    /// Goes on from what an entry already lists.
    pub(super) fn resumed(entry: &Entry) -> Fold {
        Fold {
            before: (entry.executions.clone(), entry.connections.clone(), entry.refusals.clone()),
            counts: entry.counts,
            more: entry.more,
            ..Fold::default()
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn more(&self) -> More {
        self.more
    }

    pub(super) fn new_process(&mut self) {
        self.counts.processes += 1;
    }

    pub(super) fn started(&mut self, started: Started<'_>) {
        let Started { process, parent, time_ns, filename, path, argv, anonymous, summary } = started;
        self.counts.executions += 1;
        let known = !path.bytes.is_empty();
        let file = shown(if known { &path.bytes } else { &filename.bytes });
        let is_script =
            known && filename.bytes.rsplit(|b| *b == b'/').next() != path.bytes.rsplit(|b| *b == b'/').next();
        let execution = Execution {
            pid: process.pid,
            path: cut(file, PATH_BYTES),
            started: String::new(),
            exit: self.exits.get(&process).copied(),
            parent,
            script: is_script.then(|| cut(shown(&filename.bytes), PATH_BYTES)),
            summary: cut(super::text::shown_text(&summary), SUMMARY_BYTES),
            argv_digest: (!argv.truncated).then(|| hex(&Sha256::digest(&argv.bytes))),
            replaced: false,
            anonymous,
        };
        // The same process ran another program before: that one has no end of its own. Events may come late, so the
        // programs of a process are put in order by their times.
        let ran = Ran { process, time_ns, execution };
        if self.first.len() < ENDS {
            self.first.push(ran);
        } else {
            self.last.push_back(ran);
            if self.last.len() > ENDS {
                let gone = self.last.pop_front().map(|ran| ran.process);
                self.more.executions += 1;
                if let Some(gone) = gone
                    && !self.all().any(|ran| ran.process == gone)
                {
                    self.exits.remove(&gone);
                }
            }
        }
    }

    pub(super) fn exit_of(&self, process: ProcessId) -> Option<Exit> {
        self.exits.get(&process).copied()
    }

    fn all(&self) -> impl Iterator<Item = &Ran> {
        self.first.iter().chain(&self.last)
    }

    pub(super) fn exited(&mut self, process: ProcessId, exit: Exit) {
        // An exit that overtakes its exec is kept too, but not without bound.
        if self.exits.len() < 4 * ENDS || self.all().any(|ran| ran.process == process) {
            self.exits.insert(process, exit);
        }
    }

    pub(super) fn connecting(
        &mut self,
        process: ProcessId,
        thread: u32,
        attempt: u64,
        time_ns: u64,
        what: Target<'_>,
        refused: bool,
    ) {
        let (family, peer) = peer_in_words(what.peer);
        let connection = Connection {
            family: family.into(),
            peer,
            outcome: if refused { ConnectOutcome::Refused } else { ConnectOutcome::Attempted },
            layer: refused.then_some(Layer::Cgroup),
            count: 1,
            pid: process.pid,
            started: String::new(),
            last: String::new(),
            socket: socket_in_words(what.socket_type).into(),
            errno: None,
            broker: what.broker,
        };
        self.counts.connections += 1;
        let connected = Connected { first_ns: time_ns, last_ns: time_ns, connection };
        if refused {
            let what = format!("connect {}", connected.connection.peer);
            self.merge(connected);
            self.refused(process.pid, 1, what, Attributed { layer: Layer::Cgroup, inferred: false, rule: None });
            return;
        }
        self.awaited.push_back(Awaited { thread, attempt, connected });
        if self.awaited.len() > AWAITED
            && let Some(oldest) = self.awaited.pop_front()
        {
            self.merge(oldest.connected);
        }
    }

    /// A gate refused a connection or a datagram before it was an attempt. The refusal itself is told beside it.
    pub(super) fn connection_refused(
        &mut self,
        process: ProcessId,
        time_ns: u64,
        what: Target<'_>,
        errno: u16,
        layer: Layer,
    ) {
        let (family, peer) = peer_in_words(what.peer);
        self.counts.connections += 1;
        let connection = Connection {
            family: family.into(),
            peer,
            outcome: ConnectOutcome::Refused,
            layer: Some(layer),
            count: 1,
            pid: process.pid,
            started: String::new(),
            last: String::new(),
            socket: socket_in_words(what.socket_type).into(),
            errno: Some(errno),
            broker: what.broker,
        };
        self.merge(Connected { first_ns: time_ns, last_ns: time_ns, connection });
    }

    /// How a connect ended. Answers with the peer when some layer may have refused it.
    pub(super) fn connect_result(&mut self, thread: u32, attempt: u64, errno: u16) {
        let Some(at) = self.awaited.iter().rposition(|a| a.thread == thread && a.attempt == attempt) else { return };
        let Some(mut awaited) = self.awaited.remove(at) else { return };
        let connection = &mut awaited.connected.connection;
        (connection.outcome, connection.layer) = match i32::from(errno) {
            0 => (ConnectOutcome::Ok, None),
            libc::EINPROGRESS | libc::EAGAIN | libc::EALREADY | libc::EINTR => (ConnectOutcome::Attempted, None),
            // Which layer it was tells the refused system call, which comes beside it.
            libc::EACCES | libc::EPERM => (ConnectOutcome::Refused, Some(Layer::Other)),
            _ => (ConnectOutcome::Failed, None),
        };
        connection.errno = (errno != 0 && connection.outcome != ConnectOutcome::Attempted).then_some(errno);
        self.merge(awaited.connected);
    }

    /// A refused connect as the system call shows it: names the layer of the newest such connection of that process.
    /// Answers with the peer.
    pub(super) fn connect_refused_by(&mut self, pid: u32, layer: Layer) -> Option<String> {
        if let Some(awaited) = self.awaited.iter().rposition(|a| a.connected.connection.pid == pid)
            && let Some(Awaited { mut connected, .. }) = self.awaited.remove(awaited)
        {
            connected.connection.outcome = ConnectOutcome::Refused;
            connected.connection.layer = Some(layer);
            let peer = connected.connection.peer.clone();
            self.merge(connected);
            return Some(peer);
        }
        let refused = |c: &&mut Connected| c.connection.pid == pid && c.connection.layer == Some(Layer::Other);
        let connected = self.connections.iter_mut().rev().find(refused)?;
        connected.connection.layer = Some(layer);
        Some(connected.connection.peer.clone())
    }

    fn merge(&mut self, connected: Connected) {
        let new = &connected.connection;
        let same = |old: &&mut Connected| {
            let old = &old.connection;
            (&old.peer, &old.family, old.outcome, old.layer, &old.socket, old.errno, old.broker)
                == (&new.peer, &new.family, new.outcome, new.layer, &new.socket, new.errno, new.broker)
        };
        if let Some(old) = self.connections.iter_mut().find(same) {
            old.connection.count += 1;
            old.first_ns = old.first_ns.min(connected.first_ns);
            old.last_ns = old.last_ns.max(connected.last_ns);
        } else if self.connections.len() < DISTINCT {
            self.connections.push(connected);
        } else {
            self.more.connections += 1;
        }
    }

    pub(super) fn refused(&mut self, pid: u32, errno: u16, what: String, by: Attributed) {
        self.refused_times(pid, errno, what, by, 1);
    }

    fn refused_times(&mut self, pid: u32, errno: u16, what: String, by: Attributed, times: u64) {
        let Attributed { layer, inferred, rule } = by;
        let counter = if layer == Layer::Other { &mut self.counts.other_refusals } else { &mut self.counts.refusals };
        *counter += times;
        let same = |old: &&mut Refusal| old.layer == layer && old.inferred == inferred && old.what == what;
        if let Some(old) = self.refusals.iter_mut().find(same) {
            old.count += times;
            return;
        }
        let refusal = Refusal { layer, what, rule, count: times, pid, errno, inferred };
        if self.refusals.len() < DISTINCT {
            self.refusals.push(refusal);
            return;
        }
        // What the fence refused is never crowded out by what ordinary permissions refuse.
        self.more.refusals += times;
        if layer != Layer::Other
            && let Some(place) = self.refusals.iter_mut().find(|old| old.layer == Layer::Other)
        {
            *place = refusal;
        }
    }

    /// What a part of this launch, taken for one of its own until now, was refused.
    pub(super) fn take_refusals_of(&mut self, part: Fold) {
        for Refusal { layer, what, rule, count, pid, errno, inferred } in part.refusals {
            self.refused_times(pid, errno, what, Attributed { layer, inferred, rule }, count);
        }
    }

    /// Whether a layer of the fence is known to have refused something.
    pub(super) fn fence_refused(&self) -> bool {
        let known = self.before.2.iter().chain(&self.refusals);
        known.into_iter().any(|r| !r.inferred && r.layer.is_fence())
    }

    /// The lists as an entry shows them.
    pub(super) fn lists(&self, clock: Clock) -> (Vec<Execution>, Vec<Connection>, Vec<Refusal>) {
        let mut all: Vec<&Ran> = self.all().collect();
        all.sort_by_key(|ran| ran.time_ns);
        let mut latest: HashMap<ProcessId, usize> = HashMap::new();
        for (index, ran) in all.iter().enumerate() {
            latest.insert(ran.process, index);
        }
        let listed = all.iter().enumerate().map(|(index, ran)| {
            let mut execution = ran.execution.clone();
            execution.started = clock.wall(ran.time_ns);
            execution.replaced = latest[&ran.process] != index;
            execution.exit = self.exits.get(&ran.process).copied().filter(|_| !execution.replaced);
            execution
        });
        let awaited = self.awaited.iter().map(|a| &a.connected);
        let connections = self.connections.iter().chain(awaited).map(|connected| {
            let mut connection = connected.connection.clone();
            connection.started = clock.wall(connected.first_ns);
            connection.last = clock.wall(connected.last_ns);
            connection
        });
        let (mut executions, mut connected, mut refusals) = self.before.clone();
        executions.extend(listed);
        connected.extend(connections);
        refusals.extend(self.refusals.iter().cloned());
        (executions, connected, refusals)
    }
}

/// Both together.
pub(super) fn sum(a: Counts, b: Counts) -> Counts {
    Counts {
        processes: a.processes + b.processes,
        executions: a.executions + b.executions,
        connections: a.connections + b.connections,
        refusals: a.refusals + b.refusals,
        other_refusals: a.other_refusals + b.other_refusals,
    }
}

fn socket_in_words(socket_type: u8) -> &'static str {
    match socket_type {
        1 => "stream",
        2 => "datagram",
        _ => "other",
    }
}

pub(super) fn peer_in_words(peer: &Peer) -> (&'static str, String) {
    match peer {
        Peer::V4(address, port) => ("ipv4", SocketAddr::from((Ipv4Addr::from(*address), *port)).to_string()),
        Peer::V6(address, port) => ("ipv6", SocketAddr::from((Ipv6Addr::from(*address), *port)).to_string()),
        Peer::UnixPath(path) => ("unix", cut(shown(&path.bytes), PATH_BYTES)),
        Peer::UnixAbstract(name) => ("unix", cut(format!("@{}", shown(&name.bytes)), PATH_BYTES)),
        Peer::UnixUnnamed => ("unix", "unnamed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: ProcessId = ProcessId { pid: 10, start: 1 };

    fn bytes(text: &str) -> Bytes {
        Bytes { bytes: text.into(), truncated: false }
    }

    fn to(peer: &Peer) -> Target<'_> {
        Target { peer, socket_type: 1, broker: None }
    }

    fn run(fold: &mut Fold, process: ProcessId, time_ns: u64, path: &str) {
        let (path, argv) = (bytes(path), bytes("x"));
        fold.started(Started {
            process,
            parent: 1,
            time_ns,
            filename: &path,
            path: &path,
            argv: &argv,
            anonymous: false,
            summary: "x".into(),
        });
    }

    #[test]
    fn only_the_last_program_of_a_process_has_its_end() {
        let mut fold = Fold::default();
        fold.exited(P, Exit { code: 3, signal: None });
        run(&mut fold, P, 20, "/bin/ls");
        run(&mut fold, P, 10, "/bin/sh");
        let (executions, _, _) = fold.lists(Clock::default());
        assert_eq!((executions[0].path.as_str(), executions[0].exit, executions[0].replaced), ("/bin/sh", None, true));
        assert_eq!((executions[1].path.as_str(), executions[1].exit.unwrap().code), ("/bin/ls", 3));
    }

    #[test]
    fn a_million_events_take_bounded_room() {
        let mut fold = Fold::default();
        for n in 0..1_000_000u64 {
            let process = ProcessId { pid: n as u32, start: n };
            if n % 10 == 0 {
                run(&mut fold, process, n, "/bin/true");
                fold.exited(process, Exit { code: 0, signal: None });
            }
            fold.connecting(process, 1, n, n, to(&Peer::V4([127, 0, 0, 1], n as u16)), false);
            if n % 2 == 0 {
                fold.connect_result(1, n, 0);
            }
            fold.refused(1, 13, format!("read /{n}"), Attributed { layer: Layer::Other, inferred: false, rule: None });
        }
        let mine = Attributed { layer: Layer::Landlock, inferred: false, rule: None };
        fold.refused(1, 13, "write /x".into(), mine);
        let (executions, connections, refusals) = fold.lists(Clock::default());
        assert_eq!(executions.len(), 2 * ENDS);
        assert!(
            connections.len() <= DISTINCT + AWAITED && refusals.len() == DISTINCT && fold.exits.len() <= 4 * ENDS + 1
        );
        assert_eq!(fold.counts().executions, 100_000);
        assert_eq!(fold.more().executions, 100_000 - 2 * ENDS as u64);
        assert!(fold.fence_refused(), "a fence's refusal is not crowded out");
    }

    #[test]
    fn outcomes_are_told_apart() {
        let mut fold = Fold::default();
        let peer = Peer::V4([127, 0, 0, 1], 443);
        for (attempt, errno) in [(1, 0), (2, 0), (3, libc::EINPROGRESS), (4, libc::ECONNREFUSED), (5, libc::EACCES)] {
            fold.connecting(P, 1, attempt, 5, to(&peer), false);
            fold.connect_result(1, attempt, errno as u16);
        }
        assert_eq!(fold.connect_refused_by(10, Layer::Landlock).as_deref(), Some("127.0.0.1:443"));
        fold.connecting(P, 1, 6, 5, to(&Peer::UnixAbstract(bytes("x"))), false);
        let (_, connections, _) = fold.lists(Clock::default());
        let seen: Vec<_> = connections.iter().map(|c| (c.outcome, c.count, c.layer)).collect();
        use ConnectOutcome::*;
        let landlock = Some(Layer::Landlock);
        assert_eq!(
            seen,
            [(Ok, 2, None), (Attempted, 1, None), (Failed, 1, None), (Refused, 1, landlock), (Attempted, 1, None)]
        );
        assert_eq!(connections[4].peer, "@x");
        assert_eq!(peer_in_words(&Peer::V6([0; 16], 80)), ("ipv6", "[::]:80".into()));
    }
}
