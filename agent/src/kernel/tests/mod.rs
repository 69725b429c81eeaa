//! The kernel programs on the running kernel. Each test has a mount namespace with a bpffs of its own, so that pins,
//! links and programs end with it however it ends, and a watchdog that ends it.

mod actor;
mod changes;
mod deeds;
mod endurance;
mod events;
mod files;
mod lifecycle;
mod marks;
mod names;
mod network;
mod processes;
mod reach;
mod rules;
mod steering;
mod tree;
mod unix;

use std::fs::File;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::probe::protocol::{Mark, Observation, ObservationKind, Peer, Role};
use actor::Actor;

/// Ordinary users that no machine has.
const ALICE: u32 = 64_001;
const BOB: u32 = 64_002;
/// Longest time for one test, and in a guest, which is emulated.
const LIMIT: Duration = Duration::from_secs(180);
const LIMIT_IN_GUEST: Duration = Duration::from_secs(600);
/// Longest wait for an event.
const PATIENCE: Duration = Duration::from_secs(30);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A loaded kernel side, all of whose traces end with it.
struct Bench {
    kernel: Kernel,
    options: Options,
    actor: PathBuf,
    done: Arc<AtomicBool>,
    directory: tempfile::TempDir,
    _serial: MutexGuard<'static, ()>,
    _serial_processes: nix::fcntl::Flock<File>,
}

/// Why the kernel programs cannot be tested here.
fn obstacle() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("needs root".into());
    }
    if OBJECT.is_none() {
        return Some("built without kernel programs: run `cargo xtask build-ebpf`".into());
    }
    if find_cgroup2().is_none() {
        return Some("no cgroup v2 hierarchy is mounted".into());
    }
    (!Path::new(btf::VMLINUX).exists()).then(|| "the kernel has no type information".into())
}

/// In a guest, which ends with the tests, the programs stay loaded from one test to the next: an emulated processor takes
/// most of a minute to verify them.
fn kept_pins() -> Option<PathBuf> {
    std::env::var_os("RINGFENCE_GUEST").map(|_| PathBuf::from("/sys/fs/bpf/ringfence-tests"))
}

/// Sessions and events of an earlier test.
fn forget_what_was(kernel: &mut Kernel) {
    kernel.watch_refusals(false).unwrap();
    for uid in [ALICE, BOB] {
        for session in kernel.sessions(uid).unwrap() {
            kernel.close_session(session).unwrap();
        }
        let mut rings = kernel.rings(uid).unwrap();
        while rings.drain(10_000, &mut |_| ()) > 0 {}
    }
    kernel.sweep_rules(&|_| false).unwrap();
}

impl Bench {
    /// `None`, with a loud reason, where the programs cannot run.
    fn new(test: &str) -> Option<Bench> {
        Self::with(test, false)
    }

    fn with(test: &str, mirror: bool) -> Option<Bench> {
        if let Some(reason) = obstacle() {
            eprintln!("SKIPPED {test}: {reason}");
            return None;
        }
        let serial = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let this = std::env::current_exe().unwrap();
        let lock = nix::fcntl::FlockArg::LockExclusive;
        let serial_processes = nix::fcntl::Flock::lock(File::open(&this).unwrap(), lock).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        watchdog(test, done.clone());

        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let program = |name: &str| {
            let path = directory.path().join(name);
            std::fs::copy(&this, &path).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            path
        };
        let kept = kept_pins();
        let pin_dir = kept.clone().unwrap_or_else(|| {
            let bpffs = directory.path().join("bpf");
            assert_eq!(ensure_bpffs(&bpffs).unwrap(), Bpffs::Mounted(bpffs.clone()));
            bpffs.join("ringfence")
        });
        assert_eq!(ensure_bpffs(&pin_dir).unwrap(), Bpffs::Present);
        let options = Options {
            pin_dir,
            cgroup: find_cgroup2().unwrap(),
            launchers: vec![program("launcher")],
            hooks: vec![program("hook")],
            own: vec![program("own")],
            git: Vec::new(),
            object: None,
        };
        let mut kernel = Kernel::start_with(&options, mirror).unwrap();
        assert!(kept.is_some() || !kernel.taken_over());
        forget_what_was(&mut kernel);
        let actor = program("actor");
        Some(Bench { kernel, options, actor, done, directory, _serial: serial, _serial_processes: serial_processes })
    }

    fn launcher(&self) -> &Path {
        &self.options.launchers[0]
    }

    fn hook(&self) -> &Path {
        &self.options.hooks[0]
    }

    /// A directory that `uid` owns.
    fn home(&self, uid: u32) -> PathBuf {
        let home = self.directory.path().join(uid.to_string());
        std::fs::create_dir_all(&home).unwrap();
        chown(&home, Some(uid), Some(uid)).unwrap();
        home
    }

    /// An actor of Alice's in a session of its own, which has not acted yet.
    fn enrolled(&mut self, role: Role, act: &[&str]) -> (u64, Actor) {
        let session = self.kernel.open_session(ALICE).unwrap();
        let actor = Actor::start(&self.actor, ALICE, act);
        assert!(self.kernel.enrol(session, actor.id(), role).unwrap() >= 1);
        (session, actor)
    }

    /// Collects a user's observations until `enough` of them, then whatever else is there.
    fn observe(&mut self, uid: u32, mut enough: impl FnMut(&[Observation]) -> bool) -> Vec<Observation> {
        let mut rings = self.kernel.rings(uid).unwrap();
        let mut seen = Vec::new();
        let begin = Instant::now();
        loop {
            rings.drain(100_000, &mut |one| seen.push(one));
            if enough(&seen) {
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "not seen in time; seen: {seen:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(rings.malformed(), 0);
        seen
    }

    /// Everything up to the end of a process.
    fn observe_until_exit(&mut self, uid: u32, process: ProcessId) -> Vec<Observation> {
        self.observe(uid, |seen| seen.iter().any(|one| one.process == process && is_exit(&one.kind)))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let pin_dir = &self.options.pin_dir;
        if kept_pins().is_some() {
            forget_what_was(&mut self.kernel);
            self.done.store(true, Ordering::Relaxed);
            return;
        }
        Kernel::unload(pin_dir).unwrap();
        assert!(!pin_dir.exists(), "pins are left");
        umount2(&self.directory.path().join("bpf"), MntFlags::empty()).unwrap();
        self.done.store(true, Ordering::Relaxed);
    }
}

/// Ends the whole test program, and with it the mount namespaces that hold the pins, when a test hangs.
fn watchdog(test: &str, done: Arc<AtomicBool>) {
    let test = test.to_owned();
    std::thread::spawn(move || {
        let begin = Instant::now();
        while !done.load(Ordering::Relaxed) {
            if begin.elapsed() > if kept_pins().is_some() { LIMIT_IN_GUEST } else { LIMIT } {
                eprintln!("{test} took too long: everything is detached");
                std::process::abort();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
}

fn is_exit(kind: &ObservationKind) -> bool {
    matches!(kind, ObservationKind::Exit { .. })
}

fn text(bytes: &crate::probe::protocol::Bytes) -> String {
    String::from_utf8_lossy(&bytes.bytes).into_owned()
}
