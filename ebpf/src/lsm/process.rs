//! Processes: children are marked before they run, and what lies outside the tree is left alone.

use core::ffi::c_void;

use aya_ebpf::bindings::task_struct;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::maps::FileKey;
use ringfence_common::mark::{IDENTITY_OWN, Mark, ROLE_HOOK, ROLE_HOST};
use ringfence_common::record::GateHead;
use ringfence_common::rules::gate;

use crate::fields::*;
use crate::file;
use crate::gate::{self as gates, Actor, EPERM, Subject};
use crate::maps::MARKS;
use crate::marks;

/// `CLONE_THREAD`.
const CLONE_THREAD: u64 = 0x1_0000;
/// `PTRACE_MODE_ATTACH`.
const ATTACH: u32 = 2;

/// Whatever comes to be gets its parent's mark, io_uring's workers too; what cannot be marked does not come to be.
#[lsm(hook = "task_alloc")]
pub fn rf_task_alloc(ctx: LsmContext) -> i32 {
    let Some(mut actor) = gates::actor() else { return 0 };
    let child: *mut task_struct = ctx.arg(0);
    let flags: u64 = ctx.arg(1);
    let mark = actor.state.mark;
    if marks::give(child, if flags & CLONE_THREAD == 0 { mark.forked() } else { mark }).is_some() {
        return 0;
    }
    gates::deny(&mut actor, gates::head(gate::FORK, EPERM), Subject::None);
    -(EPERM as i32)
}

/// Looking into or steering another process: `ptrace`, `/proc/PID/mem`, `process_vm_writev`, `pidfd_getfd`.
#[lsm(hook = "ptrace_access_check")]
pub fn rf_ptrace(ctx: LsmContext) -> i32 {
    let Some(mut actor) = gates::actor() else { return 0 };
    let other: *mut task_struct = ctx.arg(0);
    let mode: u32 = ctx.arg(1);
    // SAFETY: a map value lives as long as the program runs.
    let state = unsafe { MARKS.get(other).as_mut() };
    // Git that somebody steers is not git.
    if let Some(state) = state
        && mode & ATTACH != 0
    {
        marks::steered(other, state);
    }
    aimed(&mut actor, other, gate::TRACE, mode)
}

/// Signals by system call. The kernel's own, and those of the terminal, do not come here.
#[lsm(hook = "task_kill")]
pub fn rf_kill(ctx: LsmContext) -> i32 {
    let Some(mut actor) = gates::actor() else { return 0 };
    let other: *mut task_struct = ctx.arg(0);
    let signal: u32 = ctx.arg(2);
    // With credentials of its own the signal is somebody else's, and this task only happens to run.
    // A scalar copy is looked at: the verifier takes the argument for one that is never null.
    if forget(ctx.arg::<u64>(3) as usize) != 0 {
        return 0;
    }
    aimed(&mut actor, other, gate::SIGNAL, signal)
}

/// A signal that a file sends to its owner (`F_SETOWN`), which passes no system call of the sender's: the running task
/// may be anybody, in an interrupt too. None of our own processes asks for one.
#[lsm(hook = "file_send_sigiotask")]
pub fn rf_sigio(ctx: LsmContext) -> i32 {
    let other: *mut task_struct = ctx.arg(0);
    let signal: u32 = ctx.arg(2);
    let target = target(other);
    if !target.own {
        return 0;
    }
    if let Some(mut actor) = gates::actor() {
        deny_aimed(&mut actor, other, target.key, gate::SIGNAL, signal);
    }
    -(EPERM as i32)
}

/// What can starve another process or end it: its limits (`prlimit`).
#[lsm(hook = "task_setrlimit")]
pub fn rf_setrlimit(ctx: LsmContext) -> i32 {
    steering(ctx.arg(0))
}

/// Its scheduling and processors.
#[lsm(hook = "task_setscheduler")]
pub fn rf_setsched(ctx: LsmContext) -> i32 {
    steering(ctx.arg(0))
}

