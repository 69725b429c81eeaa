//! What `cargo xtask bench rules` measures: exec and connect of a marked process with no rules, with 128, and with
//! 10 000 addresses; beside it the same process watched by bpftrace, which is what one would use otherwise. Then each
//! program's own time, by the kernel's statistics (`kernel.bpf_stats_enabled`).
//!
//! Run as root with N UID ACTOR; prints one JSON object: `{"exec": {NAME: [us…]}, "connect": {…},
//! "notes": [TEXT…]}`.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringfence::kernel::{self, Kernel};
use ringfence::probe::protocol::{IDENTIFIED, Role};
use ringfence::probe::rules::{AddressRule, ObjectRule, PortRule, RuleSet};
use ringfence::process;
use ringfence_common::rules::{OBJECT_EXEC_REFUSED, gate};
use serde_json::{Value, json};

/// Rounds in which the contenders alternate.
const ROUNDS: usize = 5;
/// Executables and prefixes that are refused with "128 rules": half of each.
const RULES: usize = 128;
/// Addresses with "10000 addresses".
const ADDRESSES: u32 = 10_000;
/// Where the kernel's statistics are switched.
const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";
/// What one would watch the same with.
const WATCH: &str = "tracepoint:syscalls:sys_enter_execve { printf(\"%d %s\\n\", pid, str(args->filename)); } \
                     tracepoint:syscalls:sys_enter_connect { printf(\"%d %d\\n\", pid, args->fd); }";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let run = || {
        let [n, uid, actor] = &words[..] else { anyhow::bail!("usage: rules N UID ACTOR") };
        run(&Ground { n: n.parse()?, uid: uid.parse()?, actor: actor.into() })
    };
    match run() {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench rules: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What is measured: a program, run by somebody.
struct Ground {
    n: usize,
    uid: u32,
    actor: PathBuf,
}

fn run(ground: &Ground) -> anyhow::Result<Value> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let programs = tempfile::tempdir()?;
    let each = ground.n.div_ceil(ROUNDS);
    let mut exec = [const { Vec::new() }; 5];
    let mut connect = [const { Vec::new() }; 5];
    let mut notes = Vec::new();
    for round in 0..ROUNDS {
        measure(ground, each, port, (&mut exec[0], &mut connect[0]), |_| Ok(()))?;
        match Watcher::start() {
            Ok(_watcher) => measure(ground, each, port, (&mut exec[1], &mut connect[1]), |_| Ok(()))?,
            Err(error) if round == 0 => notes.push(format!("rules: bpftrace cannot watch here: {error:#}")),
            Err(_) => {}
        }
        let mut bench = Loaded::new(ground.uid)?;
        for (index, rules) in [RuleSet::default(), few(&mut bench, programs.path())?, many()].into_iter().enumerate() {
            // Of the last round with the usual number of rules: the statistics cost time themselves.
            let statistics = if index == 1 && round == ROUNDS - 1 { Some(Statistics::start()?) } else { None };
            let session = bench.session;
            measure(ground, each, port, (&mut exec[2 + index], &mut connect[2 + index]), |pid| {
                let root = process::stat(pid)?.id;
                bench.kernel.set_rules(session, &rules, &rules)?;
                bench.kernel.enrol(session, root, Role::Launched)?;
                Ok(())
            })?;
            match statistics.map(Statistics::read) {
                Some(Ok(lines)) => notes.extend(lines),
                Some(Err(error)) => notes.push(format!("rules: no statistics of the programs: {error:#}")),
                None => {}
            }
            bench.renew()?;
        }
    }
    const NAMES: [&str; 5] = ["no programs", "bpftrace", "no rules", "128 rules", "10000 addresses"];
    let named = |samples: [Vec<f64>; 5]| -> serde_json::Map<String, Value> {
        NAMES.into_iter().zip(samples).map(|(name, samples)| (name.to_owned(), json!(samples))).collect()
    };
    Ok(json!({ "exec": named(exec), "connect": named(connect), "notes": notes }))
}

/// The programs, with a session of the measuring user.
struct Loaded {
    kernel: Kernel,
    session: u64,
    pins: PathBuf,
    uid: u32,
}

impl Loaded {
    fn new(uid: u32) -> anyhow::Result<Loaded> {
        let pins = Path::new("/sys/fs/bpf").join(format!("ringfence-bench-{}", std::process::id()));
        kernel::ensure_bpffs(&pins)?;
        let cgroup = kernel::find_cgroup2().context("no cgroup v2 hierarchy is mounted")?;
        let options = kernel::Options { pin_dir: pins.clone(), cgroup, ..kernel::Options::default() };
        let mut kernel = Kernel::start(&options)?;
        let session = kernel.open_session(uid)?;
        Ok(Loaded { kernel, session, pins, uid })
    }

