//! Processes: fork hands the mark down, exec gives roles, exit is told once per process.

use core::ffi::c_void;
use core::mem::offset_of;

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated::bpf_send_signal;
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use ringfence_common::limits::{ARGV_BYTES, EXEC_DATA_BYTES, FILENAME_BYTES};
use ringfence_common::maps::FileKey;
use ringfence_common::mark::{FLAG_GIT, FLAG_STEERED, IDENTITY_GIT, Mark, ROLE_LAUNCHED};
use ringfence_common::record::{
    EXEC_ANONYMOUS, EXEC_ARGV_CUT, EXEC_FILENAME_CUT, ExecHead, ExecScratch, Exit, Fork, GATE_FALLBACK, GATE_KILLED,
    GateHead, KIND_DENIED, KIND_EXEC, KIND_EXIT, KIND_FORK,
};

use crate::emit;
use crate::fields::*;
use crate::file;
use crate::gate::{self, EACCES};
use crate::lsm::exec;
use crate::maps::EXEC_SCRATCH;
use crate::marks;

/// `SIGNAL_GROUP_EXIT` (include/linux/sched/signal.h).
const SIGNAL_GROUP_EXIT: u32 = 4;

/// The child, which does not run yet, gets its parent's mark.
#[btf_tracepoint(function = "sched_process_fork")]
pub fn rf_fork(ctx: BtfTracePointContext) -> i32 {
    let task = current();
    let Some(state) = marks::current(task) else { return 0 };
    let mark = state.mark;
    let child: *mut task_struct = ctx.arg(1);
    let tgid: u32 = read(child.cast(), &OFF_TASK_TGID);
    let is_process = tgid == read::<u32>(child.cast(), &OFF_TASK_PID);
    let given = marks::give(child, if is_process { mark.forked() } else { mark }).is_some();
    if !is_process && given {
        return 0;
    }
    let Some(event) = emit::begin(&mark, KIND_FORK) else { return 0 };
    if !given {
        event.unmarked_child();
    }
    let child_start_ns = marks::start_ns(child);
    if given {
        marks::mirror(tgid, &mark.forked(), child_start_ns);
    }
    let header = emit::header(KIND_FORK, size_of::<Fork>(), mark, task);
    event.send(Fork { header, child_start_ns, child_pid: tgid, reserved: 0 });
    0
}

/// The role follows from which file was executed; then what was executed is told.
#[btf_tracepoint(function = "sched_process_exec")]
pub fn rf_exec(ctx: BtfTracePointContext) -> i32 {
    let task = current();
    let Some(state) = marks::current(task) else { return 0 };
    let executable = file::executable(task.cast());
    let key = file::key(executable);
    state.mark = after_exec(state.mark, &key, task.cast());
    let mark = state.mark;
    let bprm: *const c_void = ctx.arg(2);
    let header = emit::header(KIND_EXEC, 0, mark, task);
    marks::mirror(header.pid, &mark, header.start_ns);
    #[cfg(feature = "log")]
    aya_log_ebpf::debug!(&ctx, "exec: session {} launch {} role {}", mark.session, mark.launch, mark.role());

    if let Some((gate, label)) = exec::refusal(&mark, executable, key) {
        kill(&mark, header.start_ns, gate, label, key, executable);
    }
    let Some(event) = emit::begin(&mark, KIND_EXEC) else { return 0 };
    let parent = pointer(marks::leader(task).cast(), &OFF_TASK_REAL_PARENT);
    let parent = pointer(parent, &OFF_TASK_GROUP_LEADER);
    let head = ExecHead {
        header,
        parent_start_ns: read(parent, &OFF_TASK_START_BOOTTIME),
        parent_pid: read(parent, &OFF_TASK_TGID),
        flags: if file::is_anonymous(executable) { EXEC_ANONYMOUS } else { 0 },
        file: key,
        filename_len: 0,
        path_len: 0,
        argv_len: 0,
        reserved: 0,
    };
    let Some(scratch) = emit::claim(EXEC_SCRATCH.get_ptr_mut(0)) else {
        event.lost();
        return 0;
    };
    // SAFETY: `scratch` is this program's alone until it is released; `describe` stays inside.
    unsafe {
        let len = describe(scratch.value(), head, task, executable, bprm);
        event.send_bytes(scratch.value().cast(), len);
    }
    scratch.release();
    0
}

