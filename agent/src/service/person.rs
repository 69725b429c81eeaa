//! What the service does for a person: shows, opens sessions for `run`, and changes things when somebody is there.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::canary::gates::SECURITY_MODULES;
use super::control_server::refused;
use super::health::{self, Status};
use super::probe_link::ProbeState;
use crate::ipc::control::{Answer, Ask, Change, Refusal, SessionChoice};
use crate::ipc::peer::Peer;
use crate::ledger::entry::{Coverage, Report};
use crate::pipeline::Pipeline;
use crate::review::presence::{Presence, PresenceError, Proof as Presented};

/// A proof that is younger is shown as it is.
pub(super) const FRESH: Duration = Duration::from_secs(5);
/// How long `status` waits for a new one.
const PROVING: Duration = Duration::from_secs(2);

/// The person's side of a service.
pub struct Person {
    pub(crate) pipeline: Rc<Pipeline>,
    pub(crate) presence: Presence,
    /// The installed programs.
    pub(crate) ringfence: PathBuf,
    pub(crate) launcher: PathBuf,
    pub(crate) metrics_address: Option<String>,
    /// `run` sessions that are open, with the process that opened each.
    pub(crate) runs: RefCell<HashMap<String, crate::process::ProcessId>>,
}

impl Person {
    /// Answers one request of one peer.
    pub async fn answer(&self, ask: Ask, peer: &Peer) -> Answer {
        if let Err(answer) = self.is_a_person(peer).await {
            return answer;
        }
        match ask {
            Ask::Status => {
                self.freshly_proven(FRESH, PROVING).await;
                json(&self.status().await)
            }
            Ask::Report { session } => self.report(&session).await,
            Ask::Sessions { limit } => json_or_failed(self.pipeline.records.sessions(limit)),
            Ask::Findings { limit } => json_or_failed(self.pipeline.records.findings(limit)),
            Ask::Rules { session } => match self.pipeline.rules.shown(session.as_deref()) {
                none if none.is_empty() && session.is_some() => {
                    refused(Refusal::NotFound, "no tree of such a session is open, or no probe runs".to_owned())
                }
                shown => json(&shown),
            },
            Ask::RunOpen { child, fence, command, cwd, require } => {
                self.run_open(peer, child, (&fence, require), &command, cwd).await
            }
            Ask::RunClose { session, exit_code } => self.run_close(peer, &session, exit_code).await,
            Ask::Change { change, passphrase } => self.change(peer, change, passphrase.as_deref()).await,
        }
    }

    /// Same uid and outside every tree. A probe that is installed but silent cannot say so: refused.
    async fn is_a_person(&self, peer: &Peer) -> Result<(), Answer> {
        let agent = |reason: &str| Err(refused(Refusal::AgentPeer, reason.to_owned()));
        if peer.uid != nix::unistd::Uid::current().as_raw() {
            return agent("this service belongs to another user");
        }
        match (self.pipeline.probe.mark_of(peer.process).await, self.pipeline.probe.state()) {
            (Some(None), _) => self.is_unconfined(peer),
            (Some(Some(_)), _) => agent("a process of an agent's session may not use the control socket"),
            (None, ProbeState::Absent) => self.is_unconfined(peer),
            (None, _) => agent("the probe does not answer, so it cannot be told whether an agent is asking"),
        }
    }

    /// Every fenced process is confined for life, also one of a session that has no mark.
    fn is_unconfined(&self, peer: &Peer) -> Result<(), Answer> {
        match peer.restrictions() {
            Ok(restrictions) if !restrictions.confined() => Ok(()),
            Ok(_) => Err(refused(Refusal::AgentPeer, "a confined process may not use the control socket".to_owned())),
            Err(error) => Err(refused(Refusal::AgentPeer, error.to_string())),
        }
    }

