//! Gates: by which rules a process is judged, and telling what was refused.

use core::ffi::c_void;
use core::mem::offset_of;

use aya_ebpf::bindings::task_struct;
use ringfence_common::limits::PATH_BYTES;
use ringfence_common::maps::{FileKey, TaskState};
use ringfence_common::mark::Mark;
use ringfence_common::record::{
    GATE_PATH_CUT, GATE_PATH_WHOLE, GateHead, GateScratch, Header, KIND_DENIED, KIND_NOTED,
};
use ringfence_common::rules::{Object, ObjectKey};

use crate::emit;
use crate::fields::*;
use crate::file;
use crate::maps::{GATE_SCRATCH, OBJECTS, POLICIES, RULES};
use crate::marks;

/// What most gates answer, as Landlock does.
pub const EACCES: u32 = 13;
/// What signals, tracing, namespaces, `bpf` and unix peers get.
pub const EPERM: u32 = 1;

/// The marked task that acts, and the rules that it is judged by.
pub struct Actor {
    /// The task.
    pub task: *mut task_struct,
    /// Its state.
    pub state: &'static mut TaskState,
    /// Its mark; the generation is that of its rule set, 0 where no rules are.
    pub mark: Mark,
}

/// The running task; `None` when it is not marked.
#[inline(always)]
pub fn actor() -> Option<Actor> {
    let task = current();
    let state = marks::current(task)?;
    let mark = judged(state.mark);
    Some(Actor { task, state, mark })
}

/// The mark with the generation of the rule set that its process is judged by.
#[inline(always)]
pub fn judged(mark: Mark) -> Mark {
    // SAFETY: the value is copied at once; the probe replaces it whole.
    let policy = unsafe { POLICIES.get(&mark.session) };
    let generation = policy.map_or(0, |policy| if mark.launch != 0 { policy.launched } else { policy.host });
    Mark { generation, ..mark }
}

/// Whether `gate` refuses what no rule speaks of.
#[inline(always)]
pub fn refused_by_default(mark: &Mark, gate: u32) -> bool {
    // SAFETY: rule sets are never changed.
    unsafe { RULES.get(&mark.generation) }.is_some_and(|rules| rules.refuse & (1 << gate) != 0)
}

/// What the rules say of an inode.
#[inline(always)]
pub fn object(mark: &Mark, file: FileKey) -> Option<&'static Object> {
    let key = ObjectKey { generation: mark.generation, reserved: 0, file };
    // SAFETY: rule sets are never changed while a session is judged by them.
    unsafe { OBJECTS.get(&key) }
}

/// A record of nothing yet.
#[inline(always)]
pub fn head(gate: u32, errno: u32) -> GateHead {
    let mark = Mark { session: 0, launch: 0, generation: 0, role_and_flags: 0 };
    GateHead {
        header: Header { kind: 0, len: 0, time_ns: 0, mark, start_ns: 0, pid: 0, thread: 0 },
        gate,
        errno,
        flags: 0,
        label: 0,
        file: FileKey { device: 0, generation: 0, inode: 0 },
        family: 0,
        port: 0,
        address: [0; 16],
        other_pid: 0,
        detail: 0,
        path_len: 0,
        reserved: 0,
    }
}

/// What a record says after its fixed part.
#[derive(Clone, Copy)]
pub enum Subject {
    /// Nothing.
    None,
    /// The path of this dentry, up to the root of its file system.
    Dentry(*const c_void),
    /// The path of this file.
    File(*const c_void),
    /// So many bytes of the kernel's, at most `sun_path`.
    Bytes(*const c_void, u32),
}

/// Tells a refusal, and that the present system call's answer is told by it.
#[inline(always)]
pub fn deny(actor: &mut Actor, head: GateHead, subject: Subject) {
    actor.state.denied = 1;
    let start_ns = marks::start_ns(marks::leader(actor.task));
    tell::<KIND_DENIED>(&actor.mark, start_ns, head, subject);
}

/// Tells what passed and is to be known.
#[inline(always)]
pub fn note(actor: &Actor, head: GateHead, subject: Subject) {
    let start_ns = marks::start_ns(marks::leader(actor.task));
    tell::<KIND_NOTED>(&actor.mark, start_ns, head, subject);
}

/// Tells either of the process with `mark` that began at `start_ns`.
#[inline(always)]
pub fn tell<const KIND: u32>(mark: &Mark, start_ns: u64, mut head: GateHead, subject: Subject) {
    let Some(event) = emit::begin(mark, KIND) else { return };
    let Some(scratch) = emit::claim(GATE_SCRATCH.get_ptr_mut(0)) else { return event.lost() };
    head.header = emit::header_with(KIND, 0, *mark, start_ns);
    // SAFETY: `scratch` is this program's alone until it is released; `describe` stays inside.
    unsafe {
        let len = describe(scratch.value(), head, subject);
        if KIND == KIND_DENIED {
            event.send_refusal(scratch.value().cast(), len);
        } else {
            event.send_bytes(scratch.value().cast(), len);
        }
    }
    scratch.release();
}

/// Fills in the variable part; answers the record's length.
#[inline(always)]
unsafe fn describe(scratch: *mut GateScratch, mut head: GateHead, subject: Subject) -> usize {
    /// `sizeof(sun_path)`.
    const SUN_PATH: u32 = 108;
    // SAFETY: the caller's scratch; what is written is at most PATH_BYTES, with as much again behind it.
    unsafe {
        let path = (&raw mut (*scratch).path).cast::<u8>();
        let (len, flags) = match subject {
            Subject::None => (0, 0),
            Subject::Dentry(dentry) => file::path_in_file_system(dentry, path),
            Subject::File(file) => file::path_of(file, path),
            Subject::Bytes(from, len) => {
                let len = at_most(len, SUN_PATH);
                let read = kernel_bytes(path, len, from);
                if read { (len as usize, GATE_PATH_WHOLE) } else { (0, GATE_PATH_WHOLE | GATE_PATH_CUT) }
            }
        };
        let len = len & (2 * PATH_BYTES - 1);
        head.path_len = len as u32;
        head.flags |= flags;
        let whole = offset_of!(GateScratch, path) + len;
        head.header.len = whole as u32;
        (&raw mut (*scratch).head).write(head);
        whole
    }
}
