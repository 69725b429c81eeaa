//! What the server needs of the kernel side: the real one here, one in memory in its tests.
#![forbid(unsafe_code)]

use std::os::fd::{BorrowedFd, OwnedFd};

use super::protocol::{Counters, FileId, Mark, Observation, ProgramState, Refusal, Role};
use super::rules::RuleSet;
use crate::kernel::{Kernel, KernelError, Rings};
use crate::process::{self, ProcessId};

/// Why the kernel side did not do it, as the probe's protocol says it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct BackendError {
    /// For programs.
    pub kind: Refusal,
    /// For the person.
    pub reason: String,
}

impl From<KernelError> for BackendError {
    fn from(error: KernelError) -> BackendError {
        let kind = match &error {
            KernelError::UnknownSession(_) | KernelError::NotOwner(_) => Refusal::NotYours,
            KernelError::Gone(_) => Refusal::Gone,
            KernelError::Limit(_) => Refusal::Limit,
            KernelError::Rules(_) => Refusal::Protocol,
            _ => Refusal::Kernel,
        };
        BackendError { kind, reason: error.to_string() }
    }
}

/// The kernel side; each method as [`Kernel`]'s of the same name.
pub trait Backend: 'static {
    /// One user's ring buffers.
    type Source: Source;

    #[expect(missing_docs, reason = "each is documented at Kernel's method of the same name")]
    fn programs(&self) -> Vec<ProgramState>;
    #[expect(missing_docs, reason = "as above")]
    fn open_session(&mut self, uid: u32) -> Result<u64, BackendError>;
    #[expect(missing_docs, reason = "as above")]
    fn close_session(&mut self, session: u64) -> Result<(), BackendError>;
    #[expect(missing_docs, reason = "as above")]
    fn sessions(&self, uid: u32) -> Result<Vec<u64>, BackendError>;
    #[expect(missing_docs, reason = "as above")]
    fn owner(&self, session: u64) -> Option<u32>;
    #[expect(missing_docs, reason = "as above")]
    fn enrol(&mut self, session: u64, root: ProcessId, role: Role) -> Result<u32, BackendError>;
    #[expect(missing_docs, reason = "as above")]
    fn mark_of(&self, process: ProcessId) -> Result<Option<Mark>, BackendError>;
    #[expect(missing_docs, reason = "as above")]
    fn counters(&self, session: u64) -> Result<Counters, BackendError>;
    #[expect(missing_docs, reason = "as above")]
    fn watch_refusals(&mut self, on: bool) -> Result<(), BackendError>;
    #[expect(missing_docs, reason = "as above")]
    fn watching_refusals(&self) -> bool;
    #[expect(missing_docs, reason = "as above")]
    fn identify_held(&mut self, session: u64, files: Vec<OwnedFd>) -> Result<Vec<FileId>, BackendError>;
    #[expect(missing_docs, reason = "as above")]
    fn set_rules(&mut self, session: u64, launched: &RuleSet, host: &RuleSet) -> Result<(u32, u32), BackendError>;
    #[expect(missing_docs, reason = "as above")]
    fn closed_with_rules(&self) -> Result<Vec<u64>, BackendError>;
    #[expect(missing_docs, reason = "as above")]
    fn sweep_rules(&mut self, lives: &dyn Fn(u64) -> bool) -> Result<(), BackendError>;
    #[expect(missing_docs, reason = "as above")]
    fn rings(&mut self, uid: u32) -> Result<Self::Source, BackendError>;

    /// Whether some process of an open session runs behind a launch. Looks at every process of the machine, which is
    /// milliseconds: asked seldom, and only while refusals are watched.
    fn a_launch_lives(&self) -> bool {
        let launched = |mark: &Mark| mark.role == Role::Launched && self.owner(mark.session).is_some();
        self.marks().is_none_or(|marks| marks.iter().any(launched))
    }

    /// The marks of all processes of the machine; `None` when they cannot be listed.
    fn marks(&self) -> Option<Vec<Mark>> {
        let entries = std::fs::read_dir("/proc").ok()?;
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let marks = pids.filter_map(|pid| self.mark_of(process::stat(pid).ok()?.id).ok().flatten());
        Some(marks.collect())
    }

    /// Removes rules by which nothing is judged any more. Looks at every process only when a closed session has some.
    fn tidy_rules(&mut self) -> Result<(), BackendError> {
        let closed = self.closed_with_rules()?;
        let marks = if closed.is_empty() { Some(Vec::new()) } else { self.marks() };
        let lives = |session: u64| marks.as_ref().is_none_or(|marks| marks.iter().any(|mark| mark.session == session));
        self.sweep_rules(&lives)
    }
}

/// Where one user's observations come from.
pub trait Source {
    /// What to poll for readability.
    fn fds(&self) -> [BorrowedFd<'_>; 2];
    /// Hands over at most `max` observations; answers how many there were.
    fn drain(&mut self, max: usize, sink: &mut dyn FnMut(Observation)) -> usize;
}

impl Source for Rings {
    fn fds(&self) -> [BorrowedFd<'_>; 2] {
        Rings::fds(self)
    }

    fn drain(&mut self, max: usize, sink: &mut dyn FnMut(Observation)) -> usize {
        Rings::drain(self, max, sink)
    }
}

impl Backend for Kernel {
    type Source = Rings;

    fn programs(&self) -> Vec<ProgramState> {
        Kernel::programs(self)
    }

    fn open_session(&mut self, uid: u32) -> Result<u64, BackendError> {
        Ok(Kernel::open_session(self, uid)?)
    }

    fn close_session(&mut self, session: u64) -> Result<(), BackendError> {
        Ok(Kernel::close_session(self, session)?)
    }

    fn sessions(&self, uid: u32) -> Result<Vec<u64>, BackendError> {
        Ok(Kernel::sessions(self, uid)?)
    }

    fn owner(&self, session: u64) -> Option<u32> {
        Kernel::owner(self, session)
    }

    fn enrol(&mut self, session: u64, root: ProcessId, role: Role) -> Result<u32, BackendError> {
        Ok(Kernel::enrol(self, session, root, role)?)
    }

    fn mark_of(&self, process: ProcessId) -> Result<Option<Mark>, BackendError> {
        Ok(Kernel::mark_of(self, process)?)
    }

    fn counters(&self, session: u64) -> Result<Counters, BackendError> {
        Ok(Kernel::counters(self, session)?)
    }

    fn watch_refusals(&mut self, on: bool) -> Result<(), BackendError> {
        Ok(Kernel::watch_refusals(self, on)?)
    }

    fn watching_refusals(&self) -> bool {
        Kernel::watching_refusals(self)
    }

    fn identify_held(&mut self, session: u64, files: Vec<OwnedFd>) -> Result<Vec<FileId>, BackendError> {
        Ok(Kernel::identify_held(self, session, files)?)
    }

    fn set_rules(&mut self, session: u64, launched: &RuleSet, host: &RuleSet) -> Result<(u32, u32), BackendError> {
        Ok(Kernel::set_rules(self, session, launched, host)?)
    }

    fn closed_with_rules(&self) -> Result<Vec<u64>, BackendError> {
        Ok(Kernel::closed_with_rules(self)?)
    }

    fn sweep_rules(&mut self, lives: &dyn Fn(u64) -> bool) -> Result<(), BackendError> {
        Ok(Kernel::sweep_rules(self, lives)?)
    }

    fn rings(&mut self, uid: u32) -> Result<Rings, BackendError> {
        Ok(Kernel::rings(self, uid)?)
    }
}
