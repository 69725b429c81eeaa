//! Who is at the other end of a unix socket.
//!
//! A pid is a name that the kernel gives to somebody else later; so what is read about a process through its pid is
//! read between two looks at its start time, and thrown away when they differ. The credentials are those of the
//! process that connected: a socket that it passed on still speaks in its name.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{self, ControlMessage, ControlMessageOwned, MsgFlags, sockopt};

use crate::process::{self, ProcessError, ProcessId};

/// Why a peer is not known.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// It ended (or its pid belongs to another process now).
    #[error("the peer is gone")]
    Gone,
    /// The kernel does not say who it is.
    #[error("the peer's credentials cannot be read: {0}")]
    Credentials(#[source] io::Error),
    /// Its `/proc` entry may not be read: another user's process, and this one lacks CAP_SYS_PTRACE.
    #[error("/proc/{0} of the peer may not be read")]
    Hidden(u32),
    /// Its `/proc` entry lacks a field, or has one in a form that proc(5) does not give.
    #[error("/proc/{0} of the peer could not be read as proc(5) describes it")]
    Malformed(u32),
}

impl From<ProcessError> for PeerError {
    fn from(error: ProcessError) -> PeerError {
        match error {
            ProcessError::Gone(_) => PeerError::Gone,
            ProcessError::Malformed(pid) => PeerError::Malformed(pid),
        }
    }
}

/// The process that connected a unix socket.
#[derive(Debug)]
pub struct Peer {
    /// Its effective uid when it connected.
    pub uid: u32,
    /// Its effective gid when it connected.
    pub gid: u32,
    /// The process.
    pub process: ProcessId,
    /// Refers to it for good, whatever becomes of its pid.
    pub pidfd: OwnedFd,
    /// Whether the kernel itself gave the pidfd (SO_PEERPIDFD, Linux 6.5). If not, it was opened by pid: a peer that
    /// connected, passed its socket on and ended can have been replaced by a process with the same pid before that.
    pub pidfd_of_socket: bool,
}

impl Peer {
    /// Who connected `socket` (a connected unix stream socket, on the accepting side).
    pub fn of(socket: impl AsFd) -> Result<Peer, PeerError> {
        let socket = socket.as_fd();
        let credentials = socket::getsockopt(&socket, sockopt::PeerCredentials)
            .map_err(|errno| PeerError::Credentials(errno.into()))?;
        // A process of an outer pid namespace has the pid 0 here: it cannot be named, so it is nobody's peer.
        let pid = u32::try_from(credentials.pid()).ok().filter(|pid| *pid != 0).ok_or(PeerError::Gone)?;
        let (pidfd, pidfd_of_socket) = match socket::getsockopt(&socket, sockopt::PeerPidfd) {
            Ok(fd) => (fd, true),
            Err(Errno::ENOPROTOOPT) => (open_pidfd(pid)?, false),
            Err(Errno::ESRCH | Errno::EINVAL | Errno::ENODATA) => return Err(PeerError::Gone),
            Err(errno) => return Err(PeerError::Credentials(errno.into())),
        };
        let process = process::stat(pid)?.id;
        // Alive now, so the pid was its own all the while, so the start time that was read is its own too.
        if !lives(pidfd.as_fd()) {
            return Err(PeerError::Gone);
        }
        Ok(Peer { uid: credentials.uid(), gid: credentials.gid(), process, pidfd, pidfd_of_socket })
    }

    /// Whether it has not ended.
    pub fn lives(&self) -> bool {
        lives(self.pidfd.as_fd())
    }

    /// See [`restrictions`].
    pub fn restrictions(&self) -> Result<Restrictions, PeerError> {
        restrictions(self.process)
    }

    /// See [`executable`].
    pub fn executable(&self) -> Result<Executable, PeerError> {
        executable(self.process)
    }
}

