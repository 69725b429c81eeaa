//! What a process makes, removes, renames, cuts off, and whose metadata it changes.

use core::ffi::c_void;

use aya_ebpf::EbpfContext;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::rules::{NAME_PROGRAM_REFUSED, NAME_READ_REFUSED, NAME_WAY, NAME_WRITE_REFUSED, gate};

use super::files::{Deed, Kind, judge};
use crate::fields::*;
use crate::gate::{self as gates, Subject};

/// `ATTR_*` (include/linux/fs.h).
const ATTR_MODE: u32 = 1;
const ATTR_SIZE: u32 = 1 << 3;
/// Mode, owner, group, and times, given or present ones.
const ATTR_METADATA: u32 = ATTR_MODE | 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8;
/// The kernel's own doing: permissions that are lost when a file is written.
const ATTR_FORCE: u32 = 1 << 9;

/// Making something that is not a directory: no way to a protected name may be anything else.
#[inline(always)]
fn making(refused: u32) -> Deed {
    Deed { refused_here: NAME_WAY, ..Deed::change(NAME_WRITE_REFUSED | refused) }
}

#[inline(always)]
fn program(refused: bool) -> u32 {
    if refused { NAME_PROGRAM_REFUSED } else { 0 }
}

#[inline(always)]
fn inode_of(dentry: *const c_void) -> *const c_void {
    pointer(dentry, &OFF_DENTRY_INODE)
}

#[inline(always)]
fn change(dentry: *const c_void, deed: Deed) -> i32 {
    let Some(mut actor) = gates::actor() else { return 0 };
    judge(&mut actor, dentry, deed, Subject::Dentry(dentry))
}

/// A regular file.
#[lsm(hook = "inode_create")]
pub fn rf_create(ctx: LsmContext) -> i32 {
    let mode: u64 = ctx.arg(2);
    change(ctx.arg(1), making(program(Kind::permits(mode as u16))))
}

/// A device, a pipe, a socket.
#[lsm(hook = "inode_mknod")]
pub fn rf_mknod(ctx: LsmContext) -> i32 {
    change(ctx.arg(1), making(0))
}

/// A symbolic link, which may lead to a program.
#[lsm(hook = "inode_symlink")]
pub fn rf_symlink(ctx: LsmContext) -> i32 {
    change(ctx.arg(1), making(NAME_PROGRAM_REFUSED))
}

/// A directory: the way to a protected name may be made.
#[lsm(hook = "inode_mkdir")]
pub fn rf_mkdir(ctx: LsmContext) -> i32 {
    change(ctx.arg(1), Deed::change(NAME_WRITE_REFUSED))
}

/// Anything but a directory goes.
#[lsm(hook = "inode_unlink")]
pub fn rf_unlink(ctx: LsmContext) -> i32 {
    change(ctx.arg(1), making(0))
}

/// A directory goes, also an empty one.
#[lsm(hook = "inode_rmdir")]
pub fn rf_rmdir(ctx: LsmContext) -> i32 {
    change(ctx.arg(1), making(0))
}

/// What is at a name also gets another one, by which it could be read, written and run.
#[lsm(hook = "inode_link")]
pub fn rf_link(ctx: LsmContext) -> i32 {
    two_names(ctx.arg(0), ctx.arg(2), true)
}

/// What is at a name gets another one. Two that are exchanged come here twice.
#[lsm(hook = "inode_rename")]
pub fn rf_rename(ctx: LsmContext) -> i32 {
    two_names(ctx.arg(1), ctx.arg(3), false)
}

#[inline(always)]
fn two_names(old: *const c_void, new: *const c_void, link: bool) -> i32 {
    let Some(mut actor) = gates::actor() else { return 0 };
    let kind = Kind::of(inode_of(old));
    let leaves = making(NAME_READ_REFUSED | program(link & kind.is_program()));
    let comes = making(program(kind.brings_program()));
    // In a loop, since the whole judgement would otherwise be in the program twice.
    let (mut dentry, mut refused) = (old, leaves.refused);
    for _ in 0..2 {
        let deed = Deed { refused, ..comes };
        let answer = judge(&mut actor, dentry, deed, Subject::Dentry(dentry));
        if answer != 0 {
            return answer;
        }
        (dentry, refused) = (new, comes.refused);
    }
    0
}

