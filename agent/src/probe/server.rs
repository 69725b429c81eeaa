//! The probe's socket: who may connect, and what becomes of each request.
//!
//! Anybody may connect; what a peer may do follows from its uid and its mark, both of which the kernel says. The mark
//! is asked for again with each request, since a peer can become marked while it is connected. Whatever a user can
//! make the probe hold (connections, sessions, plans, memory) is bounded per uid.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixSocket, UnixStream};

use super::backend::{Backend, BackendError};
use super::frames;
use super::plans::{PlanError, Plans, make_directory};
use super::protocol::{PROTOCOL_VERSION, Refusal, Request, Response};
use super::stream;
use crate::ipc::descriptors::Receiver;
use crate::ipc::frame::{self, FrameError};
use crate::ipc::limits::FRAME_BYTES;
use crate::ipc::peer::{self, Peer, PeerError};
use crate::places;
use crate::process::ProcessId;

/// Most connections of one uid at a time.
pub const CONNECTIONS_PER_UID: usize = 32;
/// Most connections at a time.
pub const CONNECTIONS: usize = 512;
/// Most open sessions of one uid.
pub const SESSIONS_PER_UID: usize = 256;
/// How often rules of ended sessions are looked for.
const TIDYING: Duration = Duration::from_secs(10);

/// Where and how the server works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The socket.
    pub socket: PathBuf,
    /// Where plans are published.
    pub plans_dir: PathBuf,
    /// Below it, in `u/`, are the runtime directories of users who have no `/run/user/UID`.
    pub runtime_root: PathBuf,
    /// Where the kernel side pins; written into the lock, so that an unload finds the probe that holds these pins.
    pub pin_dir: PathBuf,
    /// Installed services: only these may change anything or take a stream. Empty lets every unmarked process.
    pub services: Vec<PathBuf>,
    /// Refusals of system calls are no longer watched when no launch has lived for this long.
    pub refusals_idle: Duration,
    /// How long a peer may take for one frame once it has begun (also: for its first one), and to take an answer.
    pub peer_patience: Duration,
    /// A subscriber that does not take a frame for this long is dropped.
    pub subscriber_patience: Duration,
}

/// Why the server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another probe serves this socket.
    #[error("another probe (pid {0}) serves {1} already: stop it first")]
    Running(u32, PathBuf),
    /// A path cannot be used.
    #[error("{0}: {1}")]
    Place(PathBuf, #[source] io::Error),
    /// Others could replace the socket.
    #[error("{0} must be owned by uid {1} and writable by nobody else")]
    Unsafe(PathBuf, u32),
    /// The plan directory cannot be used.
    #[error(transparent)]
    Plans(#[from] PlanError),
}

/// What one uid holds.
#[derive(Debug, Default)]
pub(super) struct Account {
    connections: usize,
    /// The process that has its stream.
    pub(super) subscriber: Option<ProcessId>,
    /// Frames that a vanished subscriber did not take whole: the next one gets them first.
    pub(super) undelivered: VecDeque<Vec<u8>>,
}

/// What all connections share. Nothing is borrowed across an await.
pub(super) struct Shared<B: Backend> {
    pub(super) options: Options,
    pub(super) backend: RefCell<B>,
    plans: RefCell<Plans>,
    pub(super) accounts: RefCell<HashMap<u32, Account>>,
    /// When a launch was last expected or seen alive.
    launch_seen: Cell<Instant>,
}

/// The bound socket, not yet served.
pub struct Server<B: Backend> {
    listener: UnixListener,
    shared: Rc<Shared<B>>,
    lock: Lock,
}

/// The right to be the one probe of a socket, held until it is dropped or the process ends.
pub struct Claim {
    options: Options,
    lock: Lock,
}

impl Claim {
    /// Takes it, before the kernel side is touched: two probes never work on the same pins.
    pub fn take(options: Options) -> Result<Claim, ServerError> {
        let directory = options.socket.parent().unwrap_or(Path::new("/"));
        let at = |error| ServerError::Place(directory.to_owned(), error);
        make_directory(directory, 0o755).map_err(at)?;
        let owner = nix::unistd::geteuid().as_raw();
        let meta = fs::metadata(directory).map_err(at)?;
        if meta.uid() != owner || meta.mode() & 0o022 != 0 {
            return Err(ServerError::Unsafe(directory.to_owned(), owner));
        }
        let lock = lock(&options)?;
        Ok(Claim { options, lock })
    }

    /// Binds the socket, in place of one that an earlier probe left. Call it inside a tokio runtime.
    pub fn bind<B: Backend>(self, backend: B) -> Result<Server<B>, ServerError> {
        let Claim { options, lock } = self;
        let plans = Plans::open(&options.plans_dir)?;
        let at = |error| ServerError::Place(options.socket.clone(), error);
        match fs::remove_file(&options.socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(error)),
            _ => {}
        }
        let socket = UnixSocket::new_stream().and_then(|socket| socket.bind(&options.socket).map(|()| socket));
        let socket = socket.map_err(at)?;
        // Before it listens: who may connect at all is answered.
        fs::set_permissions(&options.socket, Permissions::from_mode(0o666)).map_err(at)?;
        let listener = socket.listen(CONNECTIONS as u32).map_err(at)?;
        let shared = Rc::new(Shared {
            options,
            backend: RefCell::new(backend),
            plans: RefCell::new(plans),
            accounts: RefCell::default(),
            launch_seen: Cell::new(Instant::now()),
        });
        Ok(Server { listener, shared, lock })
    }
}