/// What a process has taken on for life, and whose it is, from `/proc/PID/status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restrictions {
    /// `NoNewPrivs`: every process behind a fence has it, also after setsid and reparenting.
    pub no_new_privs: bool,
    /// `Seccomp`: 0 none, 1 strict, 2 filter.
    pub seccomp: u8,
    /// Real, effective, saved and file system uid.
    pub uids: [u32; 4],
}

impl Restrictions {
    /// Whether some fence or sandbox holds it.
    pub fn confined(&self) -> bool {
        self.no_new_privs || self.seccomp != 0
    }
}

/// Reads [`Restrictions`]. A field that is missing is an error, never "not restricted".
pub fn restrictions(of: ProcessId) -> Result<Restrictions, PeerError> {
    let pid = of.pid;
    let text = unchanged(of, || std::fs::read(format!("/proc/{pid}/status")))?;
    // The name can hold any byte; the fields that are read here cannot.
    let text = String::from_utf8_lossy(&text);
    parse_restrictions(&text).ok_or(PeerError::Malformed(pid))
}

fn parse_restrictions(status: &str) -> Option<Restrictions> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let no_new_privs = match field("NoNewPrivs")? {
        "0" => false,
        "1" => true,
        _ => return None,
    };
    let mut uids = field("Uid")?.split_ascii_whitespace().map(str::parse);
    let mut next = || uids.next()?.ok();
    let uids = [next()?, next()?, next()?, next()?];
    Some(Restrictions { no_new_privs, seccomp: field("Seccomp")?.parse().ok()?, uids })
}

/// The program that a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    /// Its path as `/proc/PID/exe` shows it, without the ` (deleted)` that the kernel appends.
    pub path: PathBuf,
    /// Whether the file has no name any more (or never had one: a memfd).
    pub deleted: bool,
    /// Device, as stat gives it.
    pub device: u64,
    /// Inode number on that device.
    pub inode: u64,
    /// Owner of the file.
    pub owner: u32,
}

/// Reads [`Executable`]: the file itself through the kernel's link, not whatever has its path now.
/// Another user's process, or one that is not dumpable, takes CAP_SYS_PTRACE.
pub fn executable(of: ProcessId) -> Result<Executable, PeerError> {
    let link = format!("/proc/{}/exe", of.pid);
    let (path, meta) = unchanged(of, || Ok((std::fs::read_link(&link)?, std::fs::metadata(&link)?)))?;
    let deleted = meta.nlink() == 0;
    let path = match path.to_str().and_then(|text| text.strip_suffix(" (deleted)")) {
        Some(name) if deleted => PathBuf::from(name),
        _ => path,
    };
    Ok(Executable { path, deleted, device: meta.dev(), inode: meta.ino(), owner: meta.uid() })
}

/// What `read` gives, if the process was `of` before and after.
fn unchanged<T>(of: ProcessId, read: impl FnOnce() -> io::Result<T>) -> Result<T, PeerError> {
    let is_still_it = || match process::stat(of.pid) {
        Ok(stat) if stat.id == of => Ok(()),
        Ok(_) => Err(PeerError::Gone),
        Err(error) => Err(error.into()),
    };
    is_still_it()?;
    let value = read();
    is_still_it()?;
    value.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => PeerError::Hidden(of.pid),
        io::ErrorKind::NotFound => PeerError::Gone,
        _ if error.raw_os_error() == Some(libc::ESRCH) => PeerError::Gone,
        _ => PeerError::Malformed(of.pid),
    })
}

/// A pidfd for the process that has `pid` now. Linux 5.3.
pub fn open_pidfd(pid: u32) -> Result<OwnedFd, PeerError> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| PeerError::Gone)?;
    // SAFETY: pidfd_open(2) takes a pid and flags by value and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match RawFd::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor for us, and nothing else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Err(PeerError::Gone),
            error => Err(PeerError::Credentials(error)),
        },
    }
}

/// A pidfd for exactly this process.
pub fn open_pidfd_of(process: ProcessId) -> Result<OwnedFd, PeerError> {
    let pidfd = open_pidfd(process.pid)?;
    if process::stat(process.pid)?.id != process || !lives(pidfd.as_fd()) {
        return Err(PeerError::Gone);
    }
    Ok(pidfd)
}