/// Where `ftruncate` and `O_TRUNC` have no hook of their own, they come here too.
#[lsm(hook = "path_truncate")]
pub fn rf_truncate(ctx: LsmContext) -> i32 {
    let path: *const c_void = ctx.arg(0);
    cut_off(pointer(path, &OFF_PATH_DENTRY))
}

/// `ftruncate` and `O_TRUNC`, since Linux 6.2.
#[lsm(hook = "file_truncate")]
pub fn rf_ftruncate(ctx: LsmContext) -> i32 {
    let file: *const c_void = ctx.arg(0);
    cut_off(pointer(file, &OFF_FILE_PATH_DENTRY))
}

#[inline(always)]
fn cut_off(dentry: *const c_void) -> i32 {
    let is_program = Kind::of(inode_of(dentry)).is_program();
    change(dentry, Deed::change(NAME_WRITE_REFUSED | program(is_program)))
}

/// A change of metadata, which also what is not writable refuses.
#[inline(always)]
fn metadata(dentry: *const c_void, makes_program: bool) -> i32 {
    let refused = NAME_WRITE_REFUSED | program(makes_program & Kind::of(inode_of(dentry)).is_regular());
    change(dentry, Deed { only_writable: gate::METADATA, ..Deed::change(refused) })
}

/// An argument of a hook that has one more in front on later kernels.
#[inline(always)]
fn argument(ctx: &LsmContext, index: &'static u64) -> *const c_void {
    if global(index) == 0 { argument_at::<0>(ctx.as_ptr()) } else { argument_at::<8>(ctx.as_ptr()) }
}

/// The argument behind it.
#[inline(always)]
fn argument_after(ctx: &LsmContext, index: &'static u64) -> *const c_void {
    if global(index) == 0 { argument_at::<8>(ctx.as_ptr()) } else { argument_at::<16>(ctx.as_ptr()) }
}

/// Mode, owner, times. A size that is set was judged when it was asked for.
#[lsm(hook = "inode_setattr")]
pub fn rf_setattr(ctx: LsmContext) -> i32 {
    let attributes = argument_after(&ctx, &ARG_SETATTR_DENTRY);
    let valid: u32 = read(attributes, &OFF_ATTR_VALID);
    if valid & ATTR_METADATA == 0 || valid & (ATTR_SIZE | ATTR_FORCE) != 0 {
        return 0;
    }
    let makes_program = valid & ATTR_MODE != 0 && Kind::permits(read(attributes, &OFF_ATTR_MODE));
    metadata(argument(&ctx, &ARG_SETATTR_DENTRY), makes_program)
}

/// Extended attributes; on Linux 6.1 access lists too.
#[lsm(hook = "inode_setxattr")]
pub fn rf_setxattr(ctx: LsmContext) -> i32 {
    /// How `system.posix_acl_access` begins, and no other attribute but its like.
    const ACCESS_LIST: u64 = u64::from_ne_bytes(*b"system.p");
    // Bytes, not a string: no name of an attribute is so short that another page could begin within eight.
    let beginning: u64 = word(argument_after(&ctx, &ARG_SETXATTR_DENTRY));
    metadata(argument(&ctx, &ARG_SETXATTR_DENTRY), beginning == ACCESS_LIST)
}

#[lsm(hook = "inode_removexattr")]
pub fn rf_removexattr(ctx: LsmContext) -> i32 {
    metadata(argument(&ctx, &ARG_REMOVEXATTR_DENTRY), false)
}

/// An access list can make a file executable.
#[lsm(hook = "inode_set_acl")]
pub fn rf_set_acl(ctx: LsmContext) -> i32 {
    metadata(argument(&ctx, &ARG_SET_ACL_DENTRY), true)
}

#[lsm(hook = "inode_remove_acl")]
pub fn rf_remove_acl(ctx: LsmContext) -> i32 {
    metadata(argument(&ctx, &ARG_REMOVE_ACL_DENTRY), false)
}
