//! Refused system calls in words, and whom the ledger asks which layer refused.
#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::entry::Layer;
use super::gate::Named;
use crate::probe::protocol::{Bytes, GateEvent, Mark};

/// A launch as far as a layer can be told from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchContext {
    /// Its number in marks, 0 when not known.
    pub number: u64,
    /// The plan it used, as its notice names it; `None` when no notice came.
    pub plan: Option<String>,
    /// The fence of that plan, or of the decision.
    pub fence: String,
}

/// A system call that was refused.
#[derive(Clone, Copy, Debug)]
pub struct RefusedCall<'a> {
    /// Its number.
    pub syscall: i32,
    /// Whether that is a number of the 32-bit ABI.
    pub compat: bool,
    /// Its arguments.
    pub arguments: &'a [u64; 6],
    /// Positive errno.
    pub errno: u16,
    /// The path argument, for display.
    pub path: &'a Bytes,
}

/// Which layer it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributed {
    /// The layer; [`Layer::Other`] when none of the fence's would have refused.
    pub layer: Layer,
    /// Whether that is known by the errno alone.
    pub inferred: bool,
    /// The rule or plan line, when known.
    pub rule: Option<String>,
}

/// Knows the plans and filters in force.
pub trait Attribution: Send {
    /// Which layer refused `call` in `launch` of `session`. Never guesses: [`Layer::Other`] is an answer.
    fn layer(&self, session: &str, launch: &LaunchContext, call: RefusedCall<'_>) -> Attributed;

    /// What is known of a gate's event beyond what the kernel says of it.
    fn gate(&self, session: &str, mark: &Mark, event: &GateEvent) -> Named {
        let _ = (session, mark, event);
        Named::default()
    }
}

/// Where no plan is known: every refusal is [`Layer::Other`].
#[derive(Clone, Copy, Debug)]
pub struct NoPlans;

impl Attribution for NoPlans {
    fn layer(&self, _: &str, _: &LaunchContext, _: RefusedCall<'_>) -> Attributed {
        Attributed { layer: Layer::Other, inferred: false, rule: None }
    }
}

/// Longest text of a refusal, in bytes.
pub(super) const WHAT_BYTES: usize = 512;

/// What was refused, in words.
pub(super) fn in_words(call: &RefusedCall<'_>) -> String {
    let verb = match call.compat {
        false => verb(i64::from(call.syscall), call.arguments),
        true => format!("32-bit system call {}", call.syscall),
    };
    if !call.compat && takes_address(i64::from(call.syscall)) {
        let said = address(&call.path.bytes).map(|address| format!("{verb} {address}"));
        return super::text::cut(said.unwrap_or(verb), WHAT_BYTES);
    }
    let mut what =
        if call.path.bytes.is_empty() { verb } else { format!("{verb} {}", super::text::shown(&call.path.bytes)) };
    if call.path.truncated {
        what.push('…');
    }
    super::text::cut(what, WHAT_BYTES)
}

/// Calls whose "path" is the socket address that the caller gave.
fn takes_address(syscall: i64) -> bool {
    matches!(syscall, libc::SYS_connect | libc::SYS_bind | libc::SYS_sendto)
}

/// A socket address in words, from the bytes of a `sockaddr`.
fn address(bytes: &[u8]) -> Option<String> {
    let (family, rest) = bytes.split_first_chunk::<2>()?;
    let port = || rest.first_chunk::<2>().map(|port| u16::from_be_bytes(*port));
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => {
            let address: [u8; 4] = rest.get(2..6)?.try_into().ok()?;
            Some(SocketAddr::from((Ipv4Addr::from(address), port()?)).to_string())
        }
        libc::AF_INET6 => {
            let address: [u8; 16] = rest.get(6..22)?.try_into().ok()?;
            Some(SocketAddr::from((Ipv6Addr::from(address), port()?)).to_string())
        }
        libc::AF_UNIX => match rest {
            [] => None,
            [0, name @ ..] => Some(format!("@{}", super::text::shown(name.split(|b| *b == 0).next()?))),
            path => Some(super::text::shown(path.split(|b| *b == 0).next()?)),
        },
        _ => None,
    }
}

