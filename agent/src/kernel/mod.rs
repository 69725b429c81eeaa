//! The only door to the kernel programs: loading, maps, ring buffers, marks. Reached only from `probe/`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::probe::protocol::{Counters, Mark, Observation, ProgramState, Role};
use crate::process::ProcessId;

/// What the loader needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory on a bpffs where links and maps are pinned (made 0700). See [`ensure_bpffs`].
    pub pin_dir: PathBuf,
    /// The cgroup v2 directory to attach the socket programs to. See [`find_cgroup2`].
    pub cgroup: PathBuf,
    /// Executables that become `launched` when a marked task starts them.
    pub launchers: Vec<PathBuf>,
    /// Executables that become `hook` when a host starts them.
    pub hooks: Vec<PathBuf>,
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
    /// A bound was reached; its name.
    #[error("too many {0}")]
    Limit(&'static str),
}

/// The kernel programs: loaded, attached and pinned. Dropping it detaches nothing.
pub struct Kernel {
    programs: Vec<ProgramState>,
}

impl Kernel {
    /// Takes over pinned maps and links of the same map ABI, else loads afresh and pins.
    pub fn start(options: &Options) -> Result<Kernel, KernelError> {
        let _ = options;
        Err(KernelError::NoObject)
    }

    /// What loaded, what did not and why.
    pub fn programs(&self) -> Vec<ProgramState> {
        self.programs.clone()
    }

    /// Makes a session for `uid`; its number is never 0 and never given twice while the maps live.
    pub fn open_session(&mut self, uid: u32) -> Result<u64, KernelError> {
        let _ = uid;
        Err(KernelError::NoObject)
    }

    /// Forgets a session. What still lives keeps its mark, and is no longer reported.
    pub fn close_session(&mut self, session: u64) -> Result<(), KernelError> {
        Err(KernelError::UnknownSession(session))
    }

    /// The open sessions of `uid`, read from the maps, so also those of an earlier probe.
    pub fn sessions(&self, uid: u32) -> Result<Vec<u64>, KernelError> {
        let _ = uid;
        Err(KernelError::NoObject)
    }

    /// Who opened a session; `None` when it is not open.
    pub fn owner(&self, session: u64) -> Option<u32> {
        let _ = session;
        None
    }

    /// Marks every thread of `root` and of its descendants that belong to the session's owner; answers how many.
    pub fn enrol(&mut self, session: u64, root: ProcessId, role: Role) -> Result<u32, KernelError> {
        let _ = (session, root, role);
        Err(KernelError::NoObject)
    }

    /// The mark of a process, `None` when it has none.
    pub fn mark_of(&self, process: ProcessId) -> Result<Option<Mark>, KernelError> {
        let _ = process;
        Err(KernelError::NoObject)
    }

    /// What was counted for a session, all kinds together.
    pub fn counters(&self, session: u64) -> Result<Counters, KernelError> {
        Err(KernelError::UnknownSession(session))
    }

    /// Attaches or detaches the program that sees refused system calls and results of connects.
    /// Costs every process of the machine about 0.1 µs per system call while it is on.
    pub fn watch_refusals(&mut self, on: bool) -> Result<(), KernelError> {
        let _ = on;
        Err(KernelError::NoObject)
    }

    /// Whether it is attached now.
    pub fn watching_refusals(&self) -> bool {
        false
    }

    /// The two ring buffers of `uid`, made on first use. One reader at a time.
    pub fn rings(&mut self, uid: u32) -> Result<Rings, KernelError> {
        let _ = uid;
        Err(KernelError::NoObject)
    }

    /// Detaches everything and removes the pins; sessions and marks are forgotten.
    pub fn unload(pin_dir: &Path) -> Result<(), KernelError> {
        let _ = pin_dir;
        Err(KernelError::NoObject)
    }
}

/// One user's two ring buffers: refusals, and everything else.
pub struct Rings {
    refusals: OwnedFd,
    rest: OwnedFd,
}

impl Rings {
    /// What to poll for readability (level-triggered).
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.refusals.as_fd(), self.rest.as_fd()]
    }

    /// Hands over at most `max` observations, refusals first; answers how many there were.
    pub fn drain(&mut self, max: usize, sink: &mut dyn FnMut(Observation)) -> usize {
        let _ = (max, sink);
        0
    }
}

/// What [`ensure_bpffs`] found or did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bpffs {
    /// The directory is on a bpffs already.
    Present,
    /// A bpffs was mounted here; whoever asked for it unmounts it.
    Mounted(PathBuf),
}

/// Makes sure that `pin_dir` is on a bpffs: mounts one on it when it is not.
pub fn ensure_bpffs(pin_dir: &Path) -> Result<Bpffs, KernelError> {
    Err(KernelError::NotBpffs(pin_dir.to_owned()))
}

/// The first cgroup v2 mount of this mount namespace, by `/proc/self/mountinfo`.
pub fn find_cgroup2() -> Option<PathBuf> {
    None
}