impl<B: Backend> Server<B> {
    /// Serves until `stop` is done, then removes the socket. Must run inside a [`tokio::task::LocalSet`].
    /// Gives the lock back, for what is still to be done to the pins.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Lock {
        let Server { listener, shared, lock } = self;
        resume_watching(&shared);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn_local(stop_watching_when_idle(shared.clone()));
        tasks.spawn_local(tidy_rules(shared.clone()));
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                accepted = listener.accept() => match accepted {
                    Ok((socket, _)) => drop(tasks.spawn_local(connection(shared.clone(), socket))),
                    // Out of descriptors or memory: what is open goes on, and closes in time.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                },
                Some(_ended) = tasks.join_next() => {}
            }
        }
        drop(listener);
        let _ = fs::remove_file(&shared.options.socket);
        tasks.shutdown().await;
        lock
    }
}

/// Where the lock of a probe with this socket is.
fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

/// One probe per socket. It goes with the process; its file, removed on drop, says which process and which pins.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _held: Flock<File>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn lock(options: &Options) -> Result<Lock, ServerError> {
    let path = lock_path(&options.socket);
    let at = |error: io::Error| ServerError::Place(path.clone(), error);
    let mut held = loop {
        let mut open = OpenOptions::new();
        let open = open.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let held = match Flock::lock(open.open(&path).map_err(at)?, FlockArg::LockExclusiveNonblock) {
            Ok(held) => held,
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                let pid = running(&options.socket).map_or(0, |(process, _)| process.pid);
                return Err(ServerError::Running(pid, options.socket.clone()));
            }
            Err((_, errno)) => return Err(at(errno.into())),
        };
        // The file that was opened may be one that a probe which ended has removed since: then the lock is nobody's.
        let same = |there: fs::Metadata, here: fs::Metadata| there.ino() == here.ino() && there.dev() == here.dev();
        if fs::metadata(&path).is_ok_and(|there| held.metadata().is_ok_and(|here| same(there, here))) {
            break held;
        }
    };
    let id = crate::process::stat(std::process::id()).map(|stat| stat.id);
    let (pid, start) = id.map_or((std::process::id(), 0), |id| (id.pid, id.start));
    let text = format!("{pid} {start} {}\n", options.pin_dir.display());
    held.set_len(0).and_then(|()| held.write_all(text.as_bytes())).map_err(at)?;
    Ok(Lock { path, _held: held })
}

/// The probe that serves `socket` now, and where it pins.
pub fn running(socket: &Path) -> Option<(ProcessId, PathBuf)> {
    let mut file = File::open(lock_path(socket)).ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let mut words = text.trim_end().splitn(3, ' ');
    let process = ProcessId { pid: words.next()?.parse().ok()?, start: words.next()?.parse().ok()? };
    let pins = PathBuf::from(words.next()?);
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        // Nobody holds it: that probe has ended.
        Ok(_free) => None,
        Err(_) => Some((process, pins)),
    }
}

/// One of the connections that a uid may have.
struct Seat<B: Backend> {
    shared: Rc<Shared<B>>,
    uid: u32,
}

impl<B: Backend> Seat<B> {
    fn take(shared: &Rc<Shared<B>>, uid: u32) -> Option<Seat<B>> {
        let mut accounts = shared.accounts.borrow_mut();
        let all: usize = accounts.values().map(|account| account.connections).sum();
        let account = accounts.entry(uid).or_default();
        if account.connections >= CONNECTIONS_PER_UID || all >= CONNECTIONS {
            return None;
        }
        account.connections += 1;
        Some(Seat { shared: shared.clone(), uid })
    }
}

