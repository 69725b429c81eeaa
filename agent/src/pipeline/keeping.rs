//! Into the join, and what comes out of it into the records; and what is let go when a tree has ended.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::rc::Rc;

use super::Pipeline;
use super::attendance::lives;
use crate::clock::{boottime_ns, realtime_ms};
use crate::fence::Fences;
use crate::host::{HostEvent, HostEventKind};
use crate::ledger::join::{Change, Fact, Joiner, JoinerConfig};
use crate::ledger::{Clock, Patterns};
use crate::places::Places;
use crate::policy::judge::World;
use crate::policy::{Policy, redact};
use crate::service::ServiceError;
use crate::service::attribution::{ByPlan, Own};
use crate::service::callers::{Caller, Callers};
use crate::service::metrics::Metrics;
use crate::service::options::ServicePlaces;
use crate::service::plans::Plans;
use crate::service::probe_link::{ProbeLink, ProbeState};
use crate::service::records::Records;
use crate::service::sessions::Session;
use crate::store::Retention;

impl Pipeline {
    /// A pipeline at these places, with an empty ledger.
    pub fn new(policy: Policy, fences: Fences, places: &ServicePlaces) -> Result<Pipeline, ServiceError> {
        let probe = Rc::new(ProbeLink::new(places.probe_socket.clone()));
        let required = policy.required_layers().map(str::to_owned).collect();
        let plans = Plans::new(fences, required, places, Rc::clone(&probe));
        let metrics = Metrics::new();
        let clock = Clock { boot_unix_ns: (realtime_ms() as i64) * 1_000_000 - boottime_ns() as i64 };
        let patterns = Patterns::shipped().map_err(|error| ServiceError::Policy(error.to_string()))?;
        let rules = plans.rules(places);
        let own = Own {
            directories: vec![places.state_dir.clone(), places.runtime_dir.clone()],
            sockets: vec![places.probe_socket.clone()],
        };
        let attribution =
            Box::new(ByPlan { known: plans.known(), metrics: metrics.clone(), own, labels: rules.labels() });
        let days = policy.retention();
        let retention = Retention { event_days: days.events_days, finding_days: days.findings_days };
        let joiner = Joiner::new(JoinerConfig { clock, patterns, attribution, redact: words });
        Ok(Pipeline {
            world: World {
                home: places.home.clone(),
                user: crate::places::person().map(|person| person.name).unwrap_or_default(),
                runtime_dir: places.runtime_dir.clone(),
                tree: None,
                file_system: true,
            },
            callers: Callers::new(places.hook.clone(), places.launcher.clone(), Rc::clone(&probe)),
            hook_places: Places {
                runtime_dir: places.runtime_dir.clone(),
                plan_directories: Vec::new(),
                landlock_abi_cap: None,
            },
            sessions: RefCell::default(),
            lingering: RefCell::default(),
            records: Records::open(&places.database(), retention, clock, metrics.clone()),
            joiner: RefCell::new(joiner),
            canaries: RefCell::default(),
            proof: RefCell::default(),
            prove_soon: tokio::sync::Notify::new(),
            lost: RefCell::default(),
            attending: tokio::sync::Mutex::default(),
            started_ns: boottime_ns(),
            policy,
            rules,
            plans,
            probe,
            metrics,
        })
    }

    /// What a fact changes.
    pub(crate) fn joined(&self, fact: Fact) -> Vec<Change> {
        self.joiner.borrow_mut().take(fact)
    }

    /// Into the join, and what comes out of it soon into the records.
    pub(crate) fn keep(&self, fact: Fact) {
        self.records.eventually(self.joined(fact));
    }

    /// Into the join, and what comes out of it into the records before this returns. A database that fails is no reason
    /// to let a call through or to stop all work: the decision stands, and the status says that it is not kept.
    pub(super) fn keep_durably(&self, fact: Fact) {
        if let Err(error) = self.records.durably(self.joined(fact)) {
            tracing::error!("a decision was not recorded: {error}");
        }
    }

