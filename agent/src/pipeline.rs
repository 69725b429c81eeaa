//! The way of one tool call, from the host's hook to the ledger. Read this first.
//!
//! ```text
//! host ──hook JSON──> ringfence-hook ──frame──> hook_frame: recognise → decode → judge → confine → record → answer
//!   │                     └──deny / nothing──> host                                   │ plan published before the answer
//!   └─spawns─> ringfence-exec ──notice──────────> launched ───────────────────────────┤
//! (plan file)      └─Landlock+seccomp─> command ─fork/exec/connect─> kernel ─probe─> observed ──> join → ledger → store
//! ```
//!
//! Each step is a room of its own; this page only says in which order they are entered. Nothing here is kept raw:
//! the host's input lives until the decision is made; what is stored is redacted by `policy` and folded by `ledger`.
#![forbid(unsafe_code)]

mod answers;
mod attendance;
mod keeping;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::clock::boottime_ns;
use crate::fence::receipt::LaunchNotice;
use crate::host::{HostEvent, HostEventKind, HostKind, ToolUse, claude_code};
use crate::ipc::hook::{self, Envelope, Reply, RequestKind};
use crate::ledger::join::{Fact, Joiner};
use crate::places::Places;
use crate::policy::Policy;
use crate::policy::judge::{Outcome, Question, Reviews, World};
use crate::probe::protocol::Observation;
use crate::service::callers::{Arrival, Caller, Callers};
use crate::service::canary::Seen;
use crate::service::files;
use crate::service::health::Proof;
use crate::service::metrics::Metrics;
use crate::service::plans::Plans;
use crate::service::probe_link::ProbeLink;
use crate::service::records::Records;
use crate::service::rules::SessionRules;
use crate::service::sessions::{Session, Sessions};

/// Everything a tool call passes through. One per service, on one thread: nothing is borrowed over an await.
pub struct Pipeline {
    pub(crate) policy: Policy,
    pub(crate) world: World,
    pub(crate) callers: Callers,
    pub(crate) sessions: RefCell<Sessions>,
    /// Sessions that are over, while something of their tree may still live.
    pub(crate) lingering: RefCell<Vec<Session>>,
    /// Where hooks leave what they decided alone.
    pub(crate) hook_places: Places,
    pub(crate) plans: Plans,
    pub(crate) rules: SessionRules,
    pub(crate) probe: Rc<ProbeLink>,
    pub(crate) joiner: RefCell<Joiner>,
    /// By session number: what the kernel showed of canaries, which are outside the ledger and its counts.
    pub(crate) canaries: RefCell<HashMap<u64, Seen>>,
    /// What canaries proved last.
    pub(crate) proof: RefCell<Proof>,
    /// Told when it should be proven anew.
    pub(crate) prove_soon: tokio::sync::Notify,
    /// By session number: how many events the kernel had counted as lost.
    pub(crate) lost: RefCell<HashMap<u64, u64>>,
    /// Held while a session is met.
    pub(crate) attending: tokio::sync::Mutex<()>,
    /// When this service started, nanoseconds of CLOCK_BOOTTIME.
    pub(crate) started_ns: u64,
    pub(crate) records: Records,
    pub(crate) metrics: Metrics,
}

impl Pipeline {
    /// One frame on `hook.sock`. `None` is a frame that is not answered.
    pub async fn hook_frame(&self, frame: &[u8], arrival: &Arrival) -> Option<Reply> {
        let request = match hook::decode_request(frame) {
            Ok(request) => request,
            Err(error) => return Some(self.refuse("protocol", &error.to_string())),
        };
        let caller = match self.callers.recognise(arrival, &request).await {
            Ok(caller) => caller,
            Err(not) => return self.unwelcome(&request, not),
        };
        match request.request_kind {
            RequestKind::HookEvent => Some(self.hook_event(&request, &caller).await),
            RequestKind::Gap => Some(self.gap(&request)),
            RequestKind::LaunchNotice => {
                self.launched(&request, &caller);
                None
            }
        }
    }

    /// A hook call: decoded, its session found, then taken to the step that its event needs.
    async fn hook_event(&self, request: &Envelope, caller: &Caller) -> Reply {
        let event = match claude_code::decode_value(&request.host_payload) {
            Ok(event) => event,
            Err(unreadable) => return self.unreadable(request, &unreadable),
        };
        self.attend(&event, caller).await;
        self.note_event(&event);
        match &event.kind {
            HostEventKind::ToolCall(call) => return self.tool_call(&event, call, request).await,
            HostEventKind::ToolDone { call, duration_ms } => self.tool_ended(&event, call, None, *duration_ms).await,
            HostEventKind::ToolFailed { call, exit_code, interrupted: _, duration_ms } => {
                self.tool_ended(&event, call, Some(*exit_code), *duration_ms).await;
            }
            HostEventKind::Prompt { text } => self.prompted(&event.session, text),
            HostEventKind::SessionEnd { .. } => self.session_ended(&event.session).await,
            // Told so that the session is known; a change of settings was judged by the hook itself.
            HostEventKind::SessionStart { .. }
            | HostEventKind::SubagentStart { .. }
            | HostEventKind::SubagentStop { .. }
            | HostEventKind::ConfigChange { .. }
            | HostEventKind::CwdChanged { .. } => {}
        }
        self.answer(request, &self.nothing_to_say(), crate::host::ToolClass::Unknown)
    }

