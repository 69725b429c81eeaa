//! The hook's side of `hook.sock`: one request, one answer, one deadline for all of it. Blocking, no threads.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, sockopt};
use nix::unistd::Uid;

use super::request::speaks;
use super::{Envelope, PROTOCOL_VERSION, QUEUE_FULL, Reply};
use crate::clock::left_until;
use crate::ipc::frame::{self, FrameError, Timed};
use crate::ipc::{json, limits};

/// How long a full queue is given to empty.
const PATIENCE_WITH_A_FULL_QUEUE: Duration = Duration::from_secs(2);
/// Between two tries at a full queue.
const PAUSE: Duration = Duration::from_millis(5);
/// Deepest nesting of a reply.
const REPLY_DEPTH: usize = 8;

/// Why there is no answer. Only [`AskError::Down`] means that nobody is there, and only [`AskError::Blocked`] that
/// nobody can be reached; after any other an executing or mutating call is denied.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No socket, or nobody listens on it.
    #[error("Ringfence's service is not running")]
    Down,
    /// The connection was refused with EPERM or EACCES: the host's own sandbox does that.
    #[error("the connection to Ringfence's service is blocked by the host's sandbox")]
    Blocked,
    /// The queue stayed full.
    #[error("Ringfence's service has no room for another call")]
    Full,
    /// The deadline passed.
    #[error("Ringfence's service did not answer in time")]
    TimedOut,
    /// It closed before it answered, twice.
    #[error("Ringfence's service closed the connection without an answer")]
    Vanished,
    /// It answered what is no answer.
    #[error("Ringfence's service gave no answer that can be read: {0}")]
    Protocol(#[source] ProtocolFault),
    /// It does not listen to this process.
    #[error("Ringfence's service refused to listen: {0}")]
    Refused(String),
    /// Somebody else made the socket, or listens on it.
    #[error("hook.sock is not this user's: {0}")]
    WrongPeer(#[source] PeerFault),
    /// The request is larger than a frame.
    #[error("the call is too large to be judged: {0}")]
    TooLarge(#[source] FrameError),
    /// Anything else that the operating system says.
    #[error("hook.sock: {0}")]
    Io(#[source] io::Error),
}

/// What is wrong with an answer.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolFault {
    /// No whole frame.
    #[error(transparent)]
    Frame(FrameError),
    /// Not JSON within the limits.
    #[error(transparent)]
    Json(json::JsonError),
    /// Not of the form of a reply.
    #[error("not of the form of a reply")]
    Form,
    /// Of a version that is not spoken here.
    #[error("version {0} of the protocol is not spoken here (this is {PROTOCOL_VERSION})")]
    Version(u32),
    /// To another request.
    #[error("an answer to another request")]
    OtherRequest,
}

/// What is wrong with who listens.
#[derive(Debug, thiserror::Error)]
pub enum PeerFault {
    /// The path names something else.
    #[error("it is no socket")]
    NoSocket,
    /// Another user owns the socket, or others may reach it.
    #[error("it belongs to uid {uid} with mode {mode:o} (wanted: this user, 600)")]
    Socket {
        /// Its owner.
        uid: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// Others may replace the socket.
    #[error("its directory belongs to uid {uid} with mode {mode:o} (wanted: this user, 700)")]
    Directory {
        /// Its owner.
        uid: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user listens.
    #[error("uid {0} listens on it")]
    Listener(u32),
}

/// Sends `request` to the service at `socket` and waits for its answer until `deadline_ms` (CLOCK_BOOTTIME).
///
/// A service that vanishes before it answers is asked once more, with the same request id: if it was killed, the second
/// try finds it [`AskError::Down`]; if it answered to nobody, the call is judged again.
pub fn ask(socket: &Path, request: &Envelope, deadline_ms: u64) -> Result<Reply, AskError> {
    let body = body_of(request)?;
    match exchange(socket, request, &body, deadline_ms) {
        Err(AskError::Vanished) => exchange(socket, request, &body, deadline_ms),
        other => other,
    }
}

/// The request's bytes. Too many are found before anybody is connected to.
fn body_of(request: &Envelope) -> Result<Vec<u8>, AskError> {
    let body = serde_json::to_vec(request).map_err(|error| AskError::Io(error.into()))?;
    if body.len() > limits::FRAME_BYTES {
        let (length, limit) = (body.len() as u64, limits::FRAME_BYTES);
        return Err(AskError::TooLarge(FrameError::TooLarge { length, limit }));
    }
    Ok(body)
}

fn exchange(socket: &Path, request: &Envelope, body: &[u8], deadline_ms: u64) -> Result<Reply, AskError> {
    let stream = connect(socket, deadline_ms)?;
    match send(&stream, body, deadline_ms) {
        // A service without room answers before it reads: that answer is waiting although it did not take ours.
        Ok(()) | Err(AskError::Vanished) => {}
        Err(error) => return Err(error),
    }
    let left = left_until(deadline_ms).ok_or(AskError::TimedOut)?;
    let answer = frame::read(&mut Timed::new(&stream, left), limits::REPLY_BYTES).map_err(|error| match error {
        FrameError::TimedOut => AskError::TimedOut,
        FrameError::Vanished => AskError::Vanished,
        FrameError::Io(error) => AskError::Io(error),
        fault => AskError::Protocol(ProtocolFault::Frame(fault)),
    })?;
    read_reply(&answer, &request.request_id)
}

fn send(stream: &UnixStream, body: &[u8], deadline_ms: u64) -> Result<(), AskError> {
    let left = left_until(deadline_ms).ok_or(AskError::TimedOut)?;
    frame::write(&mut Timed::new(stream, left), body, limits::FRAME_BYTES).map_err(|error| match error {
        FrameError::TimedOut => AskError::TimedOut,
        FrameError::Vanished => AskError::Vanished,
        FrameError::TooLarge { .. } => AskError::TooLarge(error),
        FrameError::Io(error) => AskError::Io(error),
        fault => AskError::Protocol(ProtocolFault::Frame(fault)),
    })
}

fn read_reply(answer: &[u8], request_id: &str) -> Result<Reply, AskError> {
    let value = json::parse(answer, REPLY_DEPTH).map_err(|error| AskError::Protocol(ProtocolFault::Json(error)))?;
    // The version first: another version's reply may have another form.
    let version = value.get("protocol_version").and_then(serde_json::Value::as_u64);
    let version = version.and_then(|v| u32::try_from(v).ok()).ok_or(AskError::Protocol(ProtocolFault::Form))?;
    if !speaks(version) {
        return Err(AskError::Protocol(ProtocolFault::Version(version)));
    }
    let reply: Reply = serde_json::from_value(value).map_err(|_| AskError::Protocol(ProtocolFault::Form))?;
    match reply.request_id.as_str() {
        // The service did not get as far as to read whose request it was.
        "" if reply.reason_code == QUEUE_FULL => Err(AskError::Full),
        "" => Err(AskError::Refused(reply.explanation)),
        id if id == request_id => Ok(reply),
        _ => Err(AskError::Protocol(ProtocolFault::OtherRequest)),
    }
}

/// Connects without ever blocking, and looks at who listens before a byte is sent.
fn connect(path: &Path, deadline_ms: u64) -> Result<UnixStream, AskError> {
    check_places(path)?;
    let address = UnixAddr::new(path).map_err(|errno| AskError::Io(errno.into()))?;
    let began = std::time::Instant::now();
    let fd = loop {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).map_err(refused)?;
        match socket::connect(fd.as_raw_fd(), &address) {
            Ok(()) => break fd,
            // On a unix socket this is a full queue, and not a connection under way.
            Err(Errno::EAGAIN) if began.elapsed() < PATIENCE_WITH_A_FULL_QUEUE => {
                let left = left_until(deadline_ms).ok_or(AskError::Full)?;
                std::thread::sleep(PAUSE.min(left));
            }
            Err(Errno::EAGAIN) => return Err(AskError::Full),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(refused(errno)),
        }
    };
    let listener = socket::getsockopt(&fd, sockopt::PeerCredentials).map_err(|errno| AskError::Io(errno.into()))?.uid();
    if !is_trusted(listener) {
        return Err(AskError::WrongPeer(PeerFault::Listener(listener)));
    }
    blocking(fd)
}

fn blocking(fd: OwnedFd) -> Result<UnixStream, AskError> {
    fcntl(&fd, FcntlArg::F_SETFL(OFlag::empty())).map_err(|errno| AskError::Io(errno.into()))?;
    Ok(UnixStream::from(fd))
}

fn refused(errno: Errno) -> AskError {
    match errno {
        Errno::ENOENT | Errno::ENOTDIR | Errno::ECONNREFUSED => AskError::Down,
        Errno::EPERM | Errno::EACCES => AskError::Blocked,
        other => AskError::Io(other.into()),
    }
}

fn check_places(path: &Path) -> Result<(), AskError> {
    let look = |path: &Path| {
        std::fs::symlink_metadata(path).map_err(|error| match error.raw_os_error() {
            Some(errno) => refused(Errno::from_raw(errno)),
            None => AskError::Io(error),
        })
    };
    let directory = look(path.parent().unwrap_or(Path::new("/")))?;
    if !is_trusted(directory.uid()) || directory.mode() & 0o022 != 0 {
        let (uid, mode) = (directory.uid(), directory.mode() & 0o7777);
        return Err(AskError::WrongPeer(PeerFault::Directory { uid, mode }));
    }
    let socket = look(path)?;
    if !socket.file_type().is_socket() {
        return Err(AskError::WrongPeer(PeerFault::NoSocket));
    }
    if !is_trusted(socket.uid()) || socket.mode() & 0o077 != 0 {
        return Err(AskError::WrongPeer(PeerFault::Socket { uid: socket.uid(), mode: socket.mode() & 0o7777 }));
    }
    Ok(())
}

/// This user, or root.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == Uid::current().as_raw()
}

#[cfg(test)]
mod tests;
