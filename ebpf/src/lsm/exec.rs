//! Which files a process runs: at exec, and mapped executable (a loader runs what it maps).

use core::ffi::c_void;

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::maps::FileKey;
use ringfence_common::mark::{FLAG_GIT, Mark};
use ringfence_common::record::GateHead;
use ringfence_common::rules::{OBJECT_EXEC_ALLOWED, OBJECT_EXEC_REFUSED, gate};

use crate::fields::*;
use crate::file;
use crate::gate::{self as gates, EACCES, Subject};
use crate::marks;

/// `PROT_EXEC`.
const PROT_EXEC: u64 = 4;

/// Why this file is not run: the gate, and the label of the rule.
#[inline(always)]
pub fn refusal(mark: &Mark, file: *const c_void, key: FileKey) -> Option<(u32, u32)> {
    if mark.generation == 0 {
        return None;
    }
    let (bits, label) = gates::object(mark, key).map_or((0, 0), |object| (object.bits, object.label));
    if bits & OBJECT_EXEC_REFUSED != 0 {
        return Some((gate::EXEC, label));
    }
    if bits & OBJECT_EXEC_ALLOWED != 0 {
        return None;
    }
    if gates::refused_by_default(mark, gate::EXEC_ANONYMOUS) && file::is_anonymous(file) {
        return Some((gate::EXEC_ANONYMOUS, 0));
    }
    gates::refused_by_default(mark, gate::EXEC).then_some((gate::EXEC, 0))
}

/// Each file of an exec comes here: a script first, then its interpreter.
#[lsm(hook = "bprm_check_security")]
pub fn rf_bprm(ctx: LsmContext) -> i32 {
    let Some(mut actor) = gates::actor() else { return 0 };
    let bprm: *const c_void = ctx.arg(0);
    let file = pointer(bprm, &OFF_BPRM_FILE);
    let key = file::key(file);
    let Some((gate, label)) = refusal(&actor.mark, file, key) else { return 0 };
    let head = GateHead { label, file: key, ..gates::head(gate, EACCES) };
    gates::deny(&mut actor, head, Subject::File(file));
    -(EACCES as i32)
}

/// Executable mappings: what may not be run may not be mapped for it either, and git with foreign code is not git.
#[lsm(hook = "mmap_file")]
pub fn rf_mmap(ctx: LsmContext) -> i32 {
    let Some(mut actor) = gates::actor() else { return 0 };
    let protection: u64 = ctx.arg(2);
    // Anonymous memory has no file. A scalar copy is looked at: the verifier would take the test of the argument away.
    let file: u64 = forget(ctx.arg::<u64>(0) as usize) as u64;
    if protection & PROT_EXEC == 0 || file == 0 {
        return 0;
    }
    let file = file as *const c_void;
    if actor.state.mark.role_and_flags & FLAG_GIT != 0 {
        let owner: u32 = read(pointer(file, &OFF_FILE_INODE), &OFF_INODE_UID);
        if owner != 0 {
            marks::no_longer_git(actor.task, actor.state);
        }
    }
    let key = file::key(file);
    let Some((gate, label)) = refusal_to_map(&actor.mark, file, key) else { return 0 };
    let head = GateHead { label, file: key, ..gates::head(gate, EACCES) };
    gates::deny(&mut actor, head, Subject::File(file));
    -(EACCES as i32)
}

/// Libraries are not programs: where only named programs run, a mapping is refused only by name, or without one.
#[inline(always)]
fn refusal_to_map(mark: &Mark, file: *const c_void, key: FileKey) -> Option<(u32, u32)> {
    if mark.generation == 0 {
        return None;
    }
    let (bits, label) = gates::object(mark, key).map_or((0, 0), |object| (object.bits, object.label));
    if bits & OBJECT_EXEC_REFUSED != 0 {
        return Some((gate::EXEC, label));
    }
    let anonymous = gates::refused_by_default(mark, gate::EXEC_ANONYMOUS) && file::is_anonymous(file);
    anonymous.then_some((gate::EXEC_ANONYMOUS, 0))
}
