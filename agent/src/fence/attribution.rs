//! Which layer refused a system call, by what the plan says: known by errno alone it stays `other`.

use std::path::{Component, Path, PathBuf};

use landlock::AccessFs;

use super::filter;
use super::plan::{Plan, right_names, rights};

/// Who refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// The plan's filter answers exactly this errno to this call.
    Seccomp,
    /// The plan grants no right that the call needs, and the errno is Landlock's.
    Landlock,
    /// Something else: ordinary permissions, a file system, another security module.
    Other,
}

/// Who refused a call, and what it wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribution {
    /// The layer.
    pub layer: Layer,
    /// One line for people: `write_file /home/u/.bashrc`.
    pub what: String,
    /// The right or group that is missing, if a layer of ours refused.
    pub missing: Option<String>,
    /// Whether it was worked out from the plan and the errno, rather than reported by the layer itself.
    pub inferred: bool,
}

/// Whether the plan's filter refuses a call with these arguments (native ABI).
pub fn refuses(plan: &Plan, syscall: i32, arguments: &[u64; 6]) -> bool {
    filter::answer(&plan.seccomp, syscall, arguments) != Some(0)
}

/// Whether the plan grants less than `access` on a path, which must be absolute and without links.
///
/// What is not there yet is judged by its directory, as Landlock does.
pub fn landlock_lacks(plan: &Plan, path: &Path, access: u64) -> bool {
    plan.landlock.as_ref().is_some_and(|landlock| access & !landlock.granted(path) != 0)
}

/// Attributes a refused call. `errno` is positive; `path` is the path argument as the caller's memory had it; `cwd` is
/// where relative ones start, if that is known.
///
/// A `landlock` answer also needs that ordinary permissions would have allowed it, which is asked of the file system as
/// it is now, as this user.
pub fn attribute(
    plan: &Plan,
    syscall: i32,
    arguments: &[u64; 6],
    errno: u16,
    path: &Path,
    cwd: Option<&Path>,
) -> Attribution {
    let name = name_of(syscall);
    if filter::answer(&plan.seccomp, syscall, arguments) == Some(errno) && errno != 0 {
        let what = detail(syscall, arguments).map_or_else(|| name.clone(), |detail| format!("{name} {detail}"));
        return Attribution { layer: Layer::Seccomp, what, missing: Some(name), inferred: true };
    }
    let other = |what: String| Attribution { layer: Layer::Other, what, missing: None, inferred: true };
    let syscall = i64::from(syscall);
    let by_landlock = matches!(i32::from(errno), libc::EACCES | libc::EXDEV | libc::EPERM);
    let Some(landlock) = plan.landlock.as_ref().filter(|_| by_landlock) else {
        return other(format!("{name} {}", path.display()));
    };
    if matches!(syscall, libc::SYS_kill | libc::SYS_tgkill | libc::SYS_tkill | libc::SYS_pidfd_send_signal) {
        let what = format!("{name} to {}", arguments[0] as i32);
        if landlock.scope_signals && i32::from(errno) == libc::EPERM {
            return Attribution {
                layer: Layer::Landlock,
                what,
                missing: Some("signal outside the fence".into()),
                inferred: true,
            };
        }
        return other(what);
    }
    let what = format!("{name} {}", path.display());
    let Some(wanted) = access_of(syscall, arguments) else { return other(what) };
    let Some(full) = absolute(path, cwd) else { return other(what) };
    let full = resolved(&full, wanted.creates);
    let target = if wanted.on_parent { full.parent().unwrap_or(&full).to_owned() } else { full.clone() };
    let Wanted { access, on_parent, creates: _ } = wanted;
    let needed = missing_rights(plan, &full, access, on_parent);
    let what = format!("{} {}", right_names(access).join("+"), full.display());
    if needed == 0 || !permitted(&target, access, on_parent) {
        return other(what);
    }
    Attribution { layer: Layer::Landlock, what, missing: Some(right_names(needed).join("+")), inferred: true }
}

fn missing_rights(plan: &Plan, path: &Path, access: u64, on_parent: bool) -> u64 {
    // A rule on a directory covers what is made in it; one on the file itself covers no making or removing.
    let path = if on_parent { path.parent().unwrap_or(path) } else { path };
    (0..64).map(|bit| 1u64 << bit).filter(|bit| access & bit != 0 && landlock_lacks(plan, path, *bit)).sum()
}

/// What a call wants of its path.
struct Wanted {
    access: u64,
    /// The right is needed on the directory that holds it.
    on_parent: bool,
    /// The path need not be there.
    creates: bool,
}