/// No LSM program refused this exec: the process ends before its first instruction.
#[inline(always)]
fn kill(mark: &Mark, start_ns: u64, gate: u32, label: u32, file: FileKey, executable: *const c_void) {
    const SIGKILL: u32 = 9;
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_send_signal(SIGKILL) };
    let head = GateHead { label, file, flags: GATE_FALLBACK | GATE_KILLED, ..gate::head(gate, EACCES) };
    gate::tell::<KIND_DENIED>(mark, start_ns, head, gate::Subject::File(executable));
}

#[inline(always)]
fn after_exec(mark: Mark, key: &FileKey, task: *const c_void) -> Mark {
    let identity = marks::identity(key);
    let role = mark.role_after_exec(identity);
    let launch = if role == ROLE_LAUNCHED && mark.launch == 0 { marks::fresh_launch() } else { mark.launch };
    // Who attaches later is seen by `rf_ptrace`; who attached while the exec was under way left a flag.
    let steered = mark.role_and_flags & FLAG_STEERED != 0 || read::<u32>(task, &OFF_TASK_PTRACE) != 0;
    let git = if identity == IDENTITY_GIT && !steered { FLAG_GIT } else { 0 };
    gate::judged(Mark { session: mark.session, launch, generation: mark.generation, role_and_flags: role | git })
}

/// Fills in the variable part; answers the record's length.
#[inline(always)]
unsafe fn describe(
    scratch: *mut ExecScratch,
    mut head: ExecHead,
    task: *mut task_struct,
    executable: *const c_void,
    bprm: *const c_void,
) -> usize {
    // SAFETY: the caller's scratch; every offset below is masked to EXEC_DATA_BYTES, with as much again behind it.
    unsafe {
        let data = (&raw mut (*scratch).data).cast::<u8>();

        let filename = kernel_string(data, FILENAME_BYTES as u32, pointer(bprm, &OFF_BPRM_FILENAME));
        let filename = filename & (2 * FILENAME_BYTES - 1);
        head.filename_len = filename as u32;
        if filename == FILENAME_BYTES || filename == 0 {
            head.flags |= EXEC_FILENAME_CUT;
        }

        let (path, path_flags) = file::path(executable, data, filename);
        head.path_len = path as u32;
        head.flags |= path_flags;

        let mm = pointer(task.cast(), &OFF_TASK_MM);
        let begin: u64 = read(mm, &OFF_MM_ARG_START);
        let size = read::<u64>(mm, &OFF_MM_ARG_END).wrapping_sub(begin);
        let kept = if size > ARGV_BYTES as u64 { ARGV_BYTES as u32 } else { size as u32 };
        let to = data.wrapping_add((filename + path) & (EXEC_DATA_BYTES - 1));
        if user_bytes(to, kept & (2 * ARGV_BYTES as u32 - 1), begin) {
            head.argv_len = kept;
        }
        if u64::from(head.argv_len) != size {
            head.flags |= EXEC_ARGV_CUT;
        }

        let variable = (filename + path + head.argv_len as usize) & (EXEC_DATA_BYTES - 1);
        let len = offset_of!(ExecScratch, data) + variable;
        head.header.len = len as u32;
        (&raw mut (*scratch).head).write(head);
        len
    }
}

/// Only the last thread's end is the process's.
#[btf_tracepoint(function = "sched_process_exit")]
pub fn rf_exit(_: BtfTracePointContext) -> i32 {
    let task = current();
    let Some(state) = marks::current(task) else { return 0 };
    let mark = state.mark;
    let signal = pointer(task.cast(), &OFF_TASK_SIGNAL);
    if read::<u32>(signal, &OFF_SIGNAL_LIVE) != 0 {
        return 0;
    }
    let leader = marks::leader(task);
    // Two threads that end at once may both see that none is left: the leader's state lets one pass.
    let Some(leader_state) = marks::give(leader, mark) else { return 0 };
    // SAFETY: a field of a live map value, aligned.
    if unsafe { fetch_add(&raw mut leader_state.exited, 1) } != 0 {
        return 0;
    }
    let header = emit::header(KIND_EXIT, size_of::<Exit>(), mark, task);
    marks::forget(header.pid);
    let Some(event) = emit::begin(&mark, KIND_EXIT) else { return 0 };
    let status = if read::<u32>(signal, &OFF_SIGNAL_FLAGS) & SIGNAL_GROUP_EXIT != 0 {
        read(signal, &OFF_SIGNAL_GROUP_EXIT_CODE)
    } else {
        read(leader.cast(), &OFF_TASK_EXIT_CODE)
    };
    event.send(Exit { header, status, reserved: 0 });
    0
}
