//! Marks: enrolling a tree, reading a process's mark, and which files give a role.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use bytemuck::Zeroable;
use ringfence_common::maps::{FileKey, Request};
use ringfence_common::mark as kernel;

use super::load::{ENROL, IDENTIFY};
use super::{Kernel, KernelError, call, ring};
use crate::probe::protocol::{FileId, Mark, Role};
use crate::process::{self, ProcessId};

/// Passes after which a tree that forks faster than it is walked is given up.
const PASSES: usize = 64;

impl Kernel {
    /// Marks every thread of `root` and of its descendants that belong to the session's owner; answers how many were
    /// marked or changed their role. What is already in another open session stays there.
    pub fn enrol(&mut self, session: u64, root: ProcessId, role: Role) -> Result<u32, KernelError> {
        let owner = self.owner(session).ok_or(KernelError::UnknownSession(session))?;
        let mut request = Request {
            session,
            start: root.start,
            tick_ns: self.tick_ns,
            pid: root.pid,
            uid: owner,
            role: match role {
                Role::Host => kernel::ROLE_HOST,
                Role::Hook => kernel::ROLE_HOOK,
                Role::Internal => kernel::ROLE_INTERNAL,
                Role::Launched => kernel::ROLE_LAUNCHED,
            },
            generation: 0,
            ..Request::zeroed()
        };
        let mut total = 0;
        for pass in 0..PASSES {
            let answer = self.walk(ENROL, &request)?;
            if pass == 0 {
                match answer {
                    Request { seen: 0, .. } => return Err(KernelError::Gone(root)),
                    Request { foreign: 1, .. } => return Err(KernelError::NotOwner(root)),
                    Request { other: 1.., .. } => return Err(KernelError::OtherSession(root, answer.other)),
                    _ => {}
                }
            }
            if answer.marked == 0 {
                return Ok(total);
            }
            total += answer.marked;
            request.launch = answer.launch;
        }
        Err(KernelError::Limit("processes that fork while they are enrolled"))
    }

    /// The mark of a process, `None` when it has none. The start time is checked before and after.
    pub fn mark_of(&self, process: ProcessId) -> Result<Option<Mark>, KernelError> {
        let gone = || KernelError::Gone(process);
        let pidfd = open_pidfd(process.pid).map_err(|_| gone())?;
        let is_same = || process::stat(process.pid).is_ok_and(|stat| stat.id == process);
        if !is_same() {
            return Err(gone());
        }
        let state = self.maps.marks.get(&(pidfd.as_raw_fd() as u32))?;
        if !is_same() {
            return Err(gone());
        }
        let unknown = || KernelError::Refused("reading a mark".into(), "its role is of another version".into());
        state.map(|state| ring::mark(&state.mark).ok_or_else(unknown)).transpose()
    }

    /// How the kernel keys a file. (`stat` tells another device on btrfs and overlayfs.)
    pub fn identify(&self, path: &Path) -> Result<FileId, KernelError> {
        let FileKey { device, generation, inode } = self.key_of(&open_path(path)?)?;
        Ok(FileId { device, inode, generation })
    }

    /// Makes exec of this file give a role; only a file that nobody but root can change may.
    pub(super) fn add_identity(&self, path: &Path, identity: u32) -> Result<FileKey, KernelError> {
        let file = open_path(path)?;
        let meta = file.metadata().map_err(|e| KernelError::Place(path.to_owned(), e))?;
        if !meta.is_file() || meta.uid() != 0 || meta.mode() & 0o022 != 0 {
            let reason =
                io::Error::other("it gives no role: only a file that root owns and nobody else can write does");
            return Err(KernelError::Place(path.to_owned(), reason));
        }
        let key = self.key_of(&file)?;
        self.maps.identities.set(&key, &identity)?;
        Ok(key)
    }

    /// How the kernel keys files that this process has open; zero for what it has not.
    pub(super) fn identify_all(&self, files: &[u32]) -> Result<Vec<FileKey>, KernelError> {
        Ok(self.ask_identity(files)?.files[..files.len()].to_vec())
    }

    /// The same, and what the kernel says of this process.
    pub(super) fn ask_identity(&self, files: &[u32]) -> Result<Request, KernelError> {
        let mut request = Request { pid: std::process::id(), tick_ns: self.tick_ns, ..Request::zeroed() };
        request.fds[..files.len()].copy_from_slice(files);
        request.files_wanted = files.len() as u32;
        let answer = self.walk(IDENTIFY, &request)?;
        if answer.seen == 0 {
            return Err(KernelError::Refused(
                "finding this process".into(),
                "it must run in the initial pid namespace".into(),
            ));
        }
        Ok(answer)
    }

    /// Runs an iterator over all tasks with a question; gives its answer.
    fn walk(&self, program: &str, request: &Request) -> Result<Request, KernelError> {
        self.maps.request.set(&0, request)?;
        let refused = |e: io::Error| KernelError::Refused(format!("running {program}"), e.to_string());
        let link = call::open_pin(&self.pins.link(program)).map_err(refused)?;
        let mut run = File::from(call::iterate(link.as_fd()).map_err(refused)?);
        // The programs print nothing: a read ends at the last task, or (EAGAIN) at the kernel's bound for one read.
        loop {
            match run.read(&mut [0; 64]) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(refused(e)),
            }
        }
        self.maps.request.get(&0)?.ok_or_else(|| refused(io::Error::other("no answer")))
    }
}

fn open_path(path: &Path) -> Result<File, KernelError> {
    let open = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path);
    open.map_err(|e| KernelError::Place(path.to_owned(), e))
}

fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the answer is a new descriptor that nobody else owns.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    // SAFETY: as above.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }) }
}
