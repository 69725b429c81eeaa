//! The raw process calls of the two small programs that `nix` offers only as unsafe: fork, and closing what a host leaked.
//!
//! They are in this room because raw calls are kept in few rooms, and the launcher lives here.

use std::io;

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{ForkResult, fork};

/// Forks a process that has one thread. The child goes on with a copy of everything.
pub fn fork_single_threaded() -> io::Result<ForkResult> {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    // Without /proc this cannot be looked up; no caller starts a thread before it forks.
    if threads.is_ok_and(|count| count != 1) {
        return Err(io::Error::other("a process with several threads was to be forked"));
    }
    // SAFETY: fork(2) is sound in a process with one thread: no lock can be held by a thread that the child lacks.
    Ok(unsafe { fork() }?)
}

/// Lets ended children be waited for, whatever the parent of this program set: with SIGCHLD ignored the kernel drops
/// their exit status (a setting that is inherited across exec).
pub fn keep_exit_statuses() -> io::Result<()> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this process, so no handler can break an invariant.
    unsafe { sigaction(Signal::SIGCHLD, &default) }?;
    Ok(())
}

/// Closes every descriptor above stdin, stdout and stderr (Linux 5.9; by /proc before).
pub fn close_above_standard() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: close_range(2) takes three integers. Nothing in this process owns a descriptor above 2 yet: this is the
    // first thing that its main does.
    let done = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0) };
    match Errno::result(done) {
        Ok(_) => Ok(()),
        Err(Errno::ENOSYS | Errno::EPERM) => close_listed(),
        Err(errno) => Err(errno.into()),
    }
}

fn close_listed() -> io::Result<()> {
    let mut listed = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        listed.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    for fd in listed.into_iter().filter(|fd| *fd > 2) {
        // The directory that was listed is closed by now: EBADF is its own descriptor.
        match nix::unistd::close(fd) {
            Ok(()) | Err(Errno::EBADF) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
