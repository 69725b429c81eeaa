//! What is particular to x86-64: where a system call's number and arguments are, and which argument is a path.

/// Calls `$with! { NAME: "struct", "member.path"; … }` with the fields that hold a system call, as
/// [`kernel_fields`](crate::kernel_fields) does with the others.
#[macro_export]
macro_rules! syscall_fields {
    ($with:ident) => {
        $with! {
            OFF_REGS_NUMBER: "pt_regs", "orig_ax";
            OFF_REGS_ARGUMENT_0: "pt_regs", "di";
            OFF_REGS_ARGUMENT_1: "pt_regs", "si";
            OFF_REGS_ARGUMENT_2: "pt_regs", "dx";
            OFF_REGS_ARGUMENT_3: "pt_regs", "r10";
            OFF_REGS_ARGUMENT_4: "pt_regs", "r8";
            OFF_REGS_ARGUMENT_5: "pt_regs", "r9";
            OFF_TASK_ABI_STATUS: "task_struct", "thread_info.status";
        }
    };
}

/// Bit of `thread_info.status` that is set while a task is in a 32-bit system call (`TS_COMPAT`, arch/x86).
pub const ABI_STATUS_COMPAT: u32 = 2;

/// `connect`.
pub const SYS_CONNECT: u32 = 42;
/// `sendto`.
pub const SYS_SENDTO: u32 = 44;
/// `sendmsg`.
pub const SYS_SENDMSG: u32 = 46;
/// `bind`.
pub const SYS_BIND: u32 = 49;
/// `sendmmsg`.
pub const SYS_SENDMMSG: u32 = 307;

/// What a refused system call was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The argument of this index is a path, NUL-terminated.
    Path(usize),
    /// The argument of the first index is a socket address, its length is the second one.
    Address(usize, usize),
    /// Nothing that is read from memory.
    None,
}

/// What system call `number` is about. Of two paths the first.
#[inline(always)]
pub fn subject(number: u32) -> Subject {
    match number {
        SYS_CONNECT | SYS_BIND => Subject::Address(1, 2),
        SYS_SENDTO => Subject::Address(4, 5),
        // open stat lstat access execve truncate chdir rename mkdir rmdir creat link unlink symlink readlink chmod chown
        // lchown mknod statfs chroot umount2 swapon setxattr lsetxattr removexattr lremovexattr utimes
        2 | 4 | 6 | 21 | 59 | 76 | 80 | 82 | 83 | 84 | 85 | 86 | 87 | 88 | 89 | 90 | 92 | 94 | 133 | 137 | 161
        | 166 | 167 | 188 | 189 | 197 | 198 | 235 => Subject::Path(0),
        // mount inotify_add_watch openat mkdirat mknodat fchownat futimesat newfstatat unlinkat renameat linkat
        // readlinkat fchmodat faccessat utimensat name_to_handle_at renameat2 execveat statx open_tree move_mount
        // fspick openat2 faccessat2 mount_setattr fchmodat2
        165 | 254 | 257 | 258 | 259 | 260 | 261 | 262 | 263 | 264 | 265 | 267 | 268 | 269 | 280 | 303 | 316 | 322
        | 332 | 428 | 429 | 433 | 437 | 439 | 442 | 452 => Subject::Path(1),
        // symlinkat: the new name
        266 => Subject::Path(2),
        _ => Subject::None,
    }
}
