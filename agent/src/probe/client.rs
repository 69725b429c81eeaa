//! The other end of the probe's socket, for the service. Reconnecting is the caller's matter: it knows what a gap means.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use tokio::net::UnixStream;

use super::frames::{self, CodecError};
use super::protocol::{Counters, Mark, Observation, PROTOCOL_VERSION, ProgramState, Refusal, Request, Response, Role};
use crate::ipc::descriptors;
use crate::ipc::frame::{self, FrameError};
use crate::ipc::limits::FRAME_BYTES;
use crate::process::ProcessId;

/// Why the probe did not do it.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no socket: no probe is installed, or it has not started since boot.
    #[error("{0} is not there: no probe runs on this machine")]
    Absent(PathBuf),
    /// There is a socket and nobody listens.
    #[error("nobody listens at {0}: the probe has stopped (systemctl status ringfence-probe)")]
    NobodyListens(PathBuf),
    /// A sandbox around this process forbids it to connect.
    #[error("connecting to {0} is blocked by the host's sandbox, or by the file system's permissions")]
    Blocked(PathBuf),
    /// Whoever listens there is neither root nor this user.
    #[error("{0} is served by uid {1}, which is neither root nor this user")]
    Impostor(PathBuf, u32),
    /// The connection ended.
    #[error("the probe is gone")]
    Vanished,
    /// No answer in time.
    #[error("the probe did not answer in time")]
    TimedOut,
    /// What it said is not this protocol, or another version of it.
    #[error("the probe speaks another protocol: {0}")]
    Protocol(String),
    /// It refused.
    #[error("the probe refused: {reason}")]
    Refused {
        /// For programs.
        kind: Refusal,
        /// For the person.
        reason: String,
    },
    /// Anything else that the operating system says.
    #[error("the probe's socket: {0}")]
    Io(#[source] io::Error),
}

impl From<FrameError> for ClientError {
    fn from(error: FrameError) -> ClientError {
        match error {
            FrameError::Vanished | FrameError::Truncated { .. } => ClientError::Vanished,
            FrameError::TimedOut => ClientError::TimedOut,
            FrameError::TooLarge { .. } | FrameError::Empty => ClientError::Protocol(error.to_string()),
            FrameError::Io(error) => ClientError::Io(error),
        }
    }
}

impl From<CodecError> for ClientError {
    fn from(error: CodecError) -> ClientError {
        ClientError::Protocol(error.to_string())
    }
}

/// A connection on which requests are made, one after the other.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    deadline: Duration,
    version: String,
    plan_directory: PathBuf,
}

/// What [`Client::status`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Each program, attached or not.
    pub programs: Vec<ProgramState>,
    /// Whether refused system calls are observed now.
    pub syscall_refusals_observed: bool,
}

