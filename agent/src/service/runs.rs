//! `ringfence run`: a command that is a session of its own.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use super::control_server::refused;
use super::grade::{self, Require};
use super::person::{FRESH, Person};
use super::rules::Subject;
use super::sessions::Session;
use crate::clock::boottime_ns;
use crate::fence::line;
use crate::host::{HostKind, ToolClass};
use crate::ipc::control::{Answer, Refusal, SessionChoice};
use crate::ipc::peer::Peer;
use crate::ledger::join::Fact;
use crate::policy::judge::Decision;
use crate::process::{self, ProcessId};

/// How long a proof that is required may take.
const PROVING: Duration = Duration::from_secs(15);
/// What a command left behind may still be seen, after it ended, before the report is made.
const SETTLING: Duration = Duration::from_millis(400);

impl Person {
    /// Opens a session for a child of the caller that waits at its gate.
    pub(super) async fn run_open(
        &self,
        peer: &Peer,
        child: ProcessId,
        (fence, require): (&str, Option<Require>),
        command: &[String],
        cwd: PathBuf,
    ) -> Answer {
        let failed = |reason: String| refused(Refusal::Failed, reason);
        if !process::stat(child.pid).is_ok_and(|now| now.id == child && now.parent == peer.process.pid) {
            return failed("the process to supervise is not a child of the caller".into());
        }
        let Some(tree) = self.pipeline.plans.tree_of(&cwd) else {
            let dir = cwd.display();
            return failed(format!(
                "{dir} cannot be a working tree (it is /, your home or above it): run it from a project"
            ));
        };
        let id = format!("run-{}", uuid::Uuid::now_v7());
        let subject = Subject { session: id.clone(), host: HostKind::Run, tree: tree.clone(), fence: fence.to_owned() };
        let mark = self.pipeline.mark_tree(child, subject).await;
        if let Some((mark, reason)) = mark.and_then(|mark| Some((mark, self.pipeline.rules.missing(mark)?))) {
            self.pipeline.rules.forget(mark);
            self.pipeline.probe.close_session(mark).await;
            return failed(format!("the kernel's rules for it could not be set: {reason}"));
        }
        let session = Session {
            id: id.clone(),
            host: HostKind::Run,
            host_version: None,
            host_process: Some(child),
            mark,
            complete: true,
            tree: Some(tree),
            first_cwd: cwd.clone(),
            plan: None,
            task: None,
            last_event_ns: boottime_ns(),
        };
        if let Some(mark) = session.mark {
            self.pipeline.probe.expect_launch(mark).await;
        }
        let plan = match self.pipeline.plans.publish(&session, fence, self.pipeline.policy.hash()).await {
            Ok(plan) => plan,
            Err(error) => {
                if let Some(mark) = session.mark {
                    self.pipeline.rules.forget(mark);
                    self.pipeline.probe.close_session(mark).await;
                }
                return failed(error.to_string());
            }
        };
        if let Err(missing) = self.reaches(require, &id).await {
            if let Some(mark) = session.mark {
                self.pipeline.rules.forget(mark);
                self.pipeline.probe.close_session(mark).await;
            }
            self.pipeline.plans.withdraw(&session).await;
            return failed(missing);
        }
        let mut notes = Vec::new();
        if session.mark.is_none() {
            notes.push("no probe: the command is fenced, but what it runs is not observed".to_owned());
        }
        self.pipeline.open_session(Session { plan: Some(plan.clone()), ..session });
        let decided = Fact::Decided {
            session: id.clone(),
            call_id: id.clone(),
            tool: "run".to_owned(),
            class: ToolClass::ShellExec,
            summary: self.pipeline.summary_of(command),
            command_digest: Some(line::digest_of_words(command)),
            cwd: cwd.to_string_lossy().into_owned(),
            decision: Decision { fence: fence.to_owned(), ..self.pipeline.nothing_to_say() },
            file: None,
            time_ns: boottime_ns(),
        };
        if let Err(error) = self.pipeline.records.durably(self.pipeline.joined(decided)) {
            return failed(format!("the session could not be recorded, so nothing was run: {error}"));
        }
        self.runs.borrow_mut().insert(id.clone(), peer.process);
        Answer::RunOpened { session: id, launcher: self.launcher.clone(), plan, notes }
    }

    /// Whether canaries have just proven what the caller, or the policy, requires of a session; else which failed.
    async fn reaches(&self, require: Option<Require>, session: &str) -> Result<(), String> {
        let by_policy = Require::of_policy(self.pipeline.policy.required_layers());
        let Some(require) = require.max(by_policy) else { return Ok(()) };
        self.freshly_proven(FRESH, PROVING).await;
        let gates = self.status().await.gates;
        grade::reached(require, &gates, self.pipeline.plans.refuses_unix(session))?;
        // A gate that is proven holds nothing back where this session's own rules are not in the kernel.
        let failure = self.pipeline.rules.shown(Some(session)).into_iter().find_map(|rules| rules.failure);
        match failure.filter(|_| require > Require::Landlock) {
            Some(failure) => Err(format!("nothing was run: the kernel has no rules for this session: {failure}")),
            None => Ok(()),
        }
    }

    /// The command ended. What it left in the background stays attributed to it; the report shows what is known now.
    pub(super) async fn run_close(&self, peer: &Peer, session: &str, exit_code: i32) -> Answer {
        if self.runs.borrow().get(session) != Some(&peer.process) {
            return refused(Refusal::NotFound, "this session was not opened by the caller".into());
        }
        self.runs.borrow_mut().remove(session);
        tokio::time::sleep(SETTLING).await;
        self.pipeline.keep(Fact::HostResult {
            session: session.to_owned(),
            call_id: session.to_owned(),
            failed: exit_code != 0,
            exit_code: Some(exit_code),
            duration_ms: None,
            file: None,
            time_ns: boottime_ns(),
        });
        self.pipeline.session_ended(session).await;
        self.report(&SessionChoice::Id(session.to_owned())).await
    }
}
