//! The join at scale: 2 000 tool calls in 8 interleaved sessions with equal commands, losses, reordering, reused pids and
//! parallel equal calls that end in another order than they began. How well launches are bound is measured and asserted.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, HashSet};

use super::entry::{Binding, Verdict};
use super::join::{Fact, FileState};
use super::scene::{HOST_VERSION, Ledger, MS, decision, exec_of, line, notice_of, sha};
use crate::host::{HostKind, ToolClass};
use crate::policy::judge::Outcome;
use crate::probe::protocol::{Counters, Mark, Observation, ObservationKind, Peer, Role};
use crate::process::ProcessId;

const SEEDS: [u64; 4] = [1, 20_261_130, 0xdead_beef, 77];
const SESSIONS: usize = 8;
const CALLS: usize = 2000;
/// Of a thousand kernel events, and of a thousand notices.
const LOST: u64 = 10;
const COMMANDS: [&str; 9] =
    ["ls -la", "git status", "cargo test", "make", "flaky", "echo 'it'", "npm test", "cat <<EOF\nx\nEOF", "sleep 1"];

/// xorshift64*: the same numbers everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    fn one_in(&mut self, thousand: u64) -> bool {
        self.below(1000) < thousand
    }
}

/// What really happened to one call.
struct Truth {
    launch: Option<u64>,
    denied: bool,
    port: u16,
    late: bool,
    programs: u64,
    exit: i32,
    lost: bool,
}

struct World {
    dice: Dice,
    /// Facts by the time they arrive at.
    facts: Vec<(u64, Fact)>,
    truths: HashMap<(String, String), Truth>,
    counters: HashMap<String, Counters>,
    next_launch: u64,
    next_port: u16,
    in_use: HashMap<u32, Vec<(u64, u64)>>,
    next_pid: u32,
    unhooked: HashMap<String, u64>,
    internal: HashMap<String, u64>,
}

struct Host {
    session: String,
    mark: u64,
    process: ProcessId,
    cwd: String,
}

impl World {
    /// Small pids that come round again and again; two that live at once differ, and so do the starts of a reused one.
    fn pid(&mut self, from: u64, until: u64) -> ProcessId {
        let tick = 10 * MS;
        loop {
            self.next_pid = 300 + (self.next_pid - 299) % 700;
            let lives = self.in_use.entry(self.next_pid).or_default();
            if lives.iter().all(|(began, ended)| ended / tick + 1 < from / tick || until / tick + 1 < began / tick) {
                lives.push((from, until));
                return ProcessId { pid: self.next_pid, start: from / tick };
            }
        }
    }

    fn at(&mut self, time: u64, jitter_ms: u64, fact: Fact) {
        let late = if self.dice.one_in(10) { self.dice.below(600) } else { self.dice.below(jitter_ms) };
        self.facts.push((time + late * MS, fact));
    }

    /// A kernel event; answers whether it was lost.
    fn observe(&mut self, host: &Host, time_ns: u64, process: ProcessId, launch: u64, kind: ObservationKind) -> bool {
        let lost = self.dice.one_in(LOST);
        let counters = self.counters.entry(host.session.clone()).or_default();
        counters.attempted += 1;
        if lost {
            counters.lost += 1;
            return true;
        }
        counters.reported += 1;
        let role = if launch > 0 { Role::Launched } else { Role::Internal };
        let mark = Mark { session: host.mark, launch, generation: 1, role };
        self.at(time_ns, 60, Fact::Observed(Observation { time_ns, mark, process, thread: process.pid, kind }));
        false
    }

    fn decide(&mut self, host: &Host, call: &str, command: &str, outcome: Outcome, time_ns: u64) {
        let fact = Fact::Decided {
            session: host.session.clone(),
            call_id: call.into(),
            tool: "Bash".into(),
            class: ToolClass::ShellExec,
            summary: "redacted".into(),
            command_digest: Some(sha(command)),
            cwd: host.cwd.clone(),
            decision: decision(outcome),
            file: None::<FileState>,
            time_ns,
        };
        self.at(time_ns, 20, fact);
    }

