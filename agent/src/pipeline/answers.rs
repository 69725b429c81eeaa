//! What hooks are answered, and what is kept of those that are not listened to.
#![forbid(unsafe_code)]

use super::Pipeline;
use crate::clock::boottime_ns;
use crate::hook::gaps::{self, Taken};
use crate::host::ToolClass;
use crate::host::claude_code::Unreadable;
use crate::ipc::hook::{self, Envelope, Gap, GapCause, Reply, RequestKind};
use crate::ledger::join::Fact;
use crate::policy::Mode;
use crate::policy::judge::{Decision, DecisionSource, Outcome};
use crate::service::callers::NotACaller;
use crate::service::probe_link::ProbeState;

impl Pipeline {
    /// The reply that carries a decision.
    pub(super) fn answer(&self, request: &Envelope, decision: &Decision, class: ToolClass) -> Reply {
        Reply {
            protocol_version: request.protocol_version,
            request_id: request.request_id.clone(),
            decision: decision.outcome,
            reason_code: decision.reason_code.clone(),
            explanation: decision.explanation.clone(),
            finding_id: None,
            decision_source: decision.source,
            coverage_class: class.word().to_owned(),
            execution_observed: match self.probe.state() {
                ProbeState::Connected => "kernel",
                _ => "launcher",
            }
            .to_owned(),
        }
    }

    /// Input that could not be read: denied when it may be an executing or mutating call.
    pub(super) fn unreadable(&self, request: &Envelope, unreadable: &Unreadable) -> Reply {
        let class = match unreadable.claim.fails_closed() {
            true => ToolClass::Unknown,
            false => ToolClass::FileRead,
        };
        let decision = crate::policy::judge::incomplete(&self.policy, class, &unreadable.error.to_string());
        self.metrics.decided(&decision);
        self.records.finding("inspection_incomplete", None, &unreadable.error.to_string());
        self.answer(request, &decision, class)
    }

    /// A request that is not even one.
    pub(super) fn refuse(&self, reason: &str, explanation: &str) -> Reply {
        self.note_refusal(reason);
        hook::refusal_reply("", Outcome::Deny, reason, explanation)
    }

    /// A peer that may not speak here. A launched command that tries is a finding.
    pub(super) fn unwelcome(&self, request: &Envelope, not: NotACaller) -> Option<Reply> {
        self.note_refusal(not.word());
        if matches!(not, NotACaller::Launched | NotACaller::Confined | NotACaller::NotAHook | NotACaller::WrongProgram)
        {
            self.records.finding("forged_request", None, &format!("hook.sock: {not}"));
        }
        let answered = request.request_kind != RequestKind::LaunchNotice;
        answered.then(|| hook::refusal_reply(&request.request_id, Outcome::Deny, not.word(), &not.to_string()))
    }

    /// Decisions that hooks made by themselves, told now or found where they left them. They change nothing.
    pub(super) fn gap(&self, request: &Envelope) -> Reply {
        match serde_json::from_value::<Gap>(request.host_payload.clone()) {
            Ok(gap) => self.note_gap(&gap),
            Err(_) => self.note_refusal("protocol"),
        }
        self.answer(request, &self.nothing_to_say(), ToolClass::Unknown)
    }

    /// Takes over what hooks left while the service was away.
    pub(super) fn take_gaps(&self) {
        match gaps::take(&self.hook_places) {
            Ok(Taken { gaps, unreadable, full }) => {
                gaps.iter().for_each(|gap| self.note_gap(gap));
                if unreadable > 0 || full {
                    let text =
                        format!("records of hooks that decided alone: {unreadable} unreadable, file full: {full}");
                    self.records.finding("service_gap_lost", None, &text);
                }
            }
            Err(error) => tracing::warn!("records of hooks that decided alone cannot be read: {error}"),
        }
    }

    fn note_gap(&self, gap: &Gap) {
        let Gap { cause, event, session, outcome, reason_code, .. } = gap;
        let event = event.as_deref().unwrap_or("an unreadable call");
        let text = format!("a hook decided {event} by itself ({cause:?}): {outcome:?}, {reason_code}");
        self.records.finding("service_gap", session.as_deref(), &text);
        self.decided_alone(gap);
    }

    /// The ledger learns of the call, so that what ran is not taken for unhooked.
    fn decided_alone(&self, gap: &Gap) {
        let Gap { boottime_ns: time_ns, session, call_id, class, command_digest, outcome, reason_code, rules, .. } =
            gap;
        let (Some(session), Some(call_id), Some(class)) = (session, call_id, class) else { return };
        // Whoever is this user can write such a record. One that says that the service was away while it was not is false.
        if gap.cause == GapCause::ServiceDown && *time_ns > self.started_ns {
            return self.records.finding(
                "forged_gap",
                Some(session),
                "a record of a hook that decided alone cannot be true",
            );
        }
        let decision = Decision {
            outcome: *outcome,
            reason_code: reason_code.clone(),
            rules: rules.clone(),
            source: DecisionSource::EmergencyFallback,
            ..self.nothing_to_say()
        };
        self.metrics.decided(&decision);
        self.keep(Fact::Decided {
            session: session.clone(),
            call_id: call_id.clone(),
            tool: class.word().to_owned(),
            class: *class,
            summary: "(decided by the hook alone: only its digest is known)".to_owned(),
            command_digest: command_digest.as_deref().and_then(digest_of_hex),
            cwd: String::new(),
            decision,
            file: None,
            time_ns: *time_ns,
        });
    }

    /// Counts a refused request.
    pub fn note_refusal(&self, reason: &str) {
        self.metrics.requests_refused.with_label_values(&[reason]).inc();
    }

    /// A decision that says nothing.
    pub(crate) fn nothing_to_say(&self) -> Decision {
        Decision {
            outcome: Outcome::NoOverride,
            reason_code: "none".to_owned(),
            explanation: String::new(),
            rules: Vec::new(),
            source: DecisionSource::LocalRule,
            policy: self.policy.hash().to_owned(),
            fence: self.policy.default_fence().to_owned(),
        }
    }

    /// A call that could not be confined does not run.
    pub(super) fn cannot_confine(&self, reason: &str) -> Decision {
        Decision {
            outcome: Outcome::Deny,
            reason_code: "cannot_confine".to_owned(),
            explanation: format!("Ringfence could not prepare the fence for this command: {reason}"),
            source: DecisionSource::Fallback,
            ..self.nothing_to_say()
        }
    }

    /// The mode in force.
    pub fn mode(&self) -> Mode {
        self.policy.mode()
    }

    /// Everything that entered the pipeline is answered, or `patience` is over.
    pub async fn idle(&self, patience: std::time::Duration) {
        let until = boottime_ns() + u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        while self.metrics.queue_depth.with_label_values(&["hook"]).get() > 0 && boottime_ns() < until {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

fn digest_of_hex(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0u8; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(digest)
}