    /// That a hook event happened, without its content; decisions and results are in the ledger.
    pub(super) fn note_event(&self, event: &HostEvent) {
        let detail = |text: &str| redact::summary(text, &self.world.home);
        let (kind, detail) = match &event.kind {
            HostEventKind::SessionStart { source } => ("session_start", detail(source)),
            HostEventKind::SessionEnd { reason } => ("session_end", detail(reason)),
            HostEventKind::Prompt { .. } => ("prompt", String::new()),
            HostEventKind::SubagentStart { agent_type, .. } => ("subagent_start", detail(agent_type)),
            HostEventKind::SubagentStop { .. } => ("subagent_stop", String::new()),
            HostEventKind::ConfigChange { source, .. } => ("config_change", detail(source)),
            HostEventKind::CwdChanged { to, .. } => ("cwd_changed", detail(to)),
            HostEventKind::ToolCall(_) | HostEventKind::ToolDone { .. } | HostEventKind::ToolFailed { .. } => return,
        };
        self.records.event(&event.session, kind, detail);
    }

    /// Without a mark, a launch belongs to the session of its host; `run` makes the launcher itself the host.
    pub(super) fn session_of_launch(&self, caller: &Caller) -> Option<String> {
        let sessions = self.sessions.borrow();
        let by_host = caller.host.and_then(|host| sessions.of_host(host));
        sessions.of_host(caller.process).or(by_host).map(|session| session.id.clone())
    }

    /// The kernel's counters of every session whose tree may live.
    pub(super) async fn count_losses(&self) {
        let lingering = self.lingering.borrow().clone();
        let open: Vec<Session> = self.sessions.borrow().iter().cloned().collect();
        for session in open.iter().chain(&lingering) {
            self.count_losses_of(session).await;
            if self.probe.state() != ProbeState::Connected {
                return; // each further question would wait as long
            }
        }
    }

    pub(super) async fn count_losses_of(&self, session: &Session) {
        if let Some(mark) = session.mark
            && let Some(counters) = self.probe.counters(mark).await
        {
            let before = self.lost.borrow_mut().insert(mark, counters.lost).unwrap_or(0);
            self.metrics.lost.inc_by(counters.lost.saturating_sub(before));
            self.keep(Fact::Counted { session: session.id.clone(), counters });
        }
    }

    /// Sessions that are over are forgotten by the probe, and their plans removed, once nothing of their tree lives.
    pub(super) async fn let_go(&self) {
        let still_there =
            |session: &Session| session.host_process.is_some_and(lives) || self.joiner.borrow().lives(&session.id);
        let (still, over): (Vec<Session>, Vec<Session>) = self.lingering.take().into_iter().partition(still_there);
        self.lingering.borrow_mut().extend(still);
        for session in over {
            if let Some(mark) = session.mark {
                self.probe.close_session(mark).await;
                self.rules.forget(mark);
                self.lost.borrow_mut().remove(&mark);
            }
            self.plans.withdraw(&session).await;
        }
    }

    /// The stream of observations is there; what happened before it is not known.
    pub(crate) fn observation_resumed(&self) {
        tracing::info!("the kernel is observed");
        self.rules.distrust();
    }

    /// The stream ended: every open session has a gap.
    pub(crate) fn observation_stopped(&self) {
        let open: Vec<String> = self.sessions.borrow().iter().map(|session| session.id.clone()).collect();
        for session in open {
            let text = "the probe stopped: what ran from here until it is back was not observed";
            self.records.finding("observation_gap", Some(&session), text);
        }
    }

    /// The kernel does not refuse what it should to a session's processes, or by rules that are not up to date.
    pub(crate) fn rules_failed(&self, session: &str, reason: &str) {
        tracing::error!("rules of session {session}: {reason}");
        let text = format!("the kernel's rules for this session could not be brought up to date: {reason}");
        self.records.finding("rules_not_set", Some(session), &text);
    }

    /// What may be shown of a command's words.
    pub(crate) fn summary_of(&self, command: &[String]) -> String {
        redact::summary(&command.join(" "), &self.world.home)
    }
}

/// What may be kept of a program's arguments.
fn words(arguments: &[&[u8]]) -> String {
    static HOME: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    let home = HOME.get_or_init(|| crate::places::home().unwrap_or_default());
    let text: Vec<_> = arguments.iter().map(|word| String::from_utf8_lossy(word)).collect();
    redact::summary(&text.join(" "), home)
}