impl<B: Backend> Drop for Seat<B> {
    fn drop(&mut self) {
        let mut accounts = self.shared.accounts.borrow_mut();
        if let Some(account) = accounts.get_mut(&self.uid) {
            account.connections -= 1;
            if account.connections == 0 && account.undelivered.is_empty() {
                accounts.remove(&self.uid);
            }
        }
    }
}

fn refused(kind: Refusal, reason: impl Into<String>) -> Response {
    Response::Refused { kind, reason: reason.into() }
}

impl From<BackendError> for Response {
    fn from(error: BackendError) -> Response {
        refused(error.kind, error.reason)
    }
}

impl From<PlanError> for Response {
    fn from(error: PlanError) -> Response {
        refused(error.refusal(), error.to_string())
    }
}

pub(super) async fn answer(to: &mut OwnedWriteHalf, response: &Response, patience: Duration) -> Result<(), FrameError> {
    let body = frames::encode(response)
        .or_else(|_| frames::encode(&refused(Refusal::Limit, "the answer does not fit one frame")));
    frame::write_async(to, &body.unwrap_or_default(), FRAME_BYTES, patience).await
}

/// One connection, from its first frame to its end.
async fn connection<B: Backend>(shared: Rc<Shared<B>>, socket: UnixStream) {
    let Ok(peer) = Peer::of(&socket) else { return };
    let patience = shared.options.peer_patience;
    let (socket, mut writer) = socket.into_split();
    let Some(_seat) = Seat::take(&shared, peer.uid) else {
        let _ = answer(&mut writer, &refused(Refusal::Limit, "too many connections of this user"), patience).await;
        return;
    };
    let mut reader = Receiver::new(socket.as_ref());
    let mut greeted = false;
    loop {
        let body = if greeted {
            // Between requests a connection may be idle for as long as it likes.
            match frame::read_prefix_async(&mut reader, FRAME_BYTES).await {
                Ok(length) => frame::read_body_async(&mut reader, length, patience).await,
                Err(error) => Err(error),
            }
        } else {
            frame::read_async(&mut reader, FRAME_BYTES, patience).await
        };
        let body = match body {
            Ok(body) => body,
            Err(error @ (FrameError::TooLarge { .. } | FrameError::Empty)) => {
                let _ = answer(&mut writer, &refused(Refusal::Protocol, error.to_string()), patience).await;
                return;
            }
            Err(_) => return,
        };
        let passed = reader.take();
        if let Err(response) = unmarked(&shared, &peer) {
            let _ = answer(&mut writer, &response, patience).await;
            return;
        }
        let request = match frames::decode::<Request>(&body) {
            Ok(request) => request,
            Err(error) => {
                let _ = answer(&mut writer, &refused(Refusal::Protocol, error.to_string()), patience).await;
                return;
            }
        };
        match (&request, greeted) {
            (Request::Hello { protocol_version: PROTOCOL_VERSION }, _) => greeted = true,
            (Request::Hello { protocol_version }, _) => {
                let reason = format!("this probe speaks version {PROTOCOL_VERSION}, not {protocol_version}");
                let _ = answer(&mut writer, &refused(Refusal::Protocol, reason), patience).await;
                return;
            }
            (_, true) => {}
            (_, false) => {
                let _ = answer(&mut writer, &refused(Refusal::Protocol, "the first request is Hello"), patience).await;
                return;
            }
        }
        if let Err(response) = may_ask(&shared, &peer, &request) {
            if answer(&mut writer, &response, patience).await.is_err() {
                return;
            }
            continue;
        }
        if request == Request::Stream {
            stream::serve(&shared, &peer, &mut writer, &mut reader).await;
            return;
        }
        let response = handle(&shared, &peer, request, passed).unwrap_or_else(|refusal| refusal);
        if answer(&mut writer, &response, patience).await.is_err() {
            return;
        }
    }
}

/// A marked peer is refused everything, and so is one of whom that is not known.
pub(super) fn unmarked<B: Backend>(shared: &Shared<B>, peer: &Peer) -> Result<(), Response> {
    match shared.backend.borrow().mark_of(peer.process) {
        Ok(None) if peer.lives() => Ok(()),
        Ok(None) => Err(refused(Refusal::Gone, "the peer is gone")),
        Ok(Some(_)) => Err(refused(Refusal::MarkedPeer, "a process inside a supervised tree may not ask the probe")),
        Err(error) => Err(error.into()),
    }
}