impl Client {
    /// Connects and says hello. `deadline` bounds this, and then each request by itself.
    pub async fn connect(path: &Path, deadline: Duration) -> Result<Client, ClientError> {
        let connecting = tokio::time::timeout(deadline, UnixStream::connect(path));
        let socket = connecting.await.map_err(|_| ClientError::TimedOut)?.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ClientError::Absent(path.to_owned()),
            io::ErrorKind::ConnectionRefused => ClientError::NobodyListens(path.to_owned()),
            io::ErrorKind::PermissionDenied => ClientError::Blocked(path.to_owned()),
            _ => ClientError::Io(error),
        })?;
        let served_by = getsockopt(&socket, sockopt::PeerCredentials).map_err(|errno| ClientError::Io(errno.into()))?;
        if served_by.uid() != 0 && served_by.uid() != nix::unistd::geteuid().as_raw() {
            return Err(ClientError::Impostor(path.to_owned(), served_by.uid()));
        }
        let mut client = Client { socket, deadline, version: String::new(), plan_directory: PathBuf::new() };
        match client.request(&Request::Hello { protocol_version: PROTOCOL_VERSION }).await? {
            Response::Welcome { protocol_version: PROTOCOL_VERSION, version, plan_directory } => {
                client.version = version;
                client.plan_directory = plan_directory.into();
                Ok(client)
            }
            Response::Welcome { protocol_version, .. } => {
                Err(ClientError::Protocol(format!("version {protocol_version} instead of {PROTOCOL_VERSION}")))
            }
            _ => Err(out_of_place()),
        }
    }

    /// The probe's version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Where the probe publishes this uid's plans.
    pub fn plan_directory(&self) -> &Path {
        &self.plan_directory
    }

    /// Makes one request. A refusal is an error. After any other error the connection is of no use.
    pub async fn request(&mut self, request: &Request) -> Result<Response, ClientError> {
        let body = frames::encode(request)?;
        frame::write_async(&mut self.socket, &body, FRAME_BYTES, self.deadline).await?;
        self.response().await
    }

    /// Makes one request that descriptors come with; otherwise as [`Client::request`].
    pub async fn request_with(
        &mut self,
        request: &Request,
        passed: &[BorrowedFd<'_>],
    ) -> Result<Response, ClientError> {
        let body = frames::encode(request)?;
        let sent = tokio::time::timeout(self.deadline, descriptors::write_with(&self.socket, &body, passed));
        sent.await.map_err(|_| ClientError::TimedOut)??;
        self.response().await
    }

    async fn response(&mut self) -> Result<Response, ClientError> {
        let body = frame::read_async(&mut self.socket, FRAME_BYTES, self.deadline).await?;
        match frames::decode(&body)? {
            Response::Refused { kind, reason } => Err(ClientError::Refused { kind, reason }),
            other => Ok(other),
        }
    }

    /// What is loaded.
    pub async fn status(&mut self) -> Result<Status, ClientError> {
        match self.request(&Request::Status).await? {
            Response::Status { programs, syscall_refusals_observed } => {
                Ok(Status { programs, syscall_refusals_observed })
            }
            _ => Err(out_of_place()),
        }
    }

    /// See [`Request::OpenSession`].
    pub async fn open_session(&mut self) -> Result<u64, ClientError> {
        match self.request(&Request::OpenSession).await? {
            Response::Session { session } => Ok(session),
            _ => Err(out_of_place()),
        }
    }

    /// See [`Request::CloseSession`].
    pub async fn close_session(&mut self, session: u64) -> Result<(), ClientError> {
        self.done(&Request::CloseSession { session }).await
    }

    /// See [`Request::Sessions`].
    pub async fn sessions(&mut self) -> Result<Vec<u64>, ClientError> {
        match self.request(&Request::Sessions).await? {
            Response::Sessions { sessions } => Ok(sessions),
            _ => Err(out_of_place()),
        }
    }

    /// See [`Request::Enrol`]; answers how many threads were marked.
    pub async fn enrol(&mut self, session: u64, root: ProcessId, role: Role) -> Result<u32, ClientError> {
        match self.request(&Request::Enrol { session, root, role }).await? {
            Response::Enrolled { threads } => Ok(threads),
            _ => Err(out_of_place()),
        }
    }

    /// See [`Request::MarkOf`].
    pub async fn mark_of(&mut self, process: ProcessId) -> Result<Option<Mark>, ClientError> {
        match self.request(&Request::MarkOf { process }).await? {
            Response::Mark { mark } => Ok(mark),
            _ => Err(out_of_place()),
        }
    }

    /// See [`Request::MarkOfPassed`]: the mark of the process behind a pidfd, such as a [`crate::ipc::peer::Peer`]'s.
    pub async fn mark_behind(&mut self, pidfd: BorrowedFd<'_>) -> Result<Option<Mark>, ClientError> {
        match self.request_with(&Request::MarkOfPassed, &[pidfd]).await? {
            Response::Mark { mark } => Ok(mark),
            _ => Err(out_of_place()),
        }
    }

    /// See [`Request::ExpectLaunch`].
    pub async fn expect_launch(&mut self, session: u64) -> Result<(), ClientError> {
        self.done(&Request::ExpectLaunch { session }).await
    }

    /// See [`Request::PublishPlan`]; answers with the plan's path.
    pub async fn publish_plan(&mut self, name: String, plan: Vec<u8>) -> Result<PathBuf, ClientError> {
        match self.request(&Request::PublishPlan { name, plan }).await? {
            Response::Published { path } => Ok(path.into()),
            _ => Err(out_of_place()),
        }
    }

    /// See [`Request::RemovePlan`].
    pub async fn remove_plan(&mut self, name: String) -> Result<(), ClientError> {
        self.done(&Request::RemovePlan { name }).await
    }

    /// See [`Request::RuntimeDirectory`].
    pub async fn runtime_directory(&mut self) -> Result<PathBuf, ClientError> {
        match self.request(&Request::RuntimeDirectory).await? {
            Response::RuntimeDirectory { path } => Ok(path.into()),
            _ => Err(out_of_place()),
        }
    }

    /// See [`Request::Counters`].
    pub async fn counters(&mut self, session: u64) -> Result<Counters, ClientError> {
        match self.request(&Request::Counters { session }).await? {
            Response::Counters(counters) => Ok(*counters),
            _ => Err(out_of_place()),
        }
    }

    /// Turns this connection into the stream of this uid's observations.
    pub async fn stream(mut self) -> Result<Stream, ClientError> {
        self.done(&Request::Stream).await?;
        Ok(Stream { socket: self.socket, deadline: self.deadline })
    }

    async fn done(&mut self, request: &Request) -> Result<(), ClientError> {
        match self.request(request).await? {
            Response::Done => Ok(()),
            _ => Err(out_of_place()),
        }
    }
}

fn out_of_place() -> ClientError {
    ClientError::Protocol("an answer to another question".to_owned())
}

/// One user's observations, as they come.
#[derive(Debug)]
pub struct Stream {
    socket: UnixStream,
    deadline: Duration,
}

impl Stream {
    /// The next batch; waits for as long as nothing happens. Not to be dropped half-way (in a `select!`): what was
    /// read of a frame would be lost, and with it the stream. Give it a task of its own.
    pub async fn next(&mut self) -> Result<Vec<Observation>, ClientError> {
        let length = frame::read_prefix_async(&mut self.socket, FRAME_BYTES).await?;
        let body = frame::read_body_async(&mut self.socket, length, self.deadline).await?;
        match frames::decode(&body)? {
            Response::Observations(observations) => Ok(observations),
            Response::Refused { kind, reason } => Err(ClientError::Refused { kind, reason }),
            _ => Err(out_of_place()),
        }
    }
}
