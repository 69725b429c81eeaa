//! The only door to the kernel programs: loading, maps, ring buffers, marks. Reached only from `probe/`.

mod btf;
mod call;
mod load;
mod log;
mod maps;
mod mark;
mod mount;
mod ring;
mod rules;
#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use bytemuck::Zeroable;
use ringfence_common::limits::{MAP_ABI, SESSIONS};
use ringfence_common::maps::{KindCounters, Session, State};
use ringfence_common::mark::{IDENTITY_GIT, IDENTITY_HOOK, IDENTITY_LAUNCHER, IDENTITY_OWN};
use ringfence_common::record::{
    KIND_CONNECT, KIND_CONNECT_RESULT, KIND_DENIED, KIND_EXEC, KIND_EXIT, KIND_FORK, KIND_NOTED, KIND_REFUSED, KINDS,
};
use sha2::{Digest, Sha256};

use crate::probe::protocol::{ByKind, Counted, Counters, ProgramState};
use crate::process::ProcessId;
use load::{Pins, SYS_EXIT};
use maps::Maps;
pub use mount::{Bpffs, ensure_bpffs, find_cgroup2};
pub use ring::Rings;
use rules::{RuleMaps, RuleSets};

include!(concat!(env!("OUT_DIR"), "/object.rs"));

/// What the loader needs to know.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Directory on a bpffs where links and maps are pinned (made 0700). See [`ensure_bpffs`].
    pub pin_dir: PathBuf,
    /// The cgroup v2 directory to attach the socket programs to. See [`find_cgroup2`].
    pub cgroup: PathBuf,
    /// Executables that become `launched` when a marked task starts them.
    pub launchers: Vec<PathBuf>,
    /// Executables that become `hook` when a host starts them.
    pub hooks: Vec<PathBuf>,
    /// Our other programs: outside every tree they are not signalled or traced.
    pub own: Vec<PathBuf>,
    /// The system's git and what it is made of: may write what git must.
    pub git: Vec<PathBuf>,
    /// An object to load instead of the embedded one.
    pub object: Option<PathBuf>,
}

/// Why the kernel side cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// This build carries no kernel programs.
    #[error("this build holds no kernel programs: run `cargo xtask build-ebpf`, then build again (or name an object)")]
    NoObject,
    /// The object cannot be read or is not ours.
    #[error("the kernel programs in {0} cannot be used: {1}")]
    Object(String, String),
    /// The kernel's own type information is missing or lacks a field that is needed.
    #[error(
        "the running kernel's type information cannot be used: {0} (a kernel with CONFIG_DEBUG_INFO_BTF is needed)"
    )]
    Btf(String),
    /// The pin directory is not on a bpffs.
    #[error("{0} is not on a bpffs: mount one (mount -t bpf bpf /sys/fs/bpf)")]
    NotBpffs(PathBuf),
    /// A file, mount or cgroup could not be used.
    #[error("{0}: {1}")]
    Place(PathBuf, std::io::Error),
    /// The kernel refused a call that is needed.
    #[error("the kernel refused {0}: {1}")]
    Refused(String, String),
    /// No such open session.
    #[error("session {0} is not open")]
    UnknownSession(u64),
    /// The process ended, or its pid belongs to another one now.
    #[error("process {} (started at {}) is gone", .0.pid, .0.start)]
    Gone(ProcessId),
    /// The process belongs to another user than the session.
    #[error("process {} does not belong to the owner of the session", .0.pid)]
    NotOwner(ProcessId),
    /// The process is in another open session already; its number.
    #[error("process {} is in session {} already", .0.pid, .1)]
    OtherSession(ProcessId, u64),
    /// Rules that the maps cannot hold as they are meant.
    #[error("the rules are malformed: {0}")]
    Rules(String),
    /// A bound was reached; its name.
    #[error("too many {0}")]
    Limit(&'static str),
}

/// The kernel programs: loaded, attached and pinned. Dropping it detaches nothing: marks and programs outlive the probe.
/// Needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and Linux 6.1 with BTF. One at a time per pin directory.
pub struct Kernel {
    pins: Pins,
    maps: Maps,
    programs: Vec<ProgramState>,
    taken_over: bool,
    tick_ns: u64,
    rules: RuleMaps,
    rule_sets: RuleSets,
}

impl Kernel {
    /// Takes over pinned maps of the same [`MAP_ABI`], and pinned programs of the same object, else loads afresh and
    /// pins. Pins of another version are removed.
    pub fn start(options: &Options) -> Result<Kernel, KernelError> {
        Self::start_with(options, false)
    }