fn access_of(syscall: i64, arguments: &[u64; 6]) -> Option<Wanted> {
    let at = |access| Some(Wanted { access, on_parent: false, creates: false });
    let parent = |access| Some(Wanted { access, on_parent: true, creates: true });
    let open = |flags: u64| {
        let flags = flags as i32;
        let mut access = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => AccessFs::ReadFile as u64,
            libc::O_WRONLY => AccessFs::WriteFile as u64,
            _ => AccessFs::ReadFile as u64 | AccessFs::WriteFile as u64,
        };
        if flags & libc::O_DIRECTORY != 0 {
            access = AccessFs::ReadDir as u64;
        }
        if flags & libc::O_TRUNC != 0 {
            access |= AccessFs::Truncate as u64;
        }
        Some(Wanted { access, on_parent: false, creates: flags & libc::O_CREAT != 0 })
    };
    let make = |mode: u64| match mode as u32 & libc::S_IFMT {
        libc::S_IFIFO => AccessFs::MakeFifo as u64,
        libc::S_IFSOCK => AccessFs::MakeSock as u64,
        libc::S_IFCHR => AccessFs::MakeChar as u64,
        libc::S_IFBLK => AccessFs::MakeBlock as u64,
        _ => AccessFs::MakeReg as u64,
    };
    #[cfg(target_arch = "x86_64")]
    match syscall {
        libc::SYS_open => return open(arguments[1]),
        libc::SYS_creat => return open((libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as u64),
        libc::SYS_mkdir => return parent(AccessFs::MakeDir as u64),
        libc::SYS_rmdir => return parent(AccessFs::RemoveDir as u64),
        libc::SYS_unlink => return parent(AccessFs::RemoveFile as u64),
        libc::SYS_symlink => return parent(AccessFs::MakeSym as u64),
        libc::SYS_rename | libc::SYS_link => return parent(AccessFs::Refer as u64),
        libc::SYS_mknod => return parent(make(arguments[1])),
        _ => {}
    }
    match syscall {
        libc::SYS_openat => open(arguments[2]),
        // Its flags are in memory that is gone: reading is the least that it wanted.
        libc::SYS_openat2 => open(0),
        libc::SYS_execve | libc::SYS_execveat => at(AccessFs::Execute as u64),
        libc::SYS_truncate => at(AccessFs::Truncate as u64),
        libc::SYS_mkdirat => parent(AccessFs::MakeDir as u64),
        libc::SYS_unlinkat if arguments[2] as i32 & libc::AT_REMOVEDIR != 0 => parent(AccessFs::RemoveDir as u64),
        libc::SYS_unlinkat => parent(AccessFs::RemoveFile as u64),
        libc::SYS_symlinkat => parent(AccessFs::MakeSym as u64),
        libc::SYS_mknodat => parent(make(arguments[2])),
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => parent(AccessFs::Refer as u64),
        libc::SYS_bind => parent(AccessFs::MakeSock as u64),
        libc::SYS_connect => at(rights::SOCKET),
        _ => None,
    }
}

fn absolute(path: &Path, cwd: Option<&Path>) -> Option<PathBuf> {
    if path.as_os_str().is_empty() {
        return None;
    }
    if path.is_absolute() { Some(path.to_owned()) } else { cwd.map(|cwd| cwd.join(path)) }
}

/// The path without links, as far as it is there.
fn resolved(path: &Path, creates: bool) -> PathBuf {
    if let Ok(real) = std::fs::canonicalize(path) {
        return real;
    }
    let parent = path.parent().and_then(|parent| std::fs::canonicalize(parent).ok());
    match (parent, path.file_name()) {
        (Some(parent), Some(name)) if creates => parent.join(name),
        _ => {
            let mut plain = PathBuf::new();
            for part in path.components() {
                match part {
                    Component::ParentDir => {
                        plain.pop();
                    }
                    Component::CurDir => {}
                    other => plain.push(other),
                }
            }
            plain
        }
    }
}

/// Whether ordinary permissions would have allowed it to this user.
fn permitted(path: &Path, access: u64, on_parent: bool) -> bool {
    use nix::unistd::{AccessFlags, eaccess};
    const WRITES: u64 = rights::WRITE;
    let (path, creates) = if !on_parent && path.symlink_metadata().is_err() {
        (path.parent().unwrap_or(path), true)
    } else {
        (path, on_parent)
    };
    let mut flags = AccessFlags::F_OK;
    if access & (AccessFs::ReadFile as u64 | AccessFs::ReadDir as u64) != 0 && !creates {
        flags |= AccessFlags::R_OK;
    }
    if access & AccessFs::Execute as u64 != 0 {
        flags |= AccessFlags::X_OK;
    }
    if access & WRITES != 0 {
        flags |= AccessFlags::W_OK;
    }
    eaccess(path, flags).is_ok()
}

