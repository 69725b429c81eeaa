//! Tells the service of a launch, over a socket that was connected before the fence was on. Nothing waits for it:
//! where it does not arrive, the launch goes on and its observed exec is the evidence.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::time::{ClockId, clock_gettime};

use super::receipt::LaunchNotice;
use crate::ipc::hook::{Envelope, PROTOCOL_VERSION, RequestKind};
use crate::ipc::limits::FRAME_BYTES;

/// A connection to the service, or why there is none.
pub enum Line {
    /// It listens.
    Open(OwnedFd),
    /// Nobody listens there, or the queue is full.
    Closed(&'static str),
    /// EPERM or EACCES: the host's own sandbox refuses unix sockets. That is no failure of ours.
    BlockedByHostSandbox,
}

impl Line {
    /// Connects without waiting: a unix stream socket is connected at once or not at all.
    pub fn open(path: &Path) -> Line {
        use nix::errno::Errno::{EACCES, EAGAIN, EPERM};
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let blocked = |errno| matches!(errno, EPERM | EACCES);
        let fd = match socket(AddressFamily::Unix, SockType::Stream, flags, None) {
            Ok(fd) => fd,
            Err(errno) if blocked(errno) => return Line::BlockedByHostSandbox,
            Err(_) => return Line::Closed("no socket could be made"),
        };
        let Ok(address) = UnixAddr::new(path) else { return Line::Closed("the socket's path is too long") };
        match connect(fd.as_raw_fd(), &address) {
            Ok(()) => Line::Open(above_standard(fd)),
            Err(errno) if blocked(errno) => Line::BlockedByHostSandbox,
            Err(EAGAIN) => Line::Closed("the service's queue is full"),
            Err(_) => Line::Closed("the service does not listen"),
        }
    }

    /// What the receipt says of it, if it is not simply open.
    pub fn remark(&self) -> Option<String> {
        match self {
            Line::Open(_) => None,
            Line::Closed(why) => Some(format!("launch notice not sent: {why}")),
            Line::BlockedByHostSandbox => Some("launch notice not sent: blocked by the host's sandbox".into()),
        }
    }

    /// Sends one notice. It is not answered; what the socket's buffer does not take at once is given up.
    pub fn send(self, notice: &LaunchNotice, adapter: &str) {
        let Line::Open(fd) = self else { return };
        let Some(frame) = frame_of(notice, adapter) else { return };
        // SAFETY: the buffer is alive and of that length; MSG_NOSIGNAL keeps a closed peer from ending us.
        unsafe {
            libc::send(fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
        }
    }
}

/// A host may have closed 0, 1 or 2: the connection must not stand in for the command's own streams.
fn above_standard(fd: OwnedFd) -> OwnedFd {
    if fd.as_raw_fd() > 2 {
        return fd;
    }
    // SAFETY: F_DUPFD_CLOEXEC takes an open descriptor and a lower bound, and gives a new one that only we own.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
    if moved < 0 {
        return fd;
    }
    // SAFETY: see above; `moved` is a fresh descriptor.
    unsafe { OwnedFd::from_raw_fd(moved) }
}

fn frame_of(notice: &LaunchNotice, adapter: &str) -> Option<Vec<u8>> {
    let [id, nonce] = random().ok()?;
    let millis = |clock| clock_gettime(clock).map(|t| t.tv_sec() as u64 * 1000 + t.tv_nsec() as u64 / 1_000_000);
    let envelope = Envelope {
        protocol_version: PROTOCOL_VERSION,
        request_id: uuid::Builder::from_random_bytes(id).into_uuid().to_string(),
        request_kind: RequestKind::LaunchNotice,
        adapter: adapter.to_owned(),
        adapter_version: env!("CARGO_PKG_VERSION").to_owned(),
        received_at_ms: millis(ClockId::CLOCK_REALTIME).ok()?,
        hard_deadline_ms: millis(ClockId::CLOCK_BOOTTIME).ok()? + 1000,
        host_version: None,
        invocation_nonce: super::plan::hex(&nonce),
        host_payload: serde_json::to_value(notice).ok()?,
    };
    let body = serde_json::to_vec(&envelope).ok()?;
    if body.len() > FRAME_BYTES {
        return None;
    }
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&(body.len() as u32).to_be_bytes());
    frame.extend_from_slice(&body);
    Some(frame)
}

/// Two times 128 random bits.
fn random() -> io::Result<[[u8; 16]; 2]> {
    let mut bytes = [0u8; 32];
    // SAFETY: the buffer is alive and of that length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), libc::GRND_NONBLOCK) };
    if got != 32 {
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    }
    let (mut first, mut second) = ([0; 16], [0; 16]);
    first.copy_from_slice(&bytes[..16]);
    second.copy_from_slice(&bytes[16..]);
    Ok([first, second])
}