    fn start_with(options: &Options, mirror: bool) -> Result<Kernel, KernelError> {
        let Options { pin_dir, cgroup, launchers, hooks, own, git, object } = options;
        let object = match object {
            Some(path) => {
                std::fs::read(path).map_err(|e| KernelError::Object(path.display().to_string(), e.to_string()))?
            }
            None => OBJECT.ok_or(KernelError::NoObject)?.to_vec(),
        };
        if !mount::on_bpffs(pin_dir) {
            return Err(KernelError::NotBpffs(pin_dir.clone()));
        }
        let digest: [u8; 32] = Sha256::digest(&object).into();
        let pins = Pins::new(pin_dir);
        let usable = Maps::open(&pins.maps(), &pins.rings()).and_then(|maps| maps.state());
        let state = match usable {
            Ok(state) if state.abi == MAP_ABI => Some(state),
            _ => {
                pins.remove()?;
                None
            }
        };
        pins.make()?;
        let usable =
            pins.usable().filter(|_| state.is_some_and(|state| state.object == digest) && !log::is_in(&object));
        let taken_over = usable.is_some();
        let programs = load::load(&object, &pins, cgroup, mirror, &usable.unwrap_or_default())?;
        let maps = Maps::open(&pins.maps(), &pins.rings())?;
        let state = State {
            abi: MAP_ABI,
            object: digest,
            tier: load::tier(&programs),
            ..state.unwrap_or(State { next_session: 1, next_generation: 1, ..State::zeroed() })
        };
        maps.state.set(&0, &state)?;
        let rules = RuleMaps::open(&pins.maps())?;
        let rule_sets = RuleSets::default();
        let mut kernel = Kernel { pins, maps, programs, taken_over, tick_ns: tick_ns(), rules, rule_sets };
        kernel.find_rules()?;
        kernel.set_identities(&[
            (launchers, IDENTITY_LAUNCHER, "launched"),
            (hooks, IDENTITY_HOOK, "hook"),
            (own, IDENTITY_OWN, "own"),
            (git, IDENTITY_GIT, "git"),
        ])?;
        kernel.programs.push(security_modules());
        Ok(kernel)
    }

    /// What is attached, what is not and why; also the files that were to give a role.
    pub fn programs(&self) -> Vec<ProgramState> {
        let refusals = self.watching_refusals();
        let current = |state: &ProgramState| match state.program.as_str() {
            SYS_EXIT if refusals => ProgramState { attached: true, reason: None, ..state.clone() },
            SYS_EXIT if state.attached => ProgramState { attached: false, ..state.clone() },
            _ => state.clone(),
        };
        self.programs.iter().map(current).collect()
    }

    /// Whether maps and programs of an earlier probe were found and are used as they are.
    pub fn taken_over(&self) -> bool {
        self.taken_over
    }

    /// Makes a session for `uid`; its number is never 0 and never given twice while the maps live.
    pub fn open_session(&mut self, uid: u32) -> Result<u64, KernelError> {
        self.maps.ensure_rings(uid)?;
        let state = self.maps.state()?;
        let session = state.next_session;
        self.maps.state.set(&0, &State { next_session: session + 1, ..state })?;
        self.maps.sessions.set(&session, &Session { uid, ..Session::zeroed() })?;
        Ok(session)
    }

    /// Forgets a session and its counters. What still lives keeps its mark, and is no longer reported.
    pub fn close_session(&mut self, session: u64) -> Result<(), KernelError> {
        if self.maps.sessions.remove(&session)? { Ok(()) } else { Err(KernelError::UnknownSession(session)) }
    }

    /// The open sessions of `uid`, read from the maps, so also those of an earlier probe.
    pub fn sessions(&self, uid: u32) -> Result<Vec<u64>, KernelError> {
        let mut sessions = self.maps.sessions.keys(SESSIONS)?;
        sessions.retain(|session| self.owner(*session) == Some(uid));
        sessions.sort_unstable();
        sessions.dedup();
        Ok(sessions)
    }

    /// Who opened a session; `None` when it is not open.
    pub fn owner(&self, session: u64) -> Option<u32> {
        self.maps.sessions.get(&session).ok().flatten().map(|session| session.uid)
    }