fn name_of(syscall: i32) -> String {
    let by_library = libseccomp::ScmpSyscall::from(syscall).get_name();
    by_library.unwrap_or_else(|_| format!("system call {syscall}"))
}

/// The argument that made the filter refuse, for calls that it refuses by argument.
fn detail(syscall: i32, arguments: &[u64; 6]) -> Option<String> {
    match i64::from(syscall) {
        libc::SYS_socket | libc::SYS_socketpair => {
            Some(format!("family {} protocol {}", arguments[0] as u32, arguments[2] as u32))
        }
        libc::SYS_ioctl => Some(format!("{:#x}", arguments[1] as u32)),
        libc::SYS_unshare | libc::SYS_clone => Some(format!("{:#x}", arguments[0])),
        libc::SYS_personality => Some(format!("{:#x}", arguments[0] as u32)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::filter::Group;
    use super::super::plan::tests::sample;
    use super::super::plan::{LandlockPlan, PathRule};
    use super::*;

    fn plan(root: &Path) -> Plan {
        let rule = |path: PathBuf, access| PathRule {
            path: std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec(),
            identity: Some((0, 0)),
            access,
            required: false,
        };
        Plan {
            seccomp: filter::compile(&[Group::Trace, Group::Terminal]).unwrap(),
            landlock: Some(LandlockPlan {
                paths: vec![rule(PathBuf::from("/"), rights::READ), rule(root.join("w"), rights::READ | rights::WRITE)],
                scope_signals: true,
                ..LandlockPlan::default()
            }),
            ..sample()
        }
    }

    #[test]
    fn each_layer_is_named_for_what_it_refuses() {
        let root = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(root.path()).unwrap();
        std::fs::create_dir_all(root.join("w")).unwrap();
        std::fs::create_dir_all(root.join("o")).unwrap();
        std::fs::write(root.join("o/victim"), "").unwrap();
        let plan = plan(&root);
        let ask = |syscall: i64, arguments: [u64; 6], errno: i32, path: &Path| {
            attribute(&plan, syscall as i32, &arguments, errno as u16, path, Some(&root.join("w")))
        };
        let by_filter = ask(libc::SYS_ptrace, [0; 6], libc::EPERM, Path::new(""));
        assert_eq!((by_filter.layer, by_filter.what.as_str()), (Layer::Seccomp, "ptrace"));
        let write = (libc::O_WRONLY | libc::O_CREAT) as u64;
        let opened = ask(libc::SYS_openat, [0, 0, write, 0, 0, 0], libc::EACCES, &root.join("o/new"));
        assert_eq!(opened.layer, Layer::Landlock);
        assert_eq!(opened.missing.as_deref(), Some("write_file"));
        let relative = ask(libc::SYS_openat, [0, 0, write, 0, 0, 0], libc::EACCES, Path::new("../o/victim"));
        assert_eq!(relative.layer, Layer::Landlock);
        assert_eq!(relative.what, format!("write_file {}", root.join("o/victim").display()));
        let inside = ask(libc::SYS_openat, [0, 0, write, 0, 0, 0], libc::EACCES, Path::new("x"));
        assert_eq!(inside.layer, Layer::Other);
        let signal = ask(libc::SYS_kill, [1, 9, 0, 0, 0, 0], libc::EPERM, Path::new(""));
        assert_eq!(signal.layer, Layer::Landlock);
        let truncated = ask(libc::SYS_truncate, [0; 6], libc::EACCES, &root.join("o/victim"));
        assert_eq!(truncated.missing.as_deref(), Some("truncate"));
    }

    #[test]
    fn a_grant_covers_what_is_below_it_and_nothing_beside() {
        let plan = plan(Path::new("/r"));
        assert!(!landlock_lacks(&plan, Path::new("/r/w/a/b"), rights::WRITE));
        assert!(landlock_lacks(&plan, Path::new("/r/wide"), rights::WRITE));
        assert!(!landlock_lacks(&plan, Path::new("/etc/passwd"), rights::READ));
        assert!(refuses(&plan, libc::SYS_ptrace as i32, &[0; 6]));
        assert!(!refuses(&plan, libc::SYS_read as i32, &[0; 6]));
    }
}