    /// A new session: the old one's rules have been measured.
    fn renew(&mut self) -> anyhow::Result<()> {
        self.kernel.close_session(self.session)?;
        self.kernel.sweep_rules(&|_| false)?;
        self.session = self.kernel.open_session(self.uid)?;
        Ok(())
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Err(error) = Kernel::unload(&self.pins) {
            eprintln!("{}: {error}", self.pins.display());
        }
    }
}

/// Half of [`RULES`] executables that nobody runs, half of them networks that nobody connects to.
fn few(bench: &mut Loaded, directory: &Path) -> anyhow::Result<RuleSet> {
    let mut objects = Vec::new();
    let paths: Vec<_> = (0..RULES / 2).map(|index| directory.join(format!("refused-{index}"))).collect();
    for paths in paths.chunks(IDENTIFIED) {
        let open = |path: &PathBuf| Ok::<OwnedFd, std::io::Error>(File::create(path)?.into());
        let files = paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let found = bench.kernel.identify_held(bench.session, files)?;
        objects.extend(found.into_iter().map(|file| ObjectRule {
            file,
            bits: OBJECT_EXEC_REFUSED,
            label: 1,
            state: 0,
        }));
    }
    let addresses4 = (0..RULES as u32 / 2).map(|index| refused(0x0a00_0000 | (index << 16), 16)).collect();
    Ok(RuleSet { objects, addresses4, ..RuleSet::default() })
}

fn many() -> RuleSet {
    let addresses4 = (0..ADDRESSES).map(|index| refused(0x0a00_0000 + index * 7, 32)).collect();
    RuleSet { addresses4, ..RuleSet::default() }
}

fn refused(address: u32, bits: u8) -> AddressRule<[u8; 4]> {
    let gates = (1 << gate::CONNECT) | (1 << gate::DATAGRAM);
    let ports = vec![PortRule { first: 0, last: u16::MAX, gates, refused: true }];
    AddressRule { address: address.to_be_bytes(), bits, ports }
}

/// Runs the actor, which waits until `prepare` has seen its pid.
fn measure(
    ground: &Ground,
    n: usize,
    port: u16,
    (exec, connect): (&mut Vec<f64>, &mut Vec<f64>),
    prepare: impl FnOnce(u32) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut actor = Command::new(&ground.actor);
    actor.uid(ground.uid).gid(ground.uid).current_dir("/");
    actor.arg(n.to_string()).arg(port.to_string()).arg("--wait");
    let mut child = actor.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting the actor")?;
    let mut lines = BufReader::new(child.stdout.take().context("the actor's output")?).lines();
    ensure!(lines.next().transpose()?.as_deref() == Some("ready"), "the actor is not ready");
    prepare(child.id())?;
    child.stdin.take().context("the actor's input")?.write_all(b"go\n")?;
    for line in lines {
        let line: Value = serde_json::from_str(&line?)?;
        exec.push(line["exec_us"].as_f64().context("exec_us")?);
        connect.push(line["connect_us"].as_f64().context("connect_us")?);
    }
    ensure!(child.wait()?.success(), "the actor failed");
    Ok(())
}

/// A running bpftrace, which ends with this.
struct Watcher(Child);

impl Watcher {
    fn start() -> anyhow::Result<Watcher> {
        let mut command = Command::new("bpftrace");
        command.args(["-q", "-e", &format!("BEGIN {{ printf(\"attached\\n\"); }} {WATCH}")]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("starting bpftrace")?;
        let mut out = BufReader::new(child.stdout.take().context("its output")?);
        let mut first = String::new();
        out.read_line(&mut first)?;
        if first.trim() != "attached" {
            let said = child.wait_with_output()?;
            anyhow::bail!("{}", String::from_utf8_lossy(&said.stderr).trim());
        }
        // Somebody has to read what it prints.
        std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        Ok(Watcher(child))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let begun = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The kernel's statistics, on until this is read or dropped.
struct Statistics {
    before: String,
}

impl Statistics {
    fn start() -> anyhow::Result<Statistics> {
        let before = std::fs::read_to_string(STATISTICS)?;
        std::fs::write(STATISTICS, "1")?;
        Ok(Statistics { before })
    }

    /// One line per program of ours that ran.
    fn read(self) -> anyhow::Result<Vec<String>> {
        let output = Command::new("bpftool").args(["--json", "prog", "show"]).output().context("starting bpftool")?;
        let programs: Vec<Value> = serde_json::from_slice(&output.stdout).context("reading what bpftool said")?;
        let ours = programs.iter().filter_map(|program| {
            let name = program["name"].as_str().filter(|name| name.starts_with("rf_"))?;
            let (time, runs) =
                (program["run_time_ns"].as_u64()?, program["run_cnt"].as_u64().filter(|runs| *runs > 0)?);
            Some(format!("{name}: {} ns a run, {runs} runs (kernel statistics, 128 rules)", time / runs))
        });
        Ok(ours.collect())
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        let _ = std::fs::write(STATISTICS, &self.before);
    }
}