    /// What was counted for a session.
    pub fn counters(&self, session: u64) -> Result<Counters, KernelError> {
        let found = self.maps.sessions.get(&session)?.ok_or(KernelError::UnknownSession(session))?;
        let kind = |kind: u32| {
            let KindCounters { attempted, reported, lost } = found.counters[kind as usize];
            Counted { attempted, reported, lost }
        };
        let all = (0..KINDS as u32).map(kind).fold(Counted::default(), std::ops::Add::add);
        Ok(Counters {
            attempted: all.attempted,
            reported: all.reported,
            lost: all.lost,
            unmarked_children: found.unmarked_children,
            by_kind: ByKind {
                fork: kind(KIND_FORK),
                exec: kind(KIND_EXEC),
                exit: kind(KIND_EXIT),
                connect: kind(KIND_CONNECT),
                connect_result: kind(KIND_CONNECT_RESULT),
                syscall_refused: kind(KIND_REFUSED),
                denied: kind(KIND_DENIED),
                noted: kind(KIND_NOTED),
            },
        })
    }

    /// Attaches or detaches the program that sees refused system calls and results of connects.
    /// Costs every process of the machine about 0.1 µs per system call while it is on.
    pub fn watch_refusals(&mut self, on: bool) -> Result<(), KernelError> {
        if on == self.watching_refusals() {
            return Ok(());
        }
        let state = self.maps.state()?;
        let link = self.pins.link(SYS_EXIT);
        if on {
            let refused = |e: String| KernelError::Refused(format!("attaching {SYS_EXIT}"), e);
            let program = call::open_pin(&self.pins.program(SYS_EXIT)).map_err(|e| refused(e.to_string()))?;
            load::attach_pinned(program.as_fd(), &link).map_err(refused)?;
            // Attached first: an attempt that carries the number of this watch cannot miss its result.
            let watch = state.watches.wrapping_add(1).max(1);
            return self.maps.state.set(&0, &State { watch, watches: watch, ..state });
        }
        self.maps.state.set(&0, &State { watch: 0, ..state })?;
        std::fs::remove_file(&link).map_err(|e| KernelError::Place(link, e))
    }

    /// Whether it is attached now.
    pub fn watching_refusals(&self) -> bool {
        self.pins.link(SYS_EXIT).exists()
    }

    /// The two ring buffers of `uid`, made on first use. One reader at a time; what an earlier one left is there.
    pub fn rings(&mut self, uid: u32) -> Result<Rings, KernelError> {
        Ok(Rings::new(self.maps.rings(uid)?, self.tick_ns))
    }

    /// Detaches everything and removes the pins; sessions and marks are forgotten.
    pub fn unload(pin_dir: &Path) -> Result<(), KernelError> {
        Pins::new(pin_dir).remove()
    }

    /// Adds the files that give a role. Those of an earlier version stay valid while a session is open.
    fn set_identities(&mut self, identities: &[(&Vec<PathBuf>, u32, &str)]) -> Result<(), KernelError> {
        let mut current = Vec::new();
        for (paths, identity, role) in identities {
            for path in *paths {
                let added = self.add_identity(path, *identity);
                let reason = added.as_ref().err().map(ToString::to_string);
                let program = format!("role {role} by {}", path.display());
                self.programs.push(ProgramState { program, attached: added.is_ok(), reason });
                current.extend(added.ok());
            }
        }
        if self.maps.sessions.keys(1)?.is_empty() {
            for key in self.maps.identities.keys(ringfence_common::limits::IDENTITIES)? {
                if !current.contains(&key) {
                    self.maps.identities.remove(&key)?;
                }
            }
        }
        Ok(())
    }
}

/// Whether LSM programs are asked at all: a kernel can attach them without ever calling them.
fn security_modules() -> ProgramState {
    let (attached, reason) = match std::fs::read_to_string("/sys/kernel/security/lsm") {
        Ok(list) if list.trim().split(',').any(|module| module == "bpf") => (true, None),
        Ok(list) => {
            let list = list.trim();
            let how = format!(
                "`bpf` is not among the active security modules ({list}): boot with lsm={list},bpf to turn it on"
            );
            (false, Some(how))
        }
        Err(error) => {
            let how = format!(
                "whether `bpf` is among the active security modules cannot be read ({error}): mount -t securityfs securityfs /sys/kernel/security"
            );
            (false, Some(how))
        }
    };
    ProgramState { program: "security modules".to_owned(), attached, reason }
}

/// Nanoseconds per clock tick, the unit of a process's start time.
fn tick_ns() -> u64 {
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    1_000_000_000 / per_second.max(1) as u64
}