/// Whoever is not the service may look, and nothing else: a fenced command of a session that has no mark yet is unmarked,
/// too, and could publish a plan of its own making.
fn may_ask<B: Backend>(shared: &Shared<B>, peer: &Peer, request: &Request) -> Result<(), Response> {
    let looks = match request {
        Request::Hello { .. }
        | Request::Status
        | Request::Sessions
        | Request::MarkOf { .. }
        | Request::MarkOfPassed
        | Request::Counters { .. }
        | Request::RuntimeDirectory => true,
        Request::OpenSession
        | Request::CloseSession { .. }
        | Request::Enrol { .. }
        | Request::Identify { .. }
        | Request::SetRules { .. }
        | Request::ExpectLaunch { .. }
        | Request::PublishPlan { .. }
        | Request::RemovePlan { .. }
        | Request::Stream => false,
    };
    if looks || shared.options.services.is_empty() {
        return Ok(());
    }
    let program = peer.executable().map_err(from_peer)?;
    let is = |service: &PathBuf| {
        std::fs::metadata(service).is_ok_and(|meta| (meta.dev(), meta.ino()) == (program.device, program.inode))
    };
    match shared.options.services.iter().any(is) {
        true => Ok(()),
        false => Err(refused(Refusal::NotYours, "only the installed ringfenced may ask this of the probe")),
    }
}

fn handle<B: Backend>(
    shared: &Shared<B>,
    peer: &Peer,
    request: Request,
    passed: Vec<OwnedFd>,
) -> Result<Response, Response> {
    let uid = peer.uid;
    let mut backend = shared.backend.borrow_mut();
    let own_session = |backend: &B, session| match backend.owner(session) {
        Some(owner) if owner == uid => Ok(()),
        // Whether another user has such a session is not said.
        _ => Err(refused(Refusal::NotYours, format!("session {session} is not open, or not this user's"))),
    };
    Ok(match request {
        Request::Hello { .. } => Response::Welcome {
            protocol_version: PROTOCOL_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            plan_directory: shared.plans.borrow().directory_of(uid).display().to_string(),
        },
        Request::Status => {
            Response::Status { programs: backend.programs(), syscall_refusals_observed: backend.watching_refusals() }
        }
        Request::OpenSession => {
            if backend.sessions(uid)?.len() >= SESSIONS_PER_UID {
                let reason = format!("this user has {SESSIONS_PER_UID} open sessions: close some first");
                return Err(refused(Refusal::Limit, reason));
            }
            Response::Session { session: backend.open_session(uid)? }
        }
        Request::CloseSession { session } => {
            own_session(&backend, session)?;
            backend.close_session(session)?;
            Response::Done
        }
        Request::Sessions => Response::Sessions { sessions: backend.sessions(uid)? },
        Request::Enrol { session, root, role } => {
            own_session(&backend, session)?;
            own_process(uid, root, Whose::Entirely)?;
            Response::Enrolled { threads: backend.enrol(session, root, role)? }
        }
        Request::MarkOf { process } => {
            own_process(uid, process, Whose::AtLeastReal)?;
            let mark = backend.mark_of(process)?;
            // Asked again, so that the answer is about this process and not one that got its pid since.
            own_process(uid, process, Whose::AtLeastReal)?;
            Response::Mark { mark }
        }
        Request::MarkOfPassed => {
            let [pidfd] = <[OwnedFd; 1]>::try_from(passed)
                .map_err(|_| refused(Refusal::Protocol, "this request comes with one pidfd"))?;
            let process = peer::process_of(pidfd.as_fd()).map_err(from_peer)?;
            own_process(uid, process, Whose::AtLeastReal)?;
            let mark = backend.mark_of(process)?;
            if !peer::lives(pidfd.as_fd()) {
                return Err(refused(Refusal::Gone, "the process has ended"));
            }
            Response::Mark { mark }
        }
        Request::Identify { session } => {
            own_session(&backend, session)?;
            Response::Identified { files: backend.identify_held(session, passed)? }
        }
        Request::SetRules { session, launched, host } => {
            own_session(&backend, session)?;
            let (launched, host) = backend.set_rules(session, &launched, &host)?;
            Response::RulesSet { launched, host }
        }
        Request::ExpectLaunch { session } => {
            own_session(&backend, session)?;
            shared.launch_seen.set(Instant::now());
            if !backend.watching_refusals() {
                backend.watch_refusals(true)?;
            }
            Response::Done
        }
        Request::PublishPlan { name, plan } => {
            let path = shared.plans.borrow_mut().publish(uid, peer.gid, &name, &plan)?;
            Response::Published { path: path.display().to_string() }
        }
        Request::RemovePlan { name } => {
            shared.plans.borrow_mut().remove(uid, &name)?;
            Response::Done
        }
        Request::RuntimeDirectory => {
            let path = runtime_directory(&shared.options.runtime_root, uid, peer.gid)
                .map_err(|error| refused(Refusal::Unavailable, format!("the runtime directory: {error}")))?;
            Response::RuntimeDirectory { path: path.display().to_string() }
        }
        Request::Counters { session } => {
            own_session(&backend, session)?;
            Response::Counters(Box::new(backend.counters(session)?))
        }
        // Taken out of the connection before it comes here.
        Request::Stream => refused(Refusal::Protocol, "a stream cannot begin here"),
    })
}