    /// Waits until the last proof is younger than `age`, at most so long as `patience`.
    pub(super) async fn freshly_proven(&self, age: Duration, patience: Duration) {
        let fresh = || self.pipeline.proof.borrow().made.is_some_and(|made| made.elapsed() < age);
        if fresh() {
            return;
        }
        self.pipeline.prove_soon.notify_one();
        let asked = Instant::now();
        while !fresh() && asked.elapsed() < patience {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What is enforced and proven now.
    pub async fn status(&self) -> Status {
        let programs = self.pipeline.probe.status().await;
        let probe = self.pipeline.probe.state();
        let proof = self.pipeline.proof.borrow().still();
        let layers = health::layers(&proof, &probe, programs.as_ref());
        let gates = health::gates(&proof, &probe);
        self.pipeline.metrics.gates(&layers, &gates);
        let programs_missing =
            programs.map(|(all, _)| all.into_iter().filter(|p| !p.attached && p.program != SECURITY_MODULES).collect());
        let programs_missing = programs_missing.unwrap_or_default();
        Status {
            ringfence: env!("CARGO_PKG_VERSION").to_owned(),
            layers,
            limits: health::limits(&gates),
            gates,
            mode: self.pipeline.mode().word().to_owned(),
            policy: self.pipeline.policy.hash().to_owned(),
            sessions: self.pipeline.sessions.borrow().len(),
            hook_identity: match probe {
                ProbeState::Connected => "by mark",
                _ => "by /proc",
            }
            .to_owned(),
            approval: match probe {
                ProbeState::Connected => self.presence.describe().to_owned(),
                _ => {
                    format!("{}; not protected from an unfenced child of the host (no probe)", self.presence.describe())
                }
            },
            store: self.pipeline.records.state(),
            metrics: self.metrics_address.clone(),
            programs_missing,
        }
    }

    /// The report of one session, as it is recorded by now.
    pub(super) async fn report(&self, choice: &SessionChoice) -> Answer {
        let Status { layers, gates, .. } = self.status().await;
        let records = &self.pipeline.records;
        let found = match choice {
            SessionChoice::Last { cwd } => records.last(cwd),
            SessionChoice::Id(id) => records.named(id),
        };
        let session = found.and_then(|id| records.session(&id));
        json_or_failed(session.map(|session| Report::new(Coverage { layers, gates }, vec![session])))
    }

    async fn change(&self, peer: &Peer, change: Change, passphrase: Option<&str>) -> Answer {
        if !self.is_installed_cli(peer) {
            return refused(Refusal::WrongProgram, "changes are made with the installed `ringfence` only".into());
        }
        let proven = match &change {
            Change::SetPassphrase { new } => {
                // The first one proves nothing: it is taken only while nothing that could type it for an agent is about.
                let may_be_first =
                    self.pipeline.sessions.borrow().is_empty() || self.pipeline.probe.state() == ProbeState::Connected;
                self.presence.set_passphrase(peer.process, passphrase, new, may_be_first).await
            }
            _ => self.presence.prove(peer.process, passphrase).await,
        };
        let proof = match proven {
            Ok(proof) => proof,
            Err(error) => {
                let kind = match error {
                    PresenceError::PassphraseNeeded => Refusal::PassphraseNeeded,
                    _ => Refusal::NoPresence,
                };
                self.pipeline.records.audit("change_refused", change.name(), &error.to_string());
                return refused(kind, error.to_string());
            }
        };
        let made = match &change {
            Change::Retention { event_days, finding_days } => self
                .pipeline
                .records
                .set_retention(*event_days, *finding_days)
                .map(|()| format!("events are kept {event_days} days, findings {finding_days} days")),
            Change::ClearHistory => self.pipeline.records.clear().map(|()| "history is forgotten".to_owned()),
            Change::SetPassphrase { .. } => Ok("the passphrase is set".to_owned()),
        };
        let by = match proof {
            Presented::Polkit => "polkit",
            Presented::Passphrase => "passphrase",
            Presented::FirstPassphrase => "first passphrase",
        };
        match made {
            Ok(message) => {
                self.pipeline.records.audit("change", change.name(), by);
                Answer::Done { message }
            }
            Err(reason) => refused(Refusal::Failed, reason),
        }
    }

    fn is_installed_cli(&self, peer: &Peer) -> bool {
        use std::os::unix::fs::MetadataExt;
        let (Ok(program), Ok(installed)) = (peer.executable(), std::fs::metadata(&self.ringfence)) else {
            return false;
        };
        (program.device, program.inode) == (installed.dev(), installed.ino())
    }
}

pub(crate) fn json(value: &impl serde::Serialize) -> Answer {
    match serde_json::to_value(value) {
        Ok(value) => Answer::Json(value),
        Err(error) => refused(Refusal::Failed, error.to_string()),
    }
}

pub(crate) fn json_or_failed<T: serde::Serialize>(value: Result<T, String>) -> Answer {
    match value {
        Ok(value) => json(&value),
        Err(reason) => refused(Refusal::Failed, reason),
    }
}
