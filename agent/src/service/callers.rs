//! Who may speak on `hook.sock`: a hook of ours that a host started, or a launcher of ours; nothing that was launched.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::probe_link::ProbeLink;
use crate::ipc::hook::RequestKind;
use crate::ipc::peer::{self, Executable};
use crate::probe::protocol::{Mark, Role};
use crate::process::{self, ProcessId, Stat};

/// A recognised peer.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The peer itself.
    pub process: ProcessId,
    /// The host that started it, when it can be told.
    pub host: Option<ProcessId>,
    /// Its mark, when there is a probe and it is marked.
    pub mark: Option<Mark>,
}

/// Why a peer is not listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotACaller {
    /// It belongs to a launch: a fenced command cannot forge a prompt or a decision.
    #[error("a launched command may not speak as a hook")]
    Launched,
    /// Without a probe: it carries what every fenced process carries.
    #[error("a confined process may not speak as a hook")]
    Confined,
    /// It is marked, but was not started by a host as our hook.
    #[error("only the installed hook, started by the host, may speak here")]
    NotAHook,
    /// Its executable is not the installed hook, or launcher.
    #[error("only the installed hook or launcher may speak here")]
    WrongProgram,
    /// It ended before it could be looked at.
    #[error("the peer is gone")]
    Gone,
}

impl NotACaller {
    /// A fixed word for metrics and findings.
    pub fn word(self) -> &'static str {
        match self {
            NotACaller::Launched => "launched",
            NotACaller::Confined => "confined",
            NotACaller::NotAHook => "not_a_hook",
            NotACaller::WrongProgram => "wrong_program",
            NotACaller::Gone => "gone",
        }
    }
}

/// Recognises peers by their program and mark.
pub struct Callers {
    hook: PathBuf,
    launcher: PathBuf,
    probe: Rc<ProbeLink>,
}

impl Callers {
    /// The installed programs, by path; they are compared by device and inode.
    pub fn new(hook: PathBuf, launcher: PathBuf, probe: Rc<ProbeLink>) -> Callers {
        Callers { hook, launcher, probe }
    }

    /// Decides whether `peer` may send a request of this kind.
    pub async fn recognise(&self, peer: ProcessId, kind: RequestKind) -> Result<Caller, NotACaller> {
        let program = peer::executable(peer).map_err(|_| NotACaller::Gone)?;
        let wanted = match kind {
            RequestKind::HookEvent | RequestKind::Gap => &self.hook,
            RequestKind::LaunchNotice => &self.launcher,
        };
        if !is_same_file(&program, wanted) {
            return Err(NotACaller::WrongProgram);
        }
        let mark = match self.probe.mark_of(peer).await {
            Some(mark) => mark,
            // No probe, or none that answers now: by /proc, and the status says so.
            None => {
                let confined = peer::restrictions(peer).map_err(|_| NotACaller::Gone)?.confined();
                // A launcher tells before it is confined; afterwards it is the command.
                return match confined {
                    true => Err(NotACaller::Confined),
                    false => Ok(Caller { process: peer, host: self.host_of(peer), mark: None }),
                };
            }
        };
        match (kind, mark) {
            (RequestKind::LaunchNotice, _) => {}
            (_, Some(mark)) if mark.launch != 0 => return Err(NotACaller::Launched),
            (_, Some(mark)) if mark.role != Role::Hook => return Err(NotACaller::NotAHook),
            // A host that the service has not met yet: its tree is marked by what this call leads to.
            (_, _) => {}
        }
        Ok(Caller { process: peer, host: self.host_of(peer), mark })
    }

    /// The first ancestor that is none of our own programs, and not the shell that a host puts in front of a launcher.
    fn host_of(&self, peer: ProcessId) -> Option<ProcessId> {
        let own = |stat: &&Stat| match peer::executable(stat.id) {
            Ok(program) => is_same_file(&program, &self.hook) || is_same_file(&program, &self.launcher),
            Err(_) => false,
        };
        let chain = process::ancestry(peer.pid);
        if chain.first().map(|stat| stat.id) != Some(peer) {
            return None;
        }
        chain.iter().find(|stat| !own(stat)).map(|stat| stat.id)
    }
}

/// Device and inode of a path are those of a running program.
fn is_same_file(program: &Executable, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) == (program.device, program.inode))
}
