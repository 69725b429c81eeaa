//! What a canary tries at the kernel's gates: once bare, and once more when its tree is marked and every gate is shut.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, SockaddrLike, bind,
    listen, sendto, socket,
};
use nix::unistd::Pid;
use ringfence_common::rules::gate;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::CLOSED_PORT;
use crate::probe::protocol::{GateEvent, Peer};

/// Nothing here waits for the network.
const CONNECTING: Duration = Duration::from_millis(200);

/// One thing that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is named by Trial::name")]
pub enum Trial {
    Exec,
    ExecAnonymous,
    Connect4,
    Connect6,
    Datagram4,
    Datagram6,
    Bind,
    Listen,
    Family,
    UnixPath,
    UnixDatagram,
    UnixAbstract,
    Write,
    Read,
    Metadata,
    Signal,
    Trace,
    Namespace,
    Bpf,
}

/// All, in the order in which they are shown.
pub const TRIALS: [Trial; 19] = [
    Trial::Exec,
    Trial::ExecAnonymous,
    Trial::Connect4,
    Trial::Connect6,
    Trial::Datagram4,
    Trial::Datagram6,
    Trial::Bind,
    Trial::Listen,
    Trial::Family,
    Trial::UnixPath,
    Trial::UnixDatagram,
    Trial::UnixAbstract,
    Trial::Write,
    Trial::Read,
    Trial::Metadata,
    Trial::Signal,
    Trial::Trace,
    Trial::Namespace,
    Trial::Bpf,
];

/// How something that was tried ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It was done.
    Done,
    /// Positive errno.
    Errno(i32),
    /// The program was killed by this signal.
    Killed(i32),
}

/// All ends of one round.
pub type Ends = Vec<(Trial, End)>;

/// What the service laid out for a canary.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Targets {
    /// An executable that may be refused.
    pub executable: PathBuf,
    /// A directory that may not be written.
    pub protected: PathBuf,
    /// A file that may not be read.
    pub secret: PathBuf,
    /// A file outside of what may be changed.
    pub outside: PathBuf,
    /// Listening sockets of the service's.
    pub stream: PathBuf,
    /// See `stream`.
    pub datagram: PathBuf,
    /// See `stream`.
    pub abstract_name: String,
    /// A process outside the tree.
    pub process: i32,
}

