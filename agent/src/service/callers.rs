//! Who may speak on `hook.sock`: a hook of ours that a host started, or a launcher of ours; nothing that was launched.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::rc::Rc;

use tokio::net::UnixStream;

use super::probe_link::{ProbeLink, ProbeState};
use crate::ipc::hook::{Envelope, RequestKind};
use crate::ipc::peer::{self, Executable, Peer};
use crate::probe::protocol::{Mark, Role};
use crate::process::{self, ProcessId, Stat};

/// A peer as it was when its connection was accepted. A launcher becomes the command soon after, and may be gone by the
/// time that its notice is read; so what can be seen of it is seen first.
#[derive(Debug)]
pub struct Arrival {
    /// Its pid, as the kernel noted it at the connect.
    pub pid: u32,
    /// The process, unless it was gone already.
    pub process: Option<ProcessId>,
    /// What it ran at that moment.
    pub program: Option<Executable>,
    /// Whether it was confined, or gone already.
    pub confined: bool,
}

impl Arrival {
    /// Looks at a connection's other end; `None` when it is not this user's.
    pub fn of(stream: &UnixStream) -> Option<Arrival> {
        let credentials = stream.peer_cred().ok()?;
        if credentials.uid() != nix::unistd::Uid::current().as_raw() {
            return None;
        }
        let process = Peer::of(stream).ok().map(|peer| peer.process);
        let program = process.and_then(|process| peer::executable(process).ok());
        let restrictions = process.and_then(|process| peer::restrictions(process).ok());
        let confined = restrictions.is_none_or(|restrictions| restrictions.confined());
        Some(Arrival { pid: credentials.pid()?.cast_unsigned(), process, program, confined })
    }
}

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

    /// Decides whether a peer may send this request.
    pub async fn recognise(&self, arrival: &Arrival, request: &Envelope) -> Result<Caller, NotACaller> {
        match request.request_kind {
            RequestKind::HookEvent | RequestKind::Gap => self.recognise_hook(arrival).await,
            RequestKind::LaunchNotice => self.recognise_launcher(arrival, request).await,
        }
    }

    /// A hook of ours that a host started, and nothing that belongs to a launch.
    async fn recognise_hook(&self, arrival: &Arrival) -> Result<Caller, NotACaller> {
        let (Some(peer), Some(program)) = (arrival.process, &arrival.program) else { return Err(NotACaller::Gone) };
        if !is_same_file(program, &self.hook) {
            return Err(NotACaller::WrongProgram);
        }
        match self.probe.mark_of(peer).await {
            Some(Some(mark)) if mark.launch != 0 => Err(NotACaller::Launched),
            Some(Some(mark)) if mark.role != Role::Hook => Err(NotACaller::NotAHook),
            Some(Some(mark)) => Ok(Caller { process: peer, host: self.host_of(peer), mark: Some(mark) }),
            // A host that the service has not met yet, whose tree this call leads to; or no probe that answers now: by
            // /proc, and the status says so.
            Some(None) | None => match peer::restrictions(peer).map_err(|_| NotACaller::Gone)?.confined() {
                true => Err(NotACaller::Confined),
                false => Ok(Caller { process: peer, host: self.host_of(peer), mark: None }),
            },
        }
    }

    /// A launcher, which may have become its command since. The first notice of a launch is the launcher's own, since it
    /// is written before the command is; the ledger takes no second one.
    async fn recognise_launcher(&self, arrival: &Arrival, request: &Envelope) -> Result<Caller, NotACaller> {
        let Some(peer) = arrival.process else {
            // Gone already. With a probe the ledger holds the notice against what the kernel saw of that process.
            let told = told_process(request).filter(|told| told.pid == arrival.pid);
            return match (told, self.probe.state()) {
                (Some(process), ProbeState::Connected) => {
                    Ok(Caller { process, host: told_parent(request), mark: None })
                }
                _ => Err(NotACaller::Gone),
            };
        };
        let is_launcher = arrival.program.as_ref().is_some_and(|program| is_same_file(program, &self.launcher));
        let host = self.host_of(peer);
        match self.probe.mark_of(peer).await {
            Some(Some(mark)) if mark.launch != 0 => Ok(Caller { process: peer, host, mark: Some(mark) }),
            Some(mark) if is_launcher => Ok(Caller { process: peer, host, mark }),
            // Ended since: the same as gone before.
            Some(None) if process::stat(peer.pid).map_or(true, |now| now.id != peer) => {
                Ok(Caller { process: peer, host: told_parent(request), mark: None })
            }
            None if is_launcher || self.is_child_of_told_parent(peer, request) => {
                Ok(Caller { process: peer, host, mark: None })
            }
            _ => Err(NotACaller::WrongProgram),
        }
    }

    /// Without a probe: what was a launcher is still the child of whom it named.
    fn is_child_of_told_parent(&self, peer: ProcessId, request: &Envelope) -> bool {
        let (Ok(now), Some(parent)) = (process::stat(peer.pid), told_parent(request)) else { return false };
        now.id == peer && process::stat(now.parent).is_ok_and(|of_parent| of_parent.id == parent)
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

fn told_process(request: &Envelope) -> Option<ProcessId> {
    serde_json::from_value(request.host_payload.get("process")?.clone()).ok()
}

fn told_parent(request: &Envelope) -> Option<ProcessId> {
    serde_json::from_value(request.host_payload.get("parent")?.clone()).ok()
}

/// Device and inode of a path are those of a running program.
fn is_same_file(program: &Executable, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) == (program.device, program.inode))
}