/// Its priority.
#[lsm(hook = "task_setnice")]
pub fn rf_setnice(ctx: LsmContext) -> i32 {
    steering(ctx.arg(0))
}

/// Its priority of input and output.
#[lsm(hook = "task_setioprio")]
pub fn rf_setioprio(ctx: LsmContext) -> i32 {
    steering(ctx.arg(0))
}

/// Where its memory lies (`migrate_pages`, `move_pages`).
#[lsm(hook = "task_movememory")]
pub fn rf_movememory(ctx: LsmContext) -> i32 {
    steering(ctx.arg(0))
}

#[inline(always)]
fn steering(other: *mut task_struct) -> i32 {
    let Some(mut actor) = gates::actor() else { return 0 };
    aimed(&mut actor, other, gate::TRACE, 0)
}

/// Refuses what is aimed at another process: at our own always, outside the tree where the rules say so.
///
/// The host's hook is our own in its tree, but for the host and itself; and who steers the host speaks and writes as it.
#[inline(always)]
fn aimed(actor: &mut Actor, other: *mut task_struct, what: u32, detail: u32) -> i32 {
    let target = target(other);
    let in_tree = target.mark.is_some_and(|mark| mark.session == actor.mark.session);
    let role = target.mark.map_or(0, |mark| mark.role());
    let by_host = in_tree && actor.mark.role() == ROLE_HOST;
    let by_hook = in_tree && actor.mark.role() == ROLE_HOOK;
    let host = role == ROLE_HOST && what == gate::TRACE && detail & ATTACH != 0;
    let refused = if target.own {
        !by_host && !by_hook
    } else if host {
        !by_host
    } else {
        !in_tree && gates::refused_by_default(&actor.mark, what)
    };
    if !refused {
        return 0;
    }
    deny_aimed(actor, other, target.key, what, detail);
    -(EPERM as i32)
}

/// A task that something is aimed at.
struct Target {
    mark: Option<Mark>,
    /// How the kernel keys its executable.
    key: FileKey,
    /// It is one of ours: outside every tree, or as the hook of one.
    own: bool,
}

#[inline(always)]
fn target(task: *mut task_struct) -> Target {
    // SAFETY: the value is copied at once.
    let mark: Option<Mark> = unsafe { MARKS.get(task).as_ref() }.map(|state| state.mark);
    let key = file::key(file::executable(task.cast()));
    let identity = marks::identity(&key);
    let own = match mark {
        Some(mark) => mark.role() == ROLE_HOOK,
        None => identity != 0 && identity <= IDENTITY_OWN,
    };
    Target { mark, key, own }
}

#[inline(always)]
fn deny_aimed(actor: &mut Actor, other: *mut task_struct, file: FileKey, what: u32, detail: u32) {
    let other_pid = read(other.cast(), &OFF_TASK_TGID);
    gates::deny(actor, GateHead { file, other_pid, detail, ..gates::head(what, EPERM) }, Subject::None);
}

/// A user namespace of one's own gives power over the rest that the fence does not speak of.
#[lsm(hook = "userns_create")]
pub fn rf_userns(_: LsmContext) -> i32 {
    by_default(gate::NAMESPACE, 0)
}

/// `bpf`, whatever it is asked.
#[lsm(hook = "bpf")]
pub fn rf_bpf(ctx: LsmContext) -> i32 {
    let command: *const c_void = ctx.arg(0);
    by_default(gate::BPF, command as u32)
}

#[inline(always)]
fn by_default(what: u32, detail: u32) -> i32 {
    let Some(mut actor) = gates::actor() else { return 0 };
    if !gates::refused_by_default(&actor.mark, what) {
        return 0;
    }
    gates::deny(&mut actor, GateHead { detail, ..gates::head(what, EPERM) }, Subject::None);
    -(EPERM as i32)
}