fn from_peer(error: PeerError) -> Response {
    let kind = match error {
        PeerError::Gone => Refusal::Gone,
        PeerError::Credentials(_) | PeerError::Hidden(_) | PeerError::Malformed(_) => Refusal::Unavailable,
    };
    refused(kind, error.to_string())
}

/// How much of a process has to be a user's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Real, effective, saved and file system uid: a set-uid program is not the user's to have marked.
    Entirely,
    /// The real uid.
    AtLeastReal,
}

fn own_process(uid: u32, process: ProcessId, whose: Whose) -> Result<(), Response> {
    let uids = peer::restrictions(process).map_err(from_peer)?.uids;
    let own = match whose {
        Whose::Entirely => uids == [uid; 4],
        Whose::AtLeastReal => uids[0] == uid,
    };
    let reason = || format!("process {} does not belong to this user", process.pid);
    if own { Ok(()) } else { Err(refused(Refusal::NotYours, reason())) }
}

/// The directory that hook and launcher of this user look for, see [`places::Places`]; made if it is the probe's to make.
fn runtime_directory(root: &Path, uid: u32, gid: u32) -> io::Result<PathBuf> {
    let of_login = PathBuf::from(format!("/run/user/{uid}"));
    if places::is_private(&of_login, uid) {
        return Ok(of_login.join("ringfence"));
    }
    let parent = root.join("u");
    make_directory(root, 0o755)?;
    make_directory(&parent, 0o755)?;
    let directory = parent.join(uid.to_string());
    make_directory(&directory, 0o700)?;
    let open = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(&directory)?;
    let owner = open.metadata()?.uid();
    if owner != uid && owner == nix::unistd::geteuid().as_raw() {
        std::os::unix::fs::fchown(&open, Some(uid), Some(gid))?;
    }
    if places::is_private(&directory, uid) {
        Ok(directory)
    } else {
        Err(io::Error::other(format!("{} is there and is not uid {uid}'s alone", directory.display())))
    }
}

/// After a restart: launches of an earlier probe's time may still live.
fn resume_watching<B: Backend>(shared: &Shared<B>) {
    let mut backend = shared.backend.borrow_mut();
    if !backend.watching_refusals() && backend.a_launch_lives() {
        // What it says if it cannot is in `programs`, which `Status` shows.
        let _ = backend.watch_refusals(true);
    }
}

/// Watching refusals costs every process of the machine a little, so it ends when nothing is behind a launch.
async fn stop_watching_when_idle<B: Backend>(shared: Rc<Shared<B>>) {
    let idle = shared.options.refusals_idle;
    let pause = (idle / 4).clamp(Duration::from_millis(50), Duration::from_secs(15));
    loop {
        tokio::time::sleep(pause).await;
        let mut backend = shared.backend.borrow_mut();
        if !backend.watching_refusals() {
            continue;
        }
        if backend.a_launch_lives() {
            shared.launch_seen.set(Instant::now());
        } else if shared.launch_seen.get().elapsed() >= idle {
            let _ = backend.watch_refusals(false);
        }
    }
}

/// Rules of sessions that are closed go when nothing of the session lives any more.
async fn tidy_rules<B: Backend>(shared: Rc<Shared<B>>) {
    loop {
        tokio::time::sleep(TIDYING).await;
        let _ = shared.backend.borrow_mut().tidy_rules();
    }
}

#[cfg(test)]
mod tests;