impl Trial {
    /// As `status` and metrics call it.
    pub fn name(self) -> &'static str {
        match self {
            Trial::Exec => "exec",
            Trial::ExecAnonymous => "exec_anonymous",
            Trial::Connect4 => "connect_v4",
            Trial::Connect6 => "connect_v6",
            Trial::Datagram4 => "datagram_v4",
            Trial::Datagram6 => "datagram_v6",
            Trial::Bind => "bind",
            Trial::Listen => "listen",
            Trial::Family => "family",
            Trial::UnixPath => "unix_path",
            Trial::UnixDatagram => "unix_datagram",
            Trial::UnixAbstract => "unix_abstract",
            Trial::Write => "write",
            Trial::Read => "read",
            Trial::Metadata => "metadata",
            Trial::Signal => "signal",
            Trial::Trace => "trace",
            Trial::Namespace => "namespace",
            Trial::Bpf => "bpf",
        }
    }

    /// The layer that refuses it where no LSM program does, and that layer's program.
    pub fn fallback(self) -> Option<(&'static str, &'static str)> {
        match self {
            Trial::Exec | Trial::ExecAnonymous => Some(("signal", "rf_exec")),
            Trial::Connect4 => Some(("cgroup", "rf_connect4")),
            Trial::Connect6 => Some(("cgroup", "rf_connect6")),
            Trial::Datagram4 => Some(("cgroup", "rf_sendmsg4")),
            Trial::Datagram6 => Some(("cgroup", "rf_sendmsg6")),
            Trial::Bind => Some(("cgroup", "rf_bind4")),
            Trial::UnixPath | Trial::UnixAbstract => Some(("cgroup", "rf_connect_unix")),
            Trial::UnixDatagram => Some(("cgroup", "rf_sendmsg_unix")),
            _ => None,
        }
    }

    /// Whether an end shows that it can be done here when nothing refuses it.
    pub fn works(self, end: End) -> bool {
        match (self, end) {
            (_, End::Done) => true,
            // Nobody listens: the way there was free.
            (Trial::Connect4 | Trial::Connect6, End::Errno(libc::ECONNREFUSED)) => true,
            // No such pin: the call was taken.
            (Trial::Bpf, End::Errno(libc::ENOENT)) => true,
            _ => false,
        }
    }

    /// Whether it was refused as the gates refuse.
    pub fn refused(self, end: End) -> bool {
        match end {
            End::Errno(errno) => matches!(errno, libc::EACCES | libc::EPERM),
            End::Killed(signal) => matches!(self, Trial::Exec | Trial::ExecAnonymous) && signal == libc::SIGKILL,
            End::Done => false,
        }
    }

    /// Whether the machine has no such thing, whoever asks.
    pub fn impossible(self, end: End) -> bool {
        let no_address = [libc::EADDRNOTAVAIL, libc::EAFNOSUPPORT, libc::ENETUNREACH, libc::ENETDOWN];
        matches!((self, end), (Trial::Connect6 | Trial::Datagram6, End::Errno(errno)) if no_address.contains(&errno))
    }

    /// Whether this event is the kernel's word that it was refused.
    pub fn is_told_by(self, event: &GateEvent) -> bool {
        let v4 = matches!(event.peer, Some(Peer::V4(..)));
        let v6 = matches!(event.peer, Some(Peer::V6(..)));
        let named = |name: &[u8]| match &event.peer {
            Some(Peer::UnixPath(path)) => path.bytes.ends_with(name),
            _ => event.path.bytes.ends_with(name),
        };
        let (gate, fits) = match self {
            Trial::Exec => (gate::EXEC, true),
            Trial::ExecAnonymous => (gate::EXEC_ANONYMOUS, true),
            Trial::Connect4 => (gate::CONNECT, v4),
            Trial::Connect6 => (gate::CONNECT, v6),
            Trial::Datagram4 => (gate::DATAGRAM, v4),
            Trial::Datagram6 => (gate::DATAGRAM, v6),
            Trial::Bind => (gate::BIND, true),
            Trial::Listen => (gate::LISTEN, true),
            Trial::Family => (gate::FAMILY, true),
            Trial::UnixPath => (gate::UNIX, named(STREAM.as_bytes())),
            Trial::UnixDatagram => (gate::UNIX, named(DATAGRAM.as_bytes())),
            Trial::UnixAbstract => (gate::ABSTRACT, true),
            Trial::Write => (gate::WRITE, true),
            Trial::Read => (gate::READ, true),
            Trial::Metadata => (gate::METADATA, true),
            Trial::Signal => (gate::SIGNAL, true),
            Trial::Trace => (gate::TRACE, true),
            Trial::Namespace => (gate::NAMESPACE, true),
            Trial::Bpf => (gate::BPF, true),
        };
        event.gate == gate && event.errno != 0 && fits
    }
}

/// File name of the listening stream socket.
pub(super) const STREAM: &str = "stream.sock";
/// File name of the datagram socket.
pub(super) const DATAGRAM: &str = "datagram.sock";

/// `ringfence gate-canary TARGETS`: tries everything and tells; when a line comes, tries everything again and tells.
pub fn attempt(targets: &str) -> io::Result<()> {
    let targets: Targets = serde_json::from_str(targets)?;
    let mut told = io::stdout().lock();
    let mut tell = |ends: Ends| writeln!(told, "{}", serde_json::to_string(&ends)?).and_then(|()| told.flush());
    tell(every(&targets))?;
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line)? {
        0 => Ok(()),
        _ => tell(every(&targets)),
    }
}

/// `ringfence gate-canary --namespace`: a process of its own, since it cannot be undone. Ends with the errno.
pub fn namespace() -> u8 {
    match unshare(CloneFlags::CLONE_NEWUSER) {
        Ok(()) => 0,
        Err(errno) => u8::try_from(errno as i32).unwrap_or(u8::MAX),
    }
}

fn every(targets: &Targets) -> Ends {
    TRIALS.into_iter().map(|trial| (trial, end_of(one(trial, targets)))).collect()
}

