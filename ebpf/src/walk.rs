//! Iterators over all tasks, run by the probe: enrolling a tree, and finding how the kernel keys a file.

use core::ffi::c_void;

use aya_ebpf::bindings::task_struct;
use ringfence_common::maps::{FileKey, Request, TaskState};
use ringfence_common::mark::{
    FLAG_FORKED, IDENTITY_HOOK, IDENTITY_LAUNCHER, Mark, ROLE_HOOK, ROLE_HOST, ROLE_INTERNAL, ROLE_LAUNCHED,
};

use crate::fields::*;
use crate::file;
use crate::maps::{IDENTITIES, MARKS, REQUEST, SESSIONS};
use crate::marks;

/// `struct bpf_iter__task`: the layout is the kernel's interface to these programs.
#[repr(C)]
pub struct TaskContext {
    meta: *const c_void,
    task: *mut task_struct,
}

/// Marks this task if it is a thread of the wanted process, or of a child of one that is in the session.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
pub fn rf_enrol(ctx: *mut TaskContext) -> i32 {
    // SAFETY: the context of this kind of program.
    let task = unsafe { (*ctx).task };
    if task.is_null() {
        return 0;
    }
    let Some(request) = REQUEST.get_ptr_mut(0) else { return 0 };
    // SAFETY: a live map value; only the probe's one walk uses it.
    let request = unsafe { &mut *request };
    let leader = marks::leader(task);
    let start_ns = marks::start_ns(leader);
    let tgid: u32 = read(leader.cast(), &OFF_TASK_TGID);
    let uid: u32 = read(pointer(task.cast(), &OFF_TASK_REAL_CRED), &OFF_CRED_UID);
    let is_root = tgid == request.pid && start_ns / max(request.tick_ns) == request.start;
    if is_root {
        request.seen = 1;
    }
    // SAFETY: the verifier knows `leader` as a task.
    let parent = marks::leader(unsafe { task_field(leader, &OFF_TASK_REAL_PARENT) });
    // SAFETY: map values live as long as the program runs.
    let (own, group, above) =
        unsafe { (MARKS.get(task).as_mut(), MARKS.get(leader).as_ref(), MARKS.get(parent).as_ref()) };
    let in_session =
        |state: Option<&TaskState>| state.map(|state| state.mark).filter(|mark| mark.session == request.session);
    let (group, above) = (in_session(group), in_session(above));
    if !is_root && group.is_none() && above.is_none() {
        return 0;
    }
    if uid != request.uid {
        if is_root {
            request.foreign = 1;
        }
        return 0;
    }
    let wanted = if is_root {
        root_mark(request)
    } else if let Some(group) = group.filter(|_| leader != task) {
        group
    } else if let Some(above) = above {
        child_mark(request, above, leader, parent)
    } else {
        return 0;
    };
    match own {
        None => {
            if marks::give(task, wanted).is_none() {
                return 0;
            }
        }
        Some(state) => {
            let Some(mark) = merged(request, state.mark, wanted, is_root) else { return 0 };
            state.mark = mark;
        }
    }
    request.marked += 1;
    if leader == task {
        marks::mirror(tgid, &wanted, start_ns);
    }
    0
}

/// What a task that has a mark already becomes; `None` when it stays as it is. A launch is never lost or replaced.
#[inline(always)]
fn merged(request: &mut Request, has: Mark, wanted: Mark, is_root: bool) -> Option<Mark> {
    if has.session != request.session {
        // SAFETY: only whether it is there counts.
        if unsafe { SESSIONS.get(&has.session) }.is_some() {
            if is_root {
                request.other = has.session;
            }
            return None;
        }
        return Some(if has.launch != 0 { Mark { session: request.session, ..has } } else { wanted });
    }
    let role_changes = is_root && has.launch == 0 && has.role_and_flags != wanted.role_and_flags;
    if role_changes { Some(wanted) } else { None }
}

#[inline(always)]
fn root_mark(request: &mut Request) -> Mark {
    // One launch for all threads of the process.
    if request.role == ROLE_LAUNCHED && request.launch == 0 {
        request.launch = marks::fresh_launch();
    }
    Mark {
        session: request.session,
        launch: request.launch,
        generation: request.generation,
        role_and_flags: request.role,
    }
}

/// The mark of a process that was started by a marked one before there were marks: what its executable tells.
#[inline(always)]
fn child_mark(request: &Request, above: Mark, leader: *mut task_struct, parent: *mut task_struct) -> Mark {
    let role = if above.launch != 0 {
        ROLE_LAUNCHED
    } else {
        let own = file::key(file::executable(leader.cast()));
        // SAFETY: the value is copied at once, and identities are only added.
        let identity = unsafe { IDENTITIES.get(&own) }.copied().unwrap_or(0);
        if identity == IDENTITY_LAUNCHER {
            ROLE_LAUNCHED
        } else if above.role() != ROLE_HOST {
            above.role_after_exec(identity)
        } else if identity == IDENTITY_HOOK {
            ROLE_HOOK
        } else if same(&own, &file::key(file::executable(parent.cast()))) {
            ROLE_HOST | FLAG_FORKED
        } else {
            ROLE_INTERNAL
        }
    };
    let launch = if role == ROLE_LAUNCHED && above.launch == 0 { marks::fresh_launch() } else { above.launch };
    Mark { session: request.session, launch, generation: request.generation, role_and_flags: role }
}

#[inline(always)]
fn same(one: &FileKey, other: &FileKey) -> bool {
    one.inode == other.inode && one.device == other.device && one.generation == other.generation
}

#[inline(always)]
fn max(tick_ns: u64) -> u64 {
    if tick_ns == 0 { 1 } else { tick_ns }
}

/// Answers how the kernel keys the files behind descriptors of the wanted process, and who that process is.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
pub fn rf_identify(ctx: *mut TaskContext) -> i32 {
    // SAFETY: the context of this kind of program.
    let task = unsafe { (*ctx).task };
    if task.is_null() {
        return 0;
    }
    let Some(request) = REQUEST.get_ptr_mut(0) else { return 0 };
    // SAFETY: a live map value; only the probe's one walk uses it.
    let request = unsafe { &mut *request };
    if read::<u32>(task.cast(), &OFF_TASK_PID) != request.pid {
        return 0;
    }
    let table = pointer(pointer(task.cast(), &OFF_TASK_FILES), &OFF_FILES_FDT);
    let (open, most) = (pointer(table, &OFF_FDTABLE_FD), read::<u32>(table, &OFF_FDTABLE_MAX_FDS));
    for (fd, key) in request.fds.iter().zip(request.files.iter_mut()).take(request.files_wanted as usize) {
        // What is not open has no inode, and reads as zero.
        *key = file::key(if *fd < most { element(open, *fd) } else { core::ptr::null() });
    }
    request.start = marks::start_ns(marks::leader(task)) / max(request.tick_ns);
    request.parent = read(pointer(task.cast(), &OFF_TASK_REAL_PARENT), &OFF_TASK_TGID);
    request.owner = read(pointer(task.cast(), &OFF_TASK_REAL_CRED), &OFF_CRED_UID);
    request.seen = 1;
    0
}
