//! The service's line to the probe: asked when it is there, reconnected when it is not, never waited for long.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::probe::client::{Client, ClientError, Stream};
use crate::probe::protocol::{Counters, FileId, IDENTIFIED, Mark, ProgramState, Request, Response, Role};
use crate::probe::rules::RuleSet;
use crate::process::ProcessId;

/// Longest wait for one answer: a hook call waits behind it.
const ANSWER: Duration = Duration::from_secs(5);

/// Whether there is a probe, as `status` says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeState {
    /// It answers.
    Connected,
    /// None is installed: its socket does not exist.
    Absent,
    /// It is installed but does not answer, for this reason.
    Silent(String),
}

/// The line.
pub struct ProbeLink {
    socket: PathBuf,
    client: Mutex<Option<Client>>,
    state: RefCell<ProbeState>,
}

impl ProbeLink {
    /// Nothing is connected yet.
    pub fn new(socket: PathBuf) -> ProbeLink {
        ProbeLink { socket, client: Mutex::new(None), state: RefCell::new(ProbeState::Absent) }
    }

    /// As it was at the last attempt.
    pub fn state(&self) -> ProbeState {
        self.state.borrow().clone()
    }

    /// Asks once, connecting first when needed. `None` is: no answer, and [`ProbeLink::state`] says why.
    async fn ask(&self, request: Request) -> Option<Response> {
        self.ask_with(&request, &[]).await.ok()
    }

    /// Asks once, with descriptors, connecting first when needed. The error is for a person.
    async fn ask_with(&self, request: &Request, passed: &[BorrowedFd<'_>]) -> Result<Response, String> {
        let mut held = self.client.lock().await;
        if held.is_none() {
            match Client::connect(&self.socket, ANSWER).await {
                Ok(client) => *held = Some(client),
                Err(error) => {
                    *self.state.borrow_mut() = state_of(&error);
                    return Err(error.to_string());
                }
            }
        }
        let Some(client) = held.as_mut() else { return Err("not connected".to_owned()) };
        let answer = match passed {
            [] => client.request(request).await,
            passed => client.request_with(request, passed).await,
        };
        match answer {
            Ok(response) => {
                *self.state.borrow_mut() = ProbeState::Connected;
                Ok(response)
            }
            // A typed refusal is an answer: the connection is as good as before.
            Err(ClientError::Refused { kind, reason }) => {
                tracing::debug!("the probe refused ({kind:?}): {reason}");
                *self.state.borrow_mut() = ProbeState::Connected;
                Err(reason)
            }
            Err(error) => {
                *held = None;
                *self.state.borrow_mut() = state_of(&error);
                Err(error.to_string())
            }
        }
    }

    /// Whether the probe answers now.
    pub async fn is_there(&self) -> bool {
        self.status().await.is_some()
    }

    /// What it has loaded.
    pub async fn status(&self) -> Option<(Vec<ProgramState>, bool)> {
        match self.ask(Request::Status).await? {
            Response::Status { programs, syscall_refusals_observed } => Some((programs, syscall_refusals_observed)),
            _ => None,
        }
    }

    /// Where it publishes this user's plans.
    pub async fn plan_directory(&self) -> Option<PathBuf> {
        self.ask(Request::Status).await?;
        self.client.lock().await.as_ref().map(|client| client.plan_directory().to_owned())
    }

    /// A new session number, which no process carries yet.
    pub async fn new_session(&self) -> Option<u64> {
        match self.ask(Request::OpenSession).await? {
            Response::Session { session } => Some(session),
            _ => None,
        }
    }

    /// Marks `root` and its descendants; answers how many threads carry the number now. A session that nothing could be
    /// marked for is closed.
    pub async fn enrol(&self, session: u64, root: ProcessId) -> Option<u32> {
        match self.ask(Request::Enrol { session, root, role: Role::Host }).await {
            Some(Response::Enrolled { threads }) => Some(threads),
            _ => {
                self.ask(Request::CloseSession { session }).await;
                None
            }
        }
    }

    /// How the kernel keys these files, in order. They are held by the probe for the session's rules.
    pub async fn identify(&self, session: u64, files: &[BorrowedFd<'_>]) -> Result<Vec<FileId>, String> {
        let mut all = Vec::with_capacity(files.len());
        for batch in files.chunks(IDENTIFIED) {
            match self.ask_with(&Request::Identify { session }, batch).await? {
                Response::Identified { files } if files.len() == batch.len() => all.extend(files),
                _ => return Err("an answer to another question".to_owned()),
            }
        }
        Ok(all)
    }

    /// From now on a session's processes are judged by these; answers with their generations.
    pub async fn set_rules(&self, session: u64, launched: RuleSet, host: RuleSet) -> Result<(u32, u32), String> {
        match self
            .ask_with(&Request::SetRules { session, launched: Box::new(launched), host: Box::new(host) }, &[])
            .await?
        {
            Response::RulesSet { launched, host } => Ok((launched, host)),
            _ => Err("an answer to another question".to_owned()),
        }
    }

    /// The tree has ended.
    pub async fn close_session(&self, session: u64) {
        self.ask(Request::CloseSession { session }).await;
    }

    /// A process's mark. The outer `None` is: not known.
    pub async fn mark_of(&self, process: ProcessId) -> Option<Option<Mark>> {
        match self.ask(Request::MarkOf { process }).await? {
            Response::Mark { mark } => Some(mark),
            _ => None,
        }
    }

    /// Refusals of system calls are watched once this returns.
    pub async fn expect_launch(&self, session: u64) -> bool {
        matches!(self.ask(Request::ExpectLaunch { session }).await, Some(Response::Done))
    }

    /// Publishes a plan, root-owned; answers with its path.
    pub async fn publish(&self, name: String, plan: Vec<u8>) -> Option<PathBuf> {
        match self.ask(Request::PublishPlan { name, plan }).await? {
            Response::Published { path } => Some(path.into()),
            _ => None,
        }
    }

    /// Removes a plan.
    pub async fn remove_plan(&self, name: String) {
        self.ask(Request::RemovePlan { name }).await;
    }

    /// Counters of a session.
    pub async fn counters(&self, session: u64) -> Option<Counters> {
        match self.ask(Request::Counters { session }).await? {
            Response::Counters(counters) => Some(*counters),
            _ => None,
        }
    }

    /// A stream of observations on a connection of its own.
    pub async fn stream(&self) -> Result<Stream, ClientError> {
        let client = Client::connect(&self.socket, ANSWER).await.inspect_err(|error| {
            *self.state.borrow_mut() = state_of(error);
        })?;
        client.stream().await
    }
}

fn state_of(error: &ClientError) -> ProbeState {
    match error {
        ClientError::Absent { .. } => ProbeState::Absent,
        error => ProbeState::Silent(error.to_string()),
    }
}
