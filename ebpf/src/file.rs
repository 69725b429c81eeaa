//! Files: how the kernel keys them, and their path along dentries and mounts.

use core::ffi::c_void;

use ringfence_common::limits::{COMPONENT_BYTES, EXEC_DATA_BYTES, PATH_BYTES, PATH_DEPTH};
use ringfence_common::maps::FileKey;
use ringfence_common::record::{EXEC_PATH_CUT, EXEC_PATH_DETACHED, GATE_PATH_CUT, GATE_PATH_PART};

use crate::fields::*;

/// The executable that a task has mapped; null for a kernel thread.
#[inline(always)]
pub fn executable(task: *const c_void) -> *const c_void {
    let mm = pointer(task, &OFF_TASK_MM);
    if mm.is_null() { mm } else { pointer(mm, &OFF_MM_EXE_FILE) }
}

/// How the kernel keys a file.
#[inline(always)]
pub fn key(file: *const c_void) -> FileKey {
    key_of_inode(pointer(file, &OFF_FILE_INODE))
}

/// Whether no name leads to the file.
#[inline(always)]
pub fn is_anonymous(file: *const c_void) -> bool {
    read::<u32>(pointer(file, &OFF_FILE_INODE), &OFF_INODE_NLINK) == 0
}

/// How the kernel keys an inode; zero for none.
#[inline(always)]
pub fn key_of_inode(inode: *const c_void) -> FileKey {
    let super_block = pointer(inode, &OFF_INODE_SB);
    FileKey {
        device: read(super_block, &OFF_SUPER_BLOCK_DEV),
        generation: read(inode, &OFF_INODE_GENERATION),
        inode: read(inode, &OFF_INODE_INO),
    }
}

/// Writes the components of a file's path behind `data[begin..]`, leaf first, each with its NUL.
/// Answers their length and `EXEC_PATH_*`.
///
/// # Safety
/// `data` must have [`EXEC_DATA_BYTES`] twice.
#[inline(always)]
pub unsafe fn path(file: *const c_void, data: *mut u8, begin: usize) -> (usize, u32) {
    // SAFETY: the caller's promise.
    unsafe { components::<EXEC_DATA_BYTES>(file, data, begin) }
}

/// The same at the beginning of a gate's record; answers the length and `GATE_PATH_*`.
///
/// # Safety
/// `data` must have [`PATH_BYTES`] twice.
#[inline(always)]
pub unsafe fn path_of(file: *const c_void, data: *mut u8) -> (usize, u32) {
    // SAFETY: the caller's promise.
    let (len, flags) = unsafe { components::<PATH_BYTES>(file, data, 0) };
    let cut = if flags & EXEC_PATH_CUT != 0 { GATE_PATH_CUT } else { 0 };
    (len, cut | if flags & EXEC_PATH_DETACHED != 0 { GATE_PATH_PART } else { 0 })
}

/// Writes the components of a dentry's path up to the root of its file system, leaf first, each with its NUL; answers
/// their length and `GATE_PATH_*`.
///
/// # Safety
/// `data` must have [`PATH_BYTES`] twice.
#[inline(always)]
pub unsafe fn path_in_file_system(dentry: *const c_void, data: *mut u8) -> (usize, u32) {
    let mut dentry_slot = 0usize;
    set_slot(&mut dentry_slot, dentry);
    let (mut len, mut flags) = (0usize, GATE_PATH_CUT);
    for _ in 0..PATH_DEPTH {
        let dentry = slot(&dentry_slot);
        read_into(&mut dentry_slot, dentry, &OFF_DENTRY_PARENT);
        let parent = slot(&dentry_slot);
        if (parent == dentry) | parent.is_null() {
            flags = GATE_PATH_PART;
            break;
        }
        if len > PATH_BYTES - COMPONENT_BYTES {
            break;
        }
        let to = data.wrapping_add(forget(len) & (PATH_BYTES - 1));
        // SAFETY: the offset is below PATH_BYTES and as much again follows.
        let read = unsafe { kernel_string(to, COMPONENT_BYTES as u32, pointer(dentry, &OFF_DENTRY_NAME)) };
        len = forget(len + read) & (2 * PATH_BYTES - 1);
    }
    (forget(len), forget(flags as usize) as u32)
}

#[inline(always)]
unsafe fn components<const ROOM: usize>(file: *const c_void, data: *mut u8, begin: usize) -> (usize, u32) {
    // Both are written by a helper alone and read afresh in each round: what the verifier learns of a value in one
    // round would otherwise tell that round's state from the others', and it would walk every way through all rounds.
    let (mut dentry_slot, mut mount_slot) = (0usize, 0usize);
    read_into(&mut dentry_slot, file, &OFF_FILE_PATH_DENTRY);
    read_into(&mut mount_slot, file, &OFF_FILE_PATH_MNT);
    let (mut len, mut flags) = (0usize, EXEC_PATH_CUT);
    for _ in 0..PATH_DEPTH {
        let (dentry, vfsmount) = (slot(&dentry_slot), slot(&mount_slot));
        if dentry == pointer(vfsmount, &OFF_VFSMOUNT_ROOT) {
            let mount = around(vfsmount, &OFF_MOUNT_MNT);
            let parent = pointer(mount, &OFF_MOUNT_PARENT);
            if (parent == mount) | parent.is_null() {
                flags = 0;
                break;
            }
            read_into(&mut dentry_slot, mount, &OFF_MOUNT_MOUNTPOINT);
            set_slot(&mut mount_slot, at(parent, &OFF_MOUNT_MNT));
            continue;
        }
        if len > PATH_BYTES - COMPONENT_BYTES {
            break;
        }
        let to = data.wrapping_add(forget(begin + len) & (ROOM - 1));
        // Forgotten first: the compiler would leave out a mask that the test above makes needless to it, and to it alone.
        // SAFETY: the offset is below ROOM and as much again follows.
        let read = unsafe { kernel_string(to, COMPONENT_BYTES as u32, pointer(dentry, &OFF_DENTRY_NAME)) };
        len = forget(len + read) & (2 * PATH_BYTES - 1);
        read_into(&mut dentry_slot, dentry, &OFF_DENTRY_PARENT);
        let parent = slot(&dentry_slot);
        if (parent == dentry) | parent.is_null() {
            flags = EXEC_PATH_DETACHED;
            break;
        }
    }
    // Forgotten likewise: the rest of the program is then verified once, not once for each way out of the loop.
    (forget(len), forget(flags as usize) as u32)
}