fn verb(syscall: i64, arguments: &[u64; 6]) -> String {
    let open = |flags: u64| {
        let flags = flags as i32;
        if flags & libc::O_CREAT != 0 {
            "create or write"
        } else if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
            "write"
        } else if flags & libc::O_DIRECTORY != 0 {
            "list"
        } else {
            "read"
        }
    };
    #[cfg(target_arch = "x86_64")]
    {
        let old = match syscall {
            libc::SYS_open => open(arguments[1]),
            libc::SYS_creat => "create",
            libc::SYS_mkdir => "make directory",
            libc::SYS_rmdir => "remove directory",
            libc::SYS_unlink => "delete",
            libc::SYS_rename => "rename",
            libc::SYS_link => "link",
            libc::SYS_symlink => "make link",
            libc::SYS_mknod => "make node",
            libc::SYS_chmod => "change mode of",
            libc::SYS_chown | libc::SYS_lchown => "change owner of",
            libc::SYS_access => "ask access to",
            _ => "",
        };
        if !old.is_empty() {
            return old.into();
        }
    }
    let word = match syscall {
        libc::SYS_openat => open(arguments[2]),
        libc::SYS_openat2 => "open",
        libc::SYS_mkdirat => "make directory",
        libc::SYS_unlinkat => "delete",
        libc::SYS_renameat | libc::SYS_renameat2 => "rename",
        libc::SYS_linkat => "link",
        libc::SYS_symlinkat => "make link",
        libc::SYS_mknodat => "make node",
        libc::SYS_truncate | libc::SYS_ftruncate => "truncate",
        libc::SYS_fchmodat | libc::SYS_fchmod => "change mode of",
        libc::SYS_fchownat | libc::SYS_fchown => "change owner of",
        libc::SYS_faccessat | libc::SYS_faccessat2 => "ask access to",
        libc::SYS_execve | libc::SYS_execveat => "run",
        libc::SYS_connect => "connect",
        libc::SYS_bind => "bind",
        libc::SYS_sendto => "send to",
        libc::SYS_listen => "listen",
        libc::SYS_sendmsg | libc::SYS_sendmmsg => "send",
        libc::SYS_socket => "open a socket",
        libc::SYS_socketpair => "open a socket pair",
        libc::SYS_ptrace => "ptrace",
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => "reach into another process",
        libc::SYS_kill | libc::SYS_tkill | libc::SYS_tgkill | libc::SYS_pidfd_send_signal => "signal another process",
        libc::SYS_mount | libc::SYS_umount2 | libc::SYS_move_mount | libc::SYS_fsopen | libc::SYS_open_tree => "mount",
        libc::SYS_unshare | libc::SYS_setns | libc::SYS_clone | libc::SYS_clone3 => "make a namespace",
        libc::SYS_io_uring_setup | libc::SYS_io_uring_enter | libc::SYS_io_uring_register => "io_uring",
        libc::SYS_bpf => "bpf",
        libc::SYS_perf_event_open => "perf events",
        libc::SYS_userfaultfd => "userfaultfd",
        libc::SYS_keyctl | libc::SYS_add_key | libc::SYS_request_key => "kernel keys",
        libc::SYS_ioctl => "ioctl",
        other => return format!("system call {other}"),
    };
    word.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_read_as_what_was_tried() {
        let path = |p: &str| Bytes { bytes: p.into(), truncated: false };
        let said = |syscall: i64, arguments: [u64; 6], path: &Bytes| {
            in_words(&RefusedCall { syscall: syscall as i32, compat: false, arguments: &arguments, errno: 13, path })
        };
        let create = (libc::O_WRONLY | libc::O_CREAT) as u64;
        assert_eq!(said(libc::SYS_openat, [0, 0, create, 0, 0, 0], &path("/h/.bashrc")), "create or write /h/.bashrc");
        assert_eq!(said(libc::SYS_openat, [0; 6], &path("/etc/shadow")), "read /etc/shadow");
        assert_eq!(said(libc::SYS_ptrace, [0; 6], &Bytes::default()), "ptrace");
        assert_eq!(said(99_999, [0; 6], &Bytes::default()), "system call 99999");
        let v4 = Bytes { bytes: vec![2, 0, 0x1f, 0x90, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], truncated: false };
        assert_eq!(said(libc::SYS_connect, [0; 6], &v4), "connect 127.0.0.1:8080");
        let unix = Bytes { bytes: b"\x01\x00/run/docker.sock\0\0".to_vec(), truncated: false };
        assert_eq!(said(libc::SYS_bind, [0; 6], &unix), "bind /run/docker.sock");
        assert_eq!(said(libc::SYS_sendto, [0; 6], &Bytes::default()), "send to");
        let odd = Bytes { bytes: b"/x\x1b[31m\n\xff".to_vec(), truncated: true };
        assert_eq!(said(libc::SYS_unlinkat, [0; 6], &odd), "delete /x\\u{1b}[31m\\n\u{fffd}…");
        let long = path(&"é".repeat(4000));
        assert!(said(libc::SYS_openat, [0; 6], &long).len() <= WHAT_BYTES);
    }
}