    /// The step that decides. The order is the promise: judged, confined, recorded, and only then answered.
    async fn tool_call(&self, event: &HostEvent, call: &ToolUse, request: &Envelope) -> Reply {
        let (world, task) = self.surroundings(&event.session);
        let question =
            Question { host: HostKind::ClaudeCode, call, cwd: &event.cwd, task: task.as_deref(), world: &world };
        let (mut decision, judged) = self.policy.judge(&question).decide(&self.policy, Reviews::Unavailable);
        if decision.outcome == Outcome::NoOverride
            && judged.class.executes_or_mutates()
            && let Err(reason) = self.confine(&event.session).await
        {
            decision = self.cannot_confine(&reason);
        }
        let decided = Fact::Decided {
            session: event.session.clone(),
            call_id: call.call_id.clone(),
            tool: call.tool.clone(),
            class: judged.class,
            summary: judged.summary,
            command_digest: judged.command_digest,
            cwd: event.cwd.clone(),
            decision: decision.clone(),
            file: files::state_of_target(call).await,
            time_ns: boottime_ns(),
        };
        self.metrics.decided(&decision);
        self.keep_durably(decided);
        self.answer(request, &decision, judged.class)
    }

    /// A command may start once this returns: its plan is on disk, and refusals of system calls are being watched.
    async fn confine(&self, session: &str) -> Result<(), String> {
        let Some(open) = self.sessions.borrow().get(session).cloned() else {
            return Err("its session is not known".to_owned());
        };
        if let Some(mark) = open.mark {
            self.probe.expect_launch(mark).await;
            self.rules.look_soon();
            if let Some(reason) = self.rules.missing(mark) {
                return Err(format!("the kernel's rules for it are not set: {reason}"));
            }
        }
        if open.plan.is_none() {
            let fence = self.policy.default_fence();
            let plan = self.plans.publish(&open, fence, self.policy.hash()).await.map_err(|error| error.to_string())?;
            if let Some(open) = self.sessions.borrow_mut().get_mut(session) {
                open.plan = Some(plan);
            }
        }
        Ok(())
    }

    /// A launcher tells what it put on, over a socket that it connected before the fence closed.
    fn launched(&self, request: &Envelope, caller: &Caller) {
        let notice = match serde_json::from_value::<LaunchNotice>(request.host_payload.clone()) {
            Ok(notice) if notice.process == caller.process => notice,
            Ok(_) => return self.note_refusal("notice_of_another_process"),
            Err(_) => return self.note_refusal("protocol"),
        };
        self.metrics.launched(&notice.receipt);
        let session = self.session_of_launch(caller);
        let mark = caller.mark.map(|mark| (mark.session, mark.launch));
        self.keep(Fact::Launched { notice, mark, session, time_ns: boottime_ns() });
    }

    /// What the kernel saw, in the order of its ring buffers.
    pub fn observed(&self, batch: Vec<Observation>) {
        for observation in batch {
            if let Some(seen) = self.canaries.borrow_mut().get_mut(&observation.mark.session) {
                seen.note(&observation.kind);
                continue;
            }
            self.metrics.observations.with_label_values(&[observation.kind.name()]).inc();
            self.keep(Fact::Observed(observation));
        }
    }

    /// The host says how a call ended; `failed` holds the exit code when it failed and the host says one.
    async fn tool_ended(
        &self,
        event: &HostEvent,
        call: &ToolUse,
        failed: Option<Option<i32>>,
        duration_ms: Option<u64>,
    ) {
        self.keep(Fact::HostResult {
            session: event.session.clone(),
            call_id: call.call_id.clone(),
            failed: failed.is_some(),
            exit_code: failed.flatten(),
            duration_ms,
            file: files::state_of_target(call).await,
            time_ns: boottime_ns(),
        });
    }

    /// Time passes: windows close, hosts that ended take their sessions with them, losses are counted.
    pub async fn tick(&self) {
        let ended = self.sessions.borrow().ended();
        for session in ended {
            self.session_ended(&session).await;
        }
        self.take_gaps();
        self.count_losses().await;
        self.let_go().await;
        self.keep(Fact::Tick { time_ns: boottime_ns() });
        self.metrics.sessions.set(self.sessions.borrow().len() as i64);
    }
}