/// Whether the process behind a pidfd has not ended.
pub fn lives(pidfd: BorrowedFd<'_>) -> bool {
    // A pidfd becomes readable when its process ends.
    let mut poll = [PollFd::new(pidfd, PollFlags::POLLIN)];
    loop {
        match nix::poll::poll(&mut poll, PollTimeout::ZERO) {
            Ok(ready) => return ready == 0,
            Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

/// A descriptor whose readability can be awaited: a pidfd is readable once its process has ended.
/// Call it inside a tokio runtime.
#[cfg(feature = "service")]
pub fn awaitable(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is the same, and open, for as long as the `OwnedFd` lives, which the `AsyncFd` owns.
    let registered = unsafe { tokio::io::unix::AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) };
    registered.map_err(io::Error::from)
}

/// Sends a signal to the process behind a pidfd: never to another one that has its pid by now. Linux 5.1.
pub fn signal(pidfd: BorrowedFd<'_>, signal: nix::sys::signal::Signal) -> Result<(), PeerError> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: pidfd_send_signal(2) with a null siginfo reads no memory of ours; the descriptor is borrowed for the call.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal as libc::c_int, none, 0) };
    match io::Error::last_os_error() {
        _ if sent == 0 => Ok(()),
        error if error.raw_os_error() == Some(libc::ESRCH) => Err(PeerError::Gone),
        error => Err(PeerError::Credentials(error)),
    }
}

/// The process behind a pidfd, which somebody passed to us.
pub fn process_of(pidfd: BorrowedFd<'_>) -> Result<ProcessId, PeerError> {
    let info =
        std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).map_err(PeerError::Credentials)?;
    let not_a_pidfd = || PeerError::Credentials(io::Error::other("the descriptor that was passed is not a pidfd"));
    let field = info.lines().find_map(|line| line.strip_prefix("Pid:")).ok_or_else(not_a_pidfd)?;
    // -1: it has been reaped; 0: it lives in a pid namespace that is not below ours.
    let pid = field.trim().parse::<u32>().ok().filter(|pid| *pid != 0).ok_or(PeerError::Gone)?;
    let process = process::stat(pid)?.id;
    if lives(pidfd) { Ok(process) } else { Err(PeerError::Gone) }
}

/// Makes this process unreadable to others of the same user: no ptrace, no core file, no look into its `/proc` entry.
pub fn protect_self() -> io::Result<()> {
    nix::sys::prctl::set_dumpable(false).map_err(io::Error::from)
}

/// The listening sockets that systemd handed over at start (sd_listen_fds(3)), by `FileDescriptorName=`. Close-on-exec.
#[cfg(feature = "service")]
pub fn handed_over() -> io::Result<std::collections::HashMap<String, std::os::unix::net::UnixListener>> {
    let mut by_name = std::collections::HashMap::new();
    for (raw, name) in sd_notify::listen_fds_with_names()? {
        // SAFETY: LISTEN_PID names this process, so systemd opened this descriptor for it and nothing else here knows it.
        // Called once, before anything else of the process opens descriptors by number.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
        nix::fcntl::fcntl(&descriptor, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
        if socket::getsockopt(&descriptor, socket::sockopt::SockType)? != socket::SockType::Stream {
            return Err(io::Error::other(format!("the descriptor named {name} is no stream socket")));
        }
        by_name.insert(name, descriptor.into());
    }
    Ok(by_name)
}

/// Most descriptors of one message that are kept.
pub const DESCRIPTORS: usize = 32;
/// The kernel's own bound, SCM_MAX_FD (unix(7)). Room for all of them, since descriptors of a message whose control
/// part was cut are installed but not named, and so would be open for ever.
const DESCRIPTORS_OF_THE_KERNEL: usize = 253;

/// Sends bytes together with descriptors; answers how many bytes went. At least one byte must go with them.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &rights[..0] } else { &rights[..] };
    let sent =
        socket::sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(sent)
}

/// Receives bytes, and the descriptors that come with them (all close-on-exec; those over [`DESCRIPTORS`] are closed).
/// 0 is the end of the stream.
pub fn receive(socket: BorrowedFd<'_>, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut control = nix::cmsg_space!([RawFd; DESCRIPTORS_OF_THE_KERNEL]);
    let mut parts = [IoSliceMut::new(into)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = socket::recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = part {
            // SAFETY: the kernel has just installed these descriptors for us with this message, and nothing else
            // knows them.
            let owned = received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
            // Collected before the cut, so that those over the bound are owned, and closed, too.
            let mut owned: Vec<OwnedFd> = owned.collect();
            owned.truncate(DESCRIPTORS);
            descriptors.append(&mut owned);
        }
    }
    Ok(message.bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn connected() -> (tempfile::TempDir, UnixStream, UnixStream) {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let there = UnixStream::connect(dir.path().join("s")).unwrap();
        let (here, _) = listener.accept().unwrap();
        (dir, here, there)
    }

    #[test]
    fn a_peer_is_named_by_pid_and_start() {
        let (_dir, here, _there) = connected();
        let peer = Peer::of(&here).unwrap();
        assert_eq!(peer.process, process::stat(std::process::id()).unwrap().id);
        assert_eq!(peer.uid, nix::unistd::geteuid().as_raw());
        assert_eq!(process_of(peer.pidfd.as_fd()).unwrap(), peer.process);
        assert!(peer.lives());
    }

    #[test]
    fn a_peer_that_has_ended_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let mut child = Command::new("perl")
            .arg("-MSocket")
            .arg("-e")
            .arg("socket(S,AF_UNIX,SOCK_STREAM,0);connect(S,sockaddr_un($ARGV[0]))or die")
            .arg(&path)
            .spawn()
            .unwrap();
        let (here, _) = listener.accept().unwrap();
        assert!(child.wait().unwrap().success());
        assert!(matches!(Peer::of(&here), Err(PeerError::Gone)));
    }

    #[test]
    fn the_program_is_known_by_its_file_even_when_it_has_lost_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("napper");
        std::fs::copy("/bin/sleep", &program).unwrap();
        let meta = std::fs::metadata(&program).unwrap();
        let child = Command::new(&program).arg("60").spawn().unwrap();
        let id = process::stat(child.id()).unwrap().id;
        let found = executable(id).unwrap();
        assert_eq!((found.path.as_path(), found.deleted), (program.as_path(), false));
        assert_eq!((found.device, found.inode), (meta.dev(), meta.ino()));
        std::fs::rename(&program, dir.path().join("moved")).unwrap();
        std::fs::copy("/bin/true", &program).unwrap();
        assert_eq!(executable(id).unwrap().inode, meta.ino());
        std::fs::remove_file(dir.path().join("moved")).unwrap();
        assert!(executable(id).unwrap().deleted);
        end(child);
        assert!(matches!(executable(id), Err(PeerError::Gone)));
    }

    #[test]
    fn another_start_time_is_another_process() {
        let child = sleeper();
        let id = process::stat(child.id()).unwrap().id;
        let reused = ProcessId { start: id.start + 1, ..id };
        assert!(restrictions(id).is_ok());
        assert!(matches!(restrictions(reused), Err(PeerError::Gone)));
        assert!(matches!(executable(reused), Err(PeerError::Gone)));
        assert!(matches!(open_pidfd_of(reused), Err(PeerError::Gone)));
        let pidfd = open_pidfd_of(id).unwrap();
        assert!(lives(pidfd.as_fd()));
        end(child);
        assert!(!lives(pidfd.as_fd()));
        assert!(matches!(process_of(pidfd.as_fd()), Err(PeerError::Gone)));
    }

    #[test]
    fn no_new_privs_shows() {
        let spawn = |program: &str, args: &[&str]| {
            let child = Command::new(program).args(args).stdin(Stdio::null()).spawn().unwrap();
            let id = process::stat(child.id()).unwrap().id;
            (child, id)
        };
        let (free, id) = spawn("sleep", &["60"]);
        let here = restrictions(process::stat(std::process::id()).unwrap().id).unwrap();
        assert_eq!(restrictions(id).unwrap(), here);
        end(free);
        let (held, id) = spawn("setpriv", &["--no-new-privs", "sleep", "60"]);
        let begun = std::time::Instant::now();
        while !restrictions(id).unwrap().no_new_privs && begun.elapsed().as_secs() < 5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(restrictions(id).unwrap().confined());
        end(held);
    }

    #[test]
    fn a_status_without_a_field_is_not_unrestricted() {
        let whole = "Name:\tx\nUid:\t1\t2\t3\t4\nNoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let read = parse_restrictions(whole).unwrap();
        assert_eq!(read, Restrictions { no_new_privs: false, seccomp: 2, uids: [1, 2, 3, 4] });
        assert!(read.confined());
        for field in ["Uid", "NoNewPrivs", "Seccomp:"] {
            let without: String = whole.lines().filter(|l| !l.starts_with(field)).map(|l| format!("{l}\n")).collect();
            assert_eq!(parse_restrictions(&without), None, "{field}");
        }
        assert_eq!(parse_restrictions(&whole.replace("NoNewPrivs:\t0", "NoNewPrivs:\tno")), None);
    }

    #[test]
    fn descriptors_arrive_with_the_bytes_and_are_bounded() {
        let (here, there) = UnixStream::pair().unwrap();
        let child = sleeper();
        let id = process::stat(child.id()).unwrap().id;
        let pidfd = open_pidfd_of(id).unwrap();
        assert_eq!(send(here.as_fd(), b"abc", &[pidfd.as_fd()]).unwrap(), 3);
        let mut buffer = [0; 16];
        let mut received = Vec::new();
        assert_eq!(receive(there.as_fd(), &mut buffer, &mut received).unwrap(), 3);
        assert_eq!(received.len(), 1);
        assert_eq!(process_of(received[0].as_fd()).unwrap(), id);
        end(child);

        let many = [here.as_fd(); DESCRIPTORS + 3];
        send(here.as_fd(), b"x", &many).unwrap();
        received.clear();
        receive(there.as_fd(), &mut buffer, &mut received).unwrap();
        assert_eq!(received.len(), DESCRIPTORS);
        assert!(matches!(process_of(here.as_fd()), Err(PeerError::Credentials(_))));
        received.clear();
        drop(here);
        assert_eq!(receive(there.as_fd(), &mut buffer, &mut received).unwrap(), 0);
    }

    #[test]
    fn a_protected_process_hides_its_program_from_its_own_user() {
        // As root nothing is hidden: the child drops to an ordinary user before it protects itself, and the looker too.
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root to become two processes of another user");
            return;
        }
        let (mut ready, mut go) = UnixStream::pair().unwrap();
        // SAFETY: the child only makes system calls and exits; it never returns into the test harness.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Child => {
                let other = nix::unistd::Uid::from_raw(61_234);
                let dropped = nix::unistd::setresuid(other, other, other).is_ok();
                let done = dropped && protect_self().is_ok() && go.write_all(&[1]).is_ok();
                let _ = nix::unistd::sleep(if done { 60 } else { 0 });
                // SAFETY: ends the child without running the harness's destructors.
                unsafe { libc::_exit(0) }
            }
            nix::unistd::ForkResult::Parent { child } => {
                drop(go);
                io::Read::read_exact(&mut ready, &mut [0]).unwrap();
                let link = format!("/proc/{child}/exe");
                let look =
                    Command::new("setpriv").args(["--reuid", "61234", "--clear-groups", "readlink", &link]).output();
                nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).unwrap();
                nix::sys::wait::waitpid(child, None).unwrap();
                assert!(!look.unwrap().status.success());
            }
        }
    }
}
