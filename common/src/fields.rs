//! Which fields of the kernel's own structs the programs read: one table for both sides.
//!
//! The compiler of the kernel programs emits no relocations for them. So each is a read-only global of the object,
//! named here, and the loader fills it with the byte offset that the running kernel's BTF gives.

/// Calls `$with! { NAME: "struct", "member.path"; … }` with the whole table.
#[macro_export]
macro_rules! kernel_fields {
    ($with:ident) => {
        $with! {
            OFF_TASK_PID: "task_struct", "pid";
            OFF_TASK_TGID: "task_struct", "tgid";
            OFF_TASK_GROUP_LEADER: "task_struct", "group_leader";
            OFF_TASK_REAL_PARENT: "task_struct", "real_parent";
            OFF_TASK_START_BOOTTIME: "task_struct", "start_boottime";
            OFF_TASK_EXIT_CODE: "task_struct", "exit_code";
            OFF_TASK_SIGNAL: "task_struct", "signal";
            OFF_TASK_MM: "task_struct", "mm";
            OFF_TASK_PTRACE: "task_struct", "ptrace";
            OFF_TASK_FILES: "task_struct", "files";
            OFF_TASK_REAL_CRED: "task_struct", "real_cred";
            OFF_CRED_UID: "cred", "uid";
            OFF_SIGNAL_LIVE: "signal_struct", "live";
            OFF_SIGNAL_FLAGS: "signal_struct", "flags";
            OFF_SIGNAL_GROUP_EXIT_CODE: "signal_struct", "group_exit_code";
            OFF_MM_ARG_START: "mm_struct", "arg_start";
            OFF_MM_ARG_END: "mm_struct", "arg_end";
            OFF_MM_EXE_FILE: "mm_struct", "exe_file";
            OFF_FILES_FDT: "files_struct", "fdt";
            OFF_FDTABLE_FD: "fdtable", "fd";
            OFF_FDTABLE_MAX_FDS: "fdtable", "max_fds";
            OFF_FILE_PATH_MNT: "file", "f_path.mnt";
            OFF_FILE_PATH_DENTRY: "file", "f_path.dentry";
            OFF_FILE_INODE: "file", "f_inode";
            OFF_FILE_MODE: "file", "f_mode";
            OFF_INODE_INO: "inode", "i_ino";
            OFF_INODE_NLINK: "inode", "i_nlink";
            OFF_INODE_GENERATION: "inode", "i_generation";
            OFF_INODE_SB: "inode", "i_sb";
            OFF_INODE_MODE: "inode", "i_mode";
            OFF_INODE_UID: "inode", "i_uid";
            OFF_SUPER_BLOCK_DEV: "super_block", "s_dev";
            OFF_DENTRY_NAME: "dentry", "d_name.name";
            OFF_DENTRY_PARENT: "dentry", "d_parent";
            OFF_DENTRY_INODE: "dentry", "d_inode";
            OFF_PATH_DENTRY: "path", "dentry";
            OFF_ATTR_VALID: "iattr", "ia_valid";
            OFF_ATTR_MODE: "iattr", "ia_mode";
            OFF_VFSMOUNT_ROOT: "vfsmount", "mnt_root";
            OFF_MOUNT_MNT: "mount", "mnt";
            OFF_MOUNT_PARENT: "mount", "mnt_parent";
            OFF_MOUNT_MOUNTPOINT: "mount", "mnt_mountpoint";
            OFF_BPRM_FILENAME: "linux_binprm", "filename";
            OFF_BPRM_FILE: "linux_binprm", "file";
            OFF_SOCK_ADDR_SK: "bpf_sock_addr_kern", "sk";
            OFF_SOCK_ADDR_UADDR: "bpf_sock_addr_kern", "uaddr";
            OFF_SOCK_TYPE: "sock", "sk_type";
            OFF_SOCK_FAMILY: "sock", "__sk_common.skc_family";
            OFF_SOCK_PEER_PID: "sock", "sk_peer_pid";
            OFF_PID_NUMBERS: "pid", "numbers";
            OFF_SOCKET_SK: "socket", "sk";
            OFF_SOCKET_STATE: "socket", "state";
            OFF_MSGHDR_NAME: "msghdr", "msg_name";
        }
    };
}

/// As [`kernel_fields`], for fields that a supported kernel may lack: they stay 0, and what needs them is not loaded.
#[macro_export]
macro_rules! optional_kernel_fields {
    ($with:ident) => {
        $with! {
            // Came with the hooks for unix sockets, Linux 6.7.
            OFF_SOCK_ADDR_UADDRLEN: "bpf_sock_addr_kern", "uaddrlen";
            // Unix sockets can be a module, whose types are not here.
            OFF_UNIX_ADDRESS: "unix_sock", "addr";
            OFF_UNIX_DENTRY: "unix_sock", "path.dentry";
            OFF_UNIX_PEER: "unix_sock", "peer";
            OFF_UNIX_ADDRESS_LEN: "unix_address", "len";
            OFF_UNIX_ADDRESS_NAME: "unix_address", "name";
        }
    };
}

/// Calls `$with! { NAME: "hook", "struct"; … }`: which argument of a hook is the first pointer to that struct. It is not
/// the same on every kernel, and the hook may be absent: then the loader sets 0 and the program is not loaded.
#[macro_export]
macro_rules! hook_arguments {
    ($with:ident) => {
        $with! {
            // A first argument for the mount's mapping of ids was added after Linux 6.1.
            ARG_SETATTR_DENTRY: "inode_setattr", "dentry";
            ARG_SETXATTR_DENTRY: "inode_setxattr", "dentry";
            ARG_REMOVEXATTR_DENTRY: "inode_removexattr", "dentry";
            ARG_SET_ACL_DENTRY: "inode_set_acl", "dentry";
            ARG_REMOVE_ACL_DENTRY: "inode_remove_acl", "dentry";
        }
    };
}
