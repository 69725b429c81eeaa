//! The hook's own guard: the parent waits, and answers for a child that crashes, hangs or is killed.
//!
//! Claude Code runs the tool when a hook ends in any other way than 0 or 2 (2.1.197 knows no setting against it), so
//! nothing but those two may ever come out of this program. What stays open is a guard that is itself killed.
#![forbid(unsafe_code)]

use std::io::Write;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timer::TimerSetTimeFlags;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, getpid, getppid};

use crate::fence::fork;
use crate::host::claude_code::answer::Answer;

/// Signals that end a hook from outside. The guard answers to them, so that they are not an answer.
const ENDING: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

/// What the guard holds the child to.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long the child may take, by CLOCK_BOOTTIME.
    pub bound: Duration,
    /// Whether a child that failed is a denial.
    pub fails_closed: bool,
}

impl Terms {
    /// The answer in a failed child's place. `what` says what became of it.
    pub fn instead(&self, what: &str) -> ExitCode {
        let mut answer = Answer::deny("hook_failed", &format!("Ringfence's hook could not judge it: {what}"));
        if !self.fails_closed {
            answer.exit = 0;
        }
        write_answer(&answer)
    }
}

/// Runs `work` in a child and gives its answer, or one in its place.
pub fn guarded(terms: &Terms, work: impl FnOnce() -> Answer) -> ExitCode {
    let mut watched: SigSet = ENDING.into_iter().collect();
    watched.add(Signal::SIGCHLD);
    // Blocked before the fork, so that no signal is lost between it and the first look.
    if watched.thread_block().is_err() || fork::keep_exit_statuses().is_err() {
        return terms.instead("its signals could not be set up");
    }
    // A core file would hold the host's input. 1 byte and not 0: a handler behind a pipe is told of 0, not of 1.
    if setrlimit(Resource::RLIMIT_CORE, 1, 1).is_err() && setrlimit(Resource::RLIMIT_CORE, 0, 0).is_err() {
        return terms.instead("core files could not be switched off");
    }
    let guard = getpid();
    match fork::fork_single_threaded() {
        Ok(ForkResult::Child) => child(terms, guard, work),
        Ok(ForkResult::Parent { child }) => match watch(terms, child, &watched) {
            Ok(exit) => ExitCode::from(exit),
            Err(what) => {
                end(child);
                terms.instead(what)
            }
        },
        Err(_) => terms.instead("it could not start its second process"),
    }
}

fn child(terms: &Terms, guard: Pid, work: impl FnOnce() -> Answer) -> ExitCode {
    // Unblocked again: what it inherits from the host is not known either.
    let prepared = SigSet::empty().thread_set_mask().and_then(|()| prctl::set_pdeathsig(Signal::SIGKILL));
    // A guard that ended before the line above took effect will not end this process any more.
    if prepared.is_err() || getppid() != guard {
        return terms.instead("its second process could not be set up");
    }
    // The default hook writes the panic's message, which may hold some of the input.
    std::panic::set_hook(Box::new(|_| {}));
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(answer) => write_answer(&answer),
        Err(_) => terms.instead("it failed inside"),
    }
}

/// Waits for the child's exit. `Err` says what became of it instead.
fn watch(terms: &Terms, child: Pid, watched: &SigSet) -> Result<u8, &'static str> {
    const BROKEN: &str = "its guard could not wait";
    let signals = SignalFd::with_flags(watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(|_| BROKEN)?;
    let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC).map_err(|_| BROKEN)?;
    let bound = Expiration::OneShot(TimeSpec::from_duration(terms.bound));
    timer.set(bound, TimerSetTimeFlags::empty()).map_err(|_| BROKEN)?;
    loop {
        // Looked at first: a child that ended before the descriptors existed is no reason to wait.
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code @ (0 | 2))) => return Ok(code as u8),
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => {}
            Ok(WaitStatus::Exited(..)) => return Err("it ended with an exit code that is no answer"),
            Ok(WaitStatus::Signaled(..)) => return Err("it was killed"),
            Ok(_) => {}
            Err(_) => return Err(BROKEN),
        }
        let mut ready =
            [PollFd::new(signals.as_fd(), PollFlags::POLLIN), PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return Err(BROKEN),
        }
        while let Some(info) = signals.read_signal().map_err(|_| BROKEN)? {
            if info.ssi_signo != Signal::SIGCHLD as u32 {
                return Err("the host ended it");
            }
        }
        if ready[1].any().unwrap_or(true) {
            return Err("it took too long");
        }
    }
}

/// Ends the child for good and reaps it, so that no second answer is written.
fn end(child: Pid) {
    // Both can only fail when the child is reaped already, which is what they are for.
    let _ = kill(child, Signal::SIGKILL);
    let _ = waitpid(child, None);
}

/// Writes an answer in one piece. A host that closed the pipe still gets the exit code.
pub fn write_answer(answer: &Answer) -> ExitCode {
    let Answer { stdout, stderr, exit } = answer;
    if !stdout.is_empty() && std::io::stdout().write_all(stdout).and_then(|()| std::io::stdout().flush()).is_err() {
        return ExitCode::from(2);
    }
    if !stderr.is_empty() {
        // Nothing can be said where stderr is gone, and the exit code alone denies on every measured version.
        let _ = std::io::stderr().write_all(stderr);
    }
    ExitCode::from(*exit)
}