fn end_of(result: io::Result<End>) -> End {
    result.unwrap_or_else(|error| End::Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

fn one(trial: Trial, targets: &Targets) -> io::Result<End> {
    let done = match trial {
        Trial::Exec => return run(&targets.executable),
        Trial::ExecAnonymous => {
            let memory = memfd_create("canary", MemfdFlags::CLOEXEC)?;
            io::copy(&mut File::open(&targets.executable)?, &mut File::from(memory.try_clone()?))?;
            return run(Path::new(&format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd())));
        }
        Trial::Connect4 => connect(SocketAddr::from((Ipv4Addr::LOCALHOST, CLOSED_PORT))),
        Trial::Connect6 => connect(SocketAddr::from((Ipv6Addr::LOCALHOST, CLOSED_PORT))),
        Trial::Datagram4 => send(AddressFamily::Inet, &v4(CLOSED_PORT)),
        Trial::Datagram6 => send(AddressFamily::Inet6, &SockaddrIn6::from(v6(CLOSED_PORT))),
        Trial::Bind => bind(internet()?.as_raw_fd(), &v4(0)).map_err(Into::into),
        Trial::Listen => listen(&internet()?, Backlog::new(1).unwrap_or(Backlog::MAXCONN)).map_err(Into::into),
        Trial::Family => {
            let made =
                socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute);
            made.map(drop).map_err(Into::into)
        }
        Trial::UnixPath => UnixStream::connect(&targets.stream).map(drop),
        Trial::UnixDatagram => UnixDatagram::unbound()?.send_to(b"", &targets.datagram).map(drop),
        Trial::UnixAbstract => {
            let name = std::os::unix::net::SocketAddr::from_abstract_name(&targets.abstract_name)?;
            UnixStream::connect_addr(&name).map(drop)
        }
        Trial::Write => {
            let new = targets.protected.join("new");
            let made = OpenOptions::new().write(true).create_new(true).open(&new).map(drop);
            if made.is_ok() {
                std::fs::remove_file(new)?;
            }
            made
        }
        Trial::Read => File::open(&targets.secret).map(drop),
        Trial::Metadata => std::fs::set_permissions(&targets.outside, Permissions::from_mode(0o600)),
        // Ignored by whoever gets it.
        Trial::Signal => kill(Pid::from_raw(targets.process), Signal::SIGWINCH).map_err(Into::into),
        Trial::Trace => File::open(format!("/proc/{}/environ", targets.process)).map(drop),
        Trial::Namespace => {
            let own = std::env::current_exe()?;
            let status = Command::new(own).args(["gate-canary", "--namespace", ""]).stdin(Stdio::null()).status()?;
            return Ok(match status.code() {
                Some(0) => End::Done,
                Some(errno) => End::Errno(errno),
                None => End::Killed(status.signal().unwrap_or(0)),
            });
        }
        Trial::Bpf => match aya::maps::MapData::from_pin("/ringfence-canary-is-not-here") {
            Ok(_) => Ok(()),
            Err(error) => Err(errno_within(&error)),
        },
    };
    done.map(|()| End::Done)
}

/// The error of the operating system that is at the bottom of another.
fn errno_within(error: &(dyn std::error::Error + 'static)) -> io::Error {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(code) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return io::Error::from_raw_os_error(code);
        }
        cause = error.source();
    }
    io::Error::from_raw_os_error(libc::EIO)
}

fn run(program: &Path) -> io::Result<End> {
    let mut command = Command::new(program);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    Ok(status.signal().map_or(End::Done, End::Killed))
}

fn connect(to: SocketAddr) -> io::Result<()> {
    TcpStream::connect_timeout(&to, CONNECTING).map(drop)
}

fn internet() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?)
}

fn send(family: AddressFamily, to: &dyn SockaddrLike) -> io::Result<()> {
    let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    sendto(socket.as_raw_fd(), b"", to, MsgFlags::empty())?;
    Ok(())
}

fn v4(port: u16) -> SockaddrIn {
    SockaddrIn::from(std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

fn v6(port: u16) -> std::net::SocketAddrV6 {
    std::net::SocketAddrV6::new(Ipv6Addr::LOCALHOST, port, 0, 0)
}
