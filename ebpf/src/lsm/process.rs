//! Processes: children are marked before they run, and what lies outside the tree is left alone.

use core::ffi::c_void;

use aya_ebpf::bindings::task_struct;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::mark::{FLAG_GIT, IDENTITY_OWN, Mark};
use ringfence_common::record::GateHead;
use ringfence_common::rules::gate;

use crate::fields::*;
use crate::file;
use crate::gate::{self as gates, Actor, EPERM, Subject};
use crate::maps::MARKS;
use crate::marks;

/// `CLONE_THREAD`.
const CLONE_THREAD: u64 = 0x1_0000;

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
    /// `PTRACE_MODE_ATTACH`.
    const ATTACH: u32 = 2;
    let Some(mut actor) = gates::actor() else { return 0 };
    let other: *mut task_struct = ctx.arg(0);
    let mode: u32 = ctx.arg(1);
    // SAFETY: a map value lives as long as the program runs.
    let state = unsafe { MARKS.get(other).as_mut() };
    // Git that somebody steers is not git.
    if let Some(state) = state
        && mode & ATTACH != 0
        && state.mark.role_and_flags & FLAG_GIT != 0
    {
        marks::no_longer_git(other, state);
    }
    outside(&mut actor, other, gate::TRACE, mode)
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
    outside(&mut actor, other, gate::SIGNAL, signal)
}

/// Refuses what is aimed at a process outside the tree: at our own always, at others where the rules say so.
#[inline(always)]
fn outside(actor: &mut Actor, other: *mut task_struct, what: u32, detail: u32) -> i32 {
    // SAFETY: the value is copied at once.
    let mark: Option<Mark> = unsafe { MARKS.get(other).as_ref() }.map(|state| state.mark);
    if mark.is_some_and(|mark| mark.session == actor.mark.session) {
        return 0;
    }
    let key = file::key(file::executable(other.cast()));
    let own = mark.is_none() && marks::identity(&key) != 0 && marks::identity(&key) <= IDENTITY_OWN;
    if !own && !gates::refused_by_default(&actor.mark, what) {
        return 0;
    }
    let other_pid = read(other.cast(), &OFF_TASK_TGID);
    let head = GateHead { file: key, other_pid, detail, ..gates::head(what, EPERM) };
    gates::deny(actor, head, Subject::None);
    -(EPERM as i32)
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
