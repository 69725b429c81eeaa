//! Whose a task is: finding its mark, handing it down, and the mirror for programs without task storage.

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use ringfence_common::maps::{Attempt, FileKey, Mirrored, State, TaskState};
use ringfence_common::mark::{FLAG_GIT, FLAG_STEERED, Mark};

use crate::fields::{self, OFF_TASK_GROUP_LEADER, OFF_TASK_START_BOOTTIME, USE_MIRROR};
use crate::maps::{ATTEMPTS, IDENTITIES, LAUNCHES, MARKS, MIRROR, STATE};

/// The state of the running task; `None` when it is not marked.
///
/// A thread that came to be past the fork program (an io_uring worker) takes the mark of its group's leader.
#[inline(always)]
pub fn current(task: *mut task_struct) -> Option<&'static mut TaskState> {
    // SAFETY: a map value lives as long as the program runs; other programs only race on integers.
    unsafe { MARKS.get(task).as_mut() }.or_else(|| from_leader(task))
}

#[inline(always)]
fn from_leader(task: *mut task_struct) -> Option<&'static mut TaskState> {
    let leader = leader(task);
    if leader == task {
        return None;
    }
    // SAFETY: as above.
    let mark = unsafe { MARKS.get(leader).as_ref() }?.mark;
    give(task, mark)
}

/// Marks a task that has no mark yet; `None` when the kernel has no memory for it.
#[inline(always)]
pub fn give(task: *mut task_struct, mark: Mark) -> Option<&'static mut TaskState> {
    let mut state = TaskState { mark, attempt: 0, watch: 0, denied: 0, exited: 0 };
    // SAFETY: as above.
    unsafe { MARKS.get_or_insert(task, &mut state).as_mut() }
}

/// What the exec of this file means, an `IDENTITY_*`; 0 for any other file.
#[inline(always)]
pub fn identity(file: &FileKey) -> u32 {
    // SAFETY: the value is copied at once, and identities are only added.
    unsafe { IDENTITIES.get(file) }.copied().unwrap_or(0)
}

/// Takes the exception of the system's git from a thread and its process.
#[inline(always)]
pub fn no_longer_git(task: *mut task_struct, state: &mut TaskState) {
    change(task, state, |flags| flags & !FLAG_GIT);
}

/// The same for a process that somebody is about to steer, which may be in the middle of an exec.
#[inline(always)]
pub fn steered(task: *mut task_struct, state: &mut TaskState) {
    change(task, state, |flags| flags & !FLAG_GIT | FLAG_STEERED);
}

#[inline(always)]
fn change(task: *mut task_struct, state: &mut TaskState, new: impl Fn(u32) -> u32) {
    state.mark.role_and_flags = new(state.mark.role_and_flags);
    // SAFETY: a map value lives as long as the program runs; other programs only race on integers.
    if let Some(leader) = unsafe { MARKS.get(leader(task)).as_mut() } {
        leader.mark.role_and_flags = new(leader.mark.role_and_flags);
    }
}

/// The leader of a task's thread group.
#[inline(always)]
pub fn leader(task: *mut task_struct) -> *mut task_struct {
    // SAFETY: only tasks that the verifier knows reach this.
    unsafe { fields::task_field(task, &OFF_TASK_GROUP_LEADER) }
}

/// When the process of this group leader began, nanoseconds of CLOCK_BOOTTIME.
#[inline(always)]
pub fn start_ns(leader: *mut task_struct) -> u64 {
    fields::read(leader.cast(), &OFF_TASK_START_BOOTTIME)
}

/// Keeps the mirror of a process in step, where cgroup programs need it.
#[inline(always)]
pub fn mirror(tgid: u32, mark: &Mark, start_ns: u64) {
    if fields::global(&USE_MIRROR) != 0 {
        let _ = MIRROR.insert(&tgid, &Mirrored { mark: *mark, start_ns }, 0);
    }
}

/// Forgets the mirror of a process that ended.
#[inline(always)]
pub fn forget(tgid: u32) {
    if fields::global(&USE_MIRROR) != 0 {
        let _ = MIRROR.remove(&tgid);
    }
}

/// Remembers that the running thread is in attempt `time_ns`, so that its result is told when the system call ends.
#[inline(always)]
pub fn attempts(state: Option<&mut TaskState>, time_ns: u64) {
    let watch = self::state().map_or(0, |state| state.watch);
    if fields::global(&USE_MIRROR) != 0 {
        if watch != 0 {
            let thread = bpf_get_current_pid_tgid() as u32;
            let _ = ATTEMPTS.insert(&thread, &Attempt { attempt: time_ns, watch, denied: 0 }, 0);
        }
    } else if let Some(state) = state {
        state.attempt = time_ns;
        state.watch = watch;
    }
}

/// What the mirror has of the running process.
#[inline(always)]
pub fn mirrored() -> Option<Mirrored> {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: the value is copied at once; its process is running and so does not end meanwhile.
    unsafe { MIRROR.get(&tgid) }.copied()
}

/// The state that outlives the probe.
#[inline(always)]
pub fn state() -> Option<&'static State> {
    STATE.get(0)
}

/// A launch number that nobody had before.
#[inline(always)]
pub fn fresh_launch() -> u64 {
    let Some(launches) = LAUNCHES.get_ptr_mut(0) else { return 0 };
    // SAFETY: a live map value, aligned.
    unsafe { fields::fetch_add(launches, 1) + 1 }
}