    /// One call from its decision to its end; answers with the time the host reported it.
    fn call(&mut self, host: &Host, call: String, command: &str, decided: u64) -> u64 {
        let key = (host.session.clone(), call.clone());
        self.next_port = self.next_port.wrapping_add(1);
        let port = self.next_port;
        let mut truth = Truth { launch: None, denied: false, port, late: false, programs: 0, exit: 0, lost: false };
        let fate = self.dice.below(100);
        let outcome = if fate < 4 { Outcome::Deny } else { Outcome::NoOverride };
        self.decide(host, &call, command, outcome, decided);
        if fate < 7 {
            truth.denied = fate < 4;
            self.truths.insert(key, truth);
            return decided + 20 * MS;
        }
        self.next_launch += 1;
        let launch = self.next_launch;
        let start = decided + (2 + self.dice.below(30)) * MS;
        let duration = (5 + self.dice.below(900)) * MS;
        let end = start + 8 * MS + duration;
        let background = fate >= 96;
        let shell = self.pid(start, end);
        let text = line(command);
        let quoted = format!("/opt/ringfence-exec '{}'", text.replace('\'', r#"'"'"'"#));
        let mut lost = false;
        lost |= self.observe(host, start, host.process, 0, ObservationKind::Fork { child: shell });
        lost |= self.observe(
            host,
            start + MS,
            shell,
            0,
            exec_of(host.process, "/usr/bin/bash", &["/bin/bash", "-c", &quoted]),
        );
        lost |= self.observe(
            host,
            start + 2 * MS,
            shell,
            launch,
            exec_of(host.process, "/opt/ringfence-exec", &["/opt/ringfence-exec", &text]),
        );
        if !self.dice.one_in(LOST) {
            let notice = notice_of(shell, host.process, command, &host.cwd);
            let fact = Fact::Launched {
                notice,
                mark: Some((host.mark, launch)),
                session: Some(host.session.clone()),
                time_ns: start + 3 * MS,
            };
            self.at(start + 3 * MS, 30, fact);
        }
        lost |= self.observe(
            host,
            start + 4 * MS,
            shell,
            launch,
            exec_of(host.process, "/usr/bin/bash", &["/bin/bash", "-c", &text]),
        );
        truth.programs = 1;
        for nth in 0..self.dice.below(4) {
            let (from, until) = (start + (5 + nth) * MS, start + (6 + nth) * MS);
            let child = self.pid(from, until);
            lost |= self.observe(host, from, shell, launch, ObservationKind::Fork { child });
            lost |= self.observe(host, from + MS / 2, child, launch, exec_of(shell, "/usr/bin/tool", &["tool"]));
            lost |= self.observe(host, until, child, launch, ObservationKind::Exit { code: 0, signal: 0 });
            truth.programs += 1;
        }
        // A child that leaves the session connects after the call is over.
        truth.late = self.dice.one_in(100);
        let connects = if truth.late { end + 3000 * MS } else { start + 6 * MS };
        let child = self.pid(start + 6 * MS, connects + 20 * MS);
        lost |= self.observe(host, start + 6 * MS, shell, launch, ObservationKind::Fork { child });
        let peer = Peer::V4([127, 0, 0, 1], port);
        let attempt = launch;
        lost |= self.observe(
            host,
            connects,
            child,
            launch,
            ObservationKind::Connect { attempt, peer, socket_type: 1, refused: false, resolved: None },
        );
        lost |= self.observe(host, connects + 1, child, launch, ObservationKind::ConnectResult { attempt, errno: 0 });
        lost |= self.observe(host, connects + 10 * MS, child, launch, ObservationKind::Exit { code: 0, signal: 0 });
        let exit = if self.dice.one_in(200) { 1 + self.dice.below(3) as u8 } else { 0 };
        truth.exit = i32::from(exit);
        lost |= self.observe(host, end, shell, launch, ObservationKind::Exit { code: exit, signal: 0 });
        let reported = if background { start + 10 * MS } else { end + (2 + self.dice.below(25)) * MS };
        let failed = exit != 0 && !background;
        let exit_code = (failed && self.dice.one_in(800)).then_some(i32::from(exit));
        // What the host measures: some more than the launch lived. Not every version says it.
        let lived = if background { 10 } else { (end - start) / MS };
        let duration_ms = (!self.dice.one_in(20)).then_some(lived + 1 + self.dice.below(8));
        let result = Fact::HostResult {
            session: host.session.clone(),
            call_id: call,
            failed,
            exit_code,
            duration_ms,
            file: None,
            time_ns: reported,
        };
        self.at(reported, 20, result);
        truth.launch = Some(launch);
        truth.lost = lost;
        self.truths.insert(key, truth);
        reported
    }

    /// What the host does beside its calls.
    fn beside(&mut self, host: &Host, time: u64) {
        let child = self.pid(time, time + 5 * MS);
        let stranger = self.dice.one_in(40);
        self.observe(host, time, host.process, 0, ObservationKind::Fork { child });
        let argv: &[&str] = if stranger { &["nc", "-l"] } else { &["rg", "--no-config", "--files"] };
        if !self.observe(host, time + MS, child, 0, exec_of(host.process, "/usr/bin/x", argv)) {
            let counter = if stranger { &mut self.unhooked } else { &mut self.internal };
            *counter.entry(host.session.clone()).or_default() += 1;
        }
        self.observe(host, time + 4 * MS, child, 0, ObservationKind::Exit { code: 0, signal: 0 });
    }
}

fn generate(seed: u64) -> (World, Vec<Host>) {
    let mut world = World {
        dice: Dice(seed | 1),
        facts: Vec::new(),
        truths: HashMap::new(),
        counters: HashMap::new(),
        next_launch: 0,
        next_port: 1024,
        in_use: HashMap::new(),
        next_pid: 300,
        unhooked: HashMap::new(),
        internal: HashMap::new(),
    };
    let mut hosts = Vec::new();
    for nth in 0..SESSIONS {
        // Two sessions share each directory.
        let host = Host {
            session: format!("s{nth}"),
            mark: 40 + nth as u64,
            process: ProcessId { pid: 10 + nth as u32, start: 1 },
            cwd: format!("/w/{}", nth / 2),
        };
        let opened = Fact::SessionOpened {
            session: host.session.clone(),
            host: HostKind::ClaudeCode,
            host_version: Some(HOST_VERSION.into()),
            host_process: Some(host.process),
            mark: Some(host.mark),
            complete: true,
            time_ns: 1_000_000 * MS,
        };
        world.facts.push((1_000_000 * MS, opened));
        let mut time = (1_000_050 + world.dice.below(2000)) * MS;
        let mut made = 0;
        while made < CALLS / SESSIONS {
            let parallel = (1 + world.dice.below(4) as usize).min(CALLS / SESSIONS - made);
            let equal = world.dice.one_in(500);
            let pick = |dice: &mut Dice| COMMANDS[dice.below(COMMANDS.len() as u64) as usize];
            let first = pick(&mut world.dice);
            let mut over = time;
            for _ in 0..parallel {
                let command = if equal { first } else { pick(&mut world.dice) };
                let decided = time + world.dice.below(12) * MS;
                over = over.max(world.call(&host, format!("c{made}"), command, decided));
                made += 1;
            }
            let beside = time + world.dice.below(40) * MS;
            if world.dice.one_in(300) {
                world.beside(&host, beside);
            }
            time = over + (5 + world.dice.below(400)) * MS;
        }
        world.facts.push((
            time + 20_000 * MS,
            Fact::SessionClosed { session: host.session.clone(), time_ns: time + 20_000 * MS },
        ));
        hosts.push(host);
    }
    let last = world.facts.iter().map(|(at, _)| *at).max().unwrap_or_default();
    for second in 0..(last / MS - 1_000_000) / 500 + 60 {
        let time_ns = (1_000_000 + second * 500) * MS;
        world.facts.push((time_ns, Fact::Tick { time_ns }));
    }
    for (session, counters) in world.counters.clone() {
        world.facts.push((last - 30_000 * MS, Fact::Counted { session, counters }));
    }
    world.facts.sort_by_key(|(at, _)| *at);
    (world, hosts)
}

#[test]
fn two_thousand_calls_are_bound_to_what_they_ran() {
    for seed in SEEDS {
        let (world, hosts) = generate(seed);
        let mut ledger = Ledger::new();
        let facts = world.facts.len();
        for (_, fact) in world.facts {
            ledger.take(fact);
        }
        let launches = world.truths.values().filter(|t| t.launch.is_some()).count();
        assert_eq!(world.truths.len(), CALLS);
        let session_of: BTreeMap<u64, &str> =
            world.truths.iter().filter_map(|((session, _), t)| Some((t.launch?, session.as_str()))).collect();

        let (mut bound, mut right, mut strays, mut attributed, mut connections) = (0, 0, 0, 0, 0);
        let mut wrong_verdicts = Vec::new();
        let mut seen = HashSet::new();
        for report in ledger.joiner.report(None).into_iter() {
            assert!(hosts.iter().any(|host| host.session == report.id));
        }
        for entry in ledger.entries.values() {
            let session = entry_session(&ledger, &entry.id, &world.truths, entry.call_id.as_deref());
            let Some(call) = &entry.call_id else {
                strays += u64::from(entry.verdict == Verdict::Unhooked);
                continue;
            };
            let truth = &world.truths[&(session.clone(), call.clone())];
            assert!(seen.insert((session.clone(), call.clone())), "one entry per call");
            if let Some(number) = entry.launch.as_ref().and_then(|l| l.number) {
                assert_eq!(session_of[&number], session, "never bound across sessions");
                assert_ne!(entry.binding, Binding::None);
                bound += 1;
                right += usize::from(truth.launch == Some(number));
            }
            for connection in &entry.connections {
                connections += 1;
                attributed += usize::from(connection.peer == format!("127.0.0.1:{}", truth.port));
            }
            let expected = match (truth.denied, truth.launch) {
                (true, _) => [Verdict::Blocked, Verdict::Blocked],
                (false, None) => [Verdict::NotExecuted, Verdict::Unobserved],
                (false, Some(_)) => [Verdict::Confirmed, Verdict::Confirmed],
            };
            if !expected.contains(&entry.verdict) {
                wrong_verdicts.push((
                    session,
                    call.clone(),
                    entry.verdict,
                    entry.why.clone(),
                    truth.launch,
                    truth.lost,
                ));
            } else if !truth.lost
                && truth.launch.is_some()
                && truth.launch == entry.launch.as_ref().and_then(|l| l.number)
            {
                let exit = entry.launch.as_ref().and_then(|l| l.exit).map(|e| e.code);
                let seen = (entry.counts.executions, exit, entry.counts.connections);
                assert_eq!(seen, (truth.programs, Some(truth.exit), 1), "late: {}, {entry:#?}", truth.late);
            }
        }
        let precision = right as f64 / bound as f64;
        let recall = right as f64 / launches as f64;
        let attribution = f64::from(attributed as u32) / f64::from(connections.max(1));
        let unhooked: u64 = world.unhooked.values().sum();
        println!(
            "seed {seed}: {facts} facts, {CALLS} calls, {launches} launches: {bound} bound, precision {:.2} %, recall {:.2} %, \
             connections at their call {:.2} %, unhooked {strays} of {unhooked} real, {} verdicts off",
            100.0 * precision,
            100.0 * recall,
            100.0 * attribution,
            wrong_verdicts.len()
        );
        for wrong in wrong_verdicts.iter().take(12) {
            println!("  {wrong:?}");
        }
        assert!(precision >= 0.99 && recall >= 0.99 && attribution >= 0.99, "seed {seed}");
        assert!(wrong_verdicts.len() <= CALLS / 100, "seed {seed}");
        let internal: u64 = ledger.sessions.values().map(|s| s.host_internal).sum();
        assert_eq!(internal, world.internal.values().sum::<u64>(), "seed {seed}: the host's own programs");
    }
}

/// The session of an entry: by its call, which only one session has made under that id at that time.
fn entry_session(ledger: &Ledger, id: &str, truths: &HashMap<(String, String), Truth>, call: Option<&str>) -> String {
    let session = ledger.session_of.get(id).cloned().unwrap_or_default();
    assert!(call.is_none_or(|call| truths.contains_key(&(session.clone(), call.to_owned()))));
    session
}
