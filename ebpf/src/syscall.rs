//! What system calls answered: refusals of other layers, and results of connects. Attached only while a launch lives.

use core::ffi::c_void;
use core::mem::offset_of;

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use ringfence_common::limits::REFUSED_PATH_BYTES;
use ringfence_common::maps::TaskState;
use ringfence_common::record::{
    ConnectResult, KIND_CONNECT_RESULT, KIND_REFUSED, REFUSED_COMPAT, REFUSED_PATH_CUT, RefusedHead, RefusedScratch,
};
use ringfence_common::x86_64::{
    ABI_STATUS_COMPAT, SYS_CONNECT, SYS_SENDMMSG, SYS_SENDMSG, SYS_SENDTO, Subject, subject,
};

use crate::emit;
use crate::fields::*;
use crate::maps::{ATTEMPTS, MARKS, REFUSED_SCRATCH};
use crate::marks;

const EPERM: i64 = 1;
const EACCES: i64 = 13;
const EXDEV: i64 = 18;
/// Largest errno (include/linux/err.h).
const MAX_ERRNO: i64 = 4095;

/// Every return of every system call of the machine comes here: what is not marked leaves after one look-up.
#[btf_tracepoint(function = "sys_exit")]
pub fn rf_sys_exit(ctx: BtfTracePointContext) -> i32 {
    let task = current();
    // SAFETY: a map value lives as long as the program runs.
    let Some(state) = (unsafe { MARKS.get(task).as_mut() }) else { return 0 };
    let regs: *const c_void = ctx.arg(0);
    let value: i64 = ctx.arg(1);
    let attempt = take_attempt(state);
    let refused = state.mark.launch != 0 && (value == -EACCES || value == -EPERM || value == -EXDEV);
    if attempt == 0 && !refused && state.denied == 0 {
        return 0;
    }
    let number = read::<u64>(regs, &OFF_REGS_NUMBER) as u32;
    let compat = read::<u32>(task.cast(), &OFF_TASK_ABI_STATUS) & ABI_STATUS_COMPAT != 0;
    let connects = matches!(number, SYS_CONNECT | SYS_SENDTO | SYS_SENDMSG | SYS_SENDMMSG);
    if attempt != 0 && connects && !compat {
        result(task, state, attempt, value);
    }
    // What our own program refused it has told itself.
    let told = core::mem::take(&mut state.denied) != 0;
    if refused && !told {
        refusal(task, state, regs, number, compat, -value);
    }
    0
}

/// The connect that this thread was in, if it began under the present watch. It ends with this system call.
#[inline(always)]
fn take_attempt(state: &mut TaskState) -> u64 {
    let (attempt, watch) = if global(&USE_MIRROR) != 0 {
        let thread = bpf_get_current_pid_tgid() as u32;
        // SAFETY: copied at once; only this thread writes its entry.
        let Some(found) = (unsafe { ATTEMPTS.get(&thread) }).copied() else { return 0 };
        let _ = ATTEMPTS.remove(&thread);
        state.denied |= found.denied;
        (found.attempt, found.watch)
    } else {
        let found = (state.attempt, state.watch);
        state.attempt = 0;
        found
    };
    if attempt != 0 && watch != 0 && marks::state().is_some_and(|now| now.watch == watch) { attempt } else { 0 }
}

#[inline(always)]
fn result(task: *mut task_struct, state: &TaskState, attempt: u64, value: i64) {
    let Some(event) = emit::begin(&state.mark, KIND_CONNECT_RESULT) else { return };
    let errno = if (-MAX_ERRNO..0).contains(&value) { -value as u32 } else { 0 };
    let header = emit::header(KIND_CONNECT_RESULT, size_of::<ConnectResult>(), state.mark, task);
    event.send(ConnectResult { header, attempt, errno, reserved: 0 });
}

#[inline(always)]
fn refusal(task: *mut task_struct, state: &TaskState, regs: *const c_void, number: u32, compat: bool, errno: i64) {
    // A detached program may run a little longer: the kernel takes links down in the background.
    if marks::state().is_none_or(|state| state.watch == 0) {
        return;
    }
    let Some(event) = emit::begin(&state.mark, KIND_REFUSED) else { return };
    let arguments = if compat {
        [0; 6]
    } else {
        [
            read(regs, &OFF_REGS_ARGUMENT_0),
            read(regs, &OFF_REGS_ARGUMENT_1),
            read(regs, &OFF_REGS_ARGUMENT_2),
            read(regs, &OFF_REGS_ARGUMENT_3),
            read(regs, &OFF_REGS_ARGUMENT_4),
            read(regs, &OFF_REGS_ARGUMENT_5),
        ]
    };
    let mut head = RefusedHead {
        header: emit::header(KIND_REFUSED, 0, state.mark, task),
        syscall: number,
        errno: errno as u32,
        flags: if compat { REFUSED_COMPAT } else { 0 },
        path_len: 0,
        arguments,
    };
    let Some(scratch) = emit::claim(REFUSED_SCRATCH.get_ptr_mut(0)) else { return event.lost() };
    // SAFETY: `scratch` is this program's alone until it is released; what is read is at most half of the room behind
    // `path`.
    unsafe {
        let path = (&raw mut (*scratch.value()).path).cast::<u8>();
        let read = if compat { 0 } else { read_subject(path, &mut head) };
        let read = read & (2 * REFUSED_PATH_BYTES - 1);
        head.path_len = read as u32;
        let len = offset_of!(RefusedScratch, path) + read;
        head.header.len = len as u32;
        (&raw mut (*scratch.value()).head).write(head);
        event.send_refusal(scratch.value().cast(), len);
    }
    scratch.release();
}

/// Copies the path or address that the call was about; answers how many bytes.
#[inline(always)]
unsafe fn read_subject(to: *mut u8, head: &mut RefusedHead) -> usize {
    match subject(head.syscall) {
        Subject::Path(index) => {
            // SAFETY: the caller's room.
            let read = unsafe { user_string(to, REFUSED_PATH_BYTES as u32, argument(head, index)) };
            if read == 0 || read == REFUSED_PATH_BYTES {
                head.flags |= REFUSED_PATH_CUT;
            }
            read
        }
        Subject::Address(index, length) => {
            const SOCKET_ADDRESS: u64 = 128;
            let (address, length) = (argument(head, index), argument(head, length));
            if address == 0 {
                return 0;
            }
            let kept = if length > SOCKET_ADDRESS { SOCKET_ADDRESS as u32 } else { length as u32 };
            // SAFETY: the caller's room.
            if unsafe { user_bytes(to, kept, address) } && u64::from(kept) == length {
                return kept as usize;
            }
            head.flags |= REFUSED_PATH_CUT;
            0
        }
        Subject::None => 0,
    }
}

/// An argument by index, without indexing: the compiler would put a bounds check and a panic there.
#[inline(always)]
fn argument(head: &RefusedHead, index: usize) -> u64 {
    match index {
        0 => head.arguments[0],
        1 => head.arguments[1],
        2 => head.arguments[2],
        3 => head.arguments[3],
        4 => head.arguments[4],
        _ => head.arguments[5],
    }
}
