//! Files: how the kernel keys them, and their path along dentries and mounts.

use core::ffi::c_void;

use ringfence_common::limits::{COMPONENT_BYTES, EXEC_DATA_BYTES, PATH_BYTES, PATH_DEPTH};
use ringfence_common::maps::FileKey;
use ringfence_common::record::{EXEC_PATH_CUT, EXEC_PATH_DETACHED};

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
    let inode = pointer(file, &OFF_FILE_INODE);
    let super_block = pointer(inode, &OFF_INODE_SB);
    FileKey {
        device: read(super_block, &OFF_SUPER_BLOCK_DEV),
        generation: read(inode, &OFF_INODE_GENERATION),
        inode: read(inode, &OFF_INODE_INO),
    }
}

/// Whether no name leads to the file.
#[inline(always)]
pub fn is_anonymous(file: *const c_void) -> bool {
    read::<u32>(pointer(file, &OFF_FILE_INODE), &OFF_INODE_NLINK) == 0
}

/// Writes the components of a file's path behind `data[begin..]`, leaf first, each with its NUL.
/// Answers their length and `EXEC_PATH_*`.
///
/// # Safety
/// `data` must have [`EXEC_DATA_BYTES`] twice.
#[inline(always)]
pub unsafe fn path(file: *const c_void, data: *mut u8, begin: usize) -> (usize, u32) {
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
        let to = data.wrapping_add((begin + len) & (EXEC_DATA_BYTES - 1));
        // SAFETY: the offset is below EXEC_DATA_BYTES and as much again follows.
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
