//! What is enforced and proven now, layer by layer: what `status` shows, reports carry and metrics count.
#![forbid(unsafe_code)]

use std::fmt;

use serde::{Deserialize, Serialize};

use super::canary::Seen;
use super::probe_link::ProbeState;
use crate::ledger::entry::{LayerState, State};
use crate::probe::protocol::ProgramState;

/// Everything that `ringfence status` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The service's version.
    pub ringfence: String,
    /// Layer by layer.
    pub layers: Vec<LayerState>,
    /// The mode.
    pub mode: String,
    /// The policy's hash.
    pub policy: String,
    /// Open sessions.
    pub sessions: usize,
    /// How a hook is told from a fenced command: `by mark` or `by /proc`.
    pub hook_identity: String,
    /// What protects changes on the control socket.
    pub approval: String,
    /// State of the database: `ok`, or what is wrong.
    pub store: String,
    /// Where metrics are served, if they are.
    pub metrics: Option<String>,
    /// Kernel programs that are not attached, with the reason.
    pub programs_missing: Vec<ProgramState>,
}

/// What the last canary launch proved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// When, RFC 3339.
    pub at: Option<String>,
    /// The same moment, to tell its age.
    pub made: Option<std::time::Instant>,
    /// A write outside the fence left no file; otherwise the reason.
    pub landlock: Option<Result<u32, String>>,
    /// A refused system call answered with its errno; otherwise why not.
    pub seccomp: Option<Result<(), String>>,
    /// What the kernel showed of a canary in a marked tree; `None` when none was run.
    pub seen: Option<Seen>,
}

/// The reason that the probe gives for a program which is attached only when it is needed.
const ON_DEMAND: &str = "attached only while a launch may live";

impl Proof {
    /// Older than this it proves nothing of now.
    const FRESH: std::time::Duration = std::time::Duration::from_secs(180);

    /// The proof as far as it still holds.
    pub fn still(&self) -> Proof {
        match self.made {
            Some(made) if made.elapsed() < Proof::FRESH => self.clone(),
            _ => Proof::default(),
        }
    }
}

/// The layers, from what is known.
pub fn layers(proof: &Proof, probe: &ProbeState, programs: Option<&(Vec<ProgramState>, bool)>) -> Vec<LayerState> {
    let layer = |layer: &str, state, reason: String, proven: bool| LayerState {
        layer: layer.to_owned(),
        state,
        reason,
        proven_at: proof.at.clone().filter(|_| proven),
    };
    let unproven = || "not proven yet: the canary has not run".to_owned();
    let mut all = vec![
        match &proof.landlock {
            Some(Ok(abi)) => layer(
                "landlock",
                State::Enforced,
                format!("ABI {abi}: a canary's write outside its fence left no file"),
                true,
            ),
            Some(Err(reason)) => layer("landlock", State::Absent, reason.clone(), false),
            None => layer("landlock", State::Degraded, unproven(), false),
        },
        match &proof.seccomp {
            Some(Ok(())) => layer("seccomp", State::Enforced, "a canary's personality() was refused".to_owned(), true),
            Some(Err(reason)) => layer("seccomp", State::Absent, reason.clone(), false),
            None => layer("seccomp", State::Degraded, unproven(), false),
        },
        layer("bpf_lsm", State::Absent, "this version loads no LSM program".to_owned(), false),
    ];
    let no_probe = match probe {
        ProbeState::Absent => Some("no probe".to_owned()),
        ProbeState::Silent(reason) => Some(format!("the probe does not answer: {reason}")),
        ProbeState::Connected => None,
    };
    match (no_probe, programs) {
        (None, Some((programs, refusals))) => {
            let Seen { exec, connect, refusal } = proof.seen.unwrap_or_default();
            let sockets = match connect {
                true => "a canary's connect was seen; refuses nothing in this version",
                false => "no canary's connect was seen",
            };
            all.push(layer("cgroup", State::Degraded, sockets.to_owned(), connect));
            let missing: Vec<&str> = programs
                .iter()
                .filter(|p| !p.attached && p.reason.as_deref() != Some(ON_DEMAND))
                .map(|p| p.program.as_str())
                .collect();
            let (state, reason) = match (exec && connect, missing.as_slice()) {
                (true, []) => (State::Enforced, "fork, exec, exit and connects of every session's tree".to_owned()),
                (true, missing) => (State::Degraded, format!("not attached: {}", missing.join(", "))),
                (false, _) => (State::Degraded, unproven()),
            };
            all.push(layer("observation", state, reason, exec && connect));
            let on = match refusals {
                true => "watched now",
                false => "off until a launch is expected, to spare every process the cost",
            };
            let reason = format!("refused system calls, seen at their exit and told apart by plan and errno; {on}");
            all.push(layer("refusals", State::Degraded, reason, refusal));
        }
        (reason, _) => {
            let reason = reason.unwrap_or_else(|| "the probe does not answer".to_owned());
            for name in ["cgroup", "observation", "refusals"] {
                all.push(layer(name, State::Absent, reason.clone(), false));
            }
        }
    }
    all
}

/// The word for a state in text and metrics.
pub fn word(state: State) -> &'static str {
    match state {
        State::Enforced => "enforced",
        State::Degraded => "degraded",
        State::Absent => "absent",
    }
}

impl fmt::Display for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status {
            ringfence,
            layers,
            mode,
            policy,
            sessions,
            hook_identity,
            approval,
            store,
            metrics,
            programs_missing,
        } = self;
        writeln!(out, "ringfence {ringfence} · mode {mode} · {sessions} open sessions · policy {policy}")?;
        for LayerState { layer, state, reason, proven_at } in layers {
            let proven = proven_at.as_ref().map(|at| format!(" (proven {at})")).unwrap_or_default();
            writeln!(out, "  {layer:<12} {:<9} {reason}{proven}", word(*state))?;
        }
        writeln!(
            out,
            "  hooks are recognised {hook_identity} · changes are protected by: {approval} · history: {store}"
        )?;
        if let Some(metrics) = metrics {
            writeln!(out, "  metrics on {metrics}")?;
        }
        for ProgramState { program, attached: _, reason } in programs_missing {
            writeln!(out, "  {program} is not attached: {}", reason.as_deref().unwrap_or("no reason given"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_enforced_without_proof() {
        let all = layers(&Proof::default(), &ProbeState::Absent, None);
        assert!(all.iter().all(|l| l.state != State::Enforced && l.proven_at.is_none()), "{all:?}");
        let observation = all.iter().find(|l| l.layer == "observation").unwrap();
        assert_eq!((observation.state, observation.reason.as_str()), (State::Absent, "no probe"));
    }

    #[test]
    fn a_program_that_did_not_attach_degrades_observation() {
        let one = ProgramState { program: "connect_unix".into(), attached: false, reason: Some("needs 6.7".into()) };
        let seen = Some(Seen { exec: true, connect: true, refusal: true });
        let proof = Proof { at: Some("2026-01-01T00:00:00Z".into()), seen, ..Proof::default() };
        let all = layers(&proof, &ProbeState::Connected, Some(&(vec![one], false)));
        let observation = all.iter().find(|l| l.layer == "observation").unwrap();
        assert_eq!(observation.state, State::Degraded);
        assert!(observation.reason.contains("connect_unix"));
    }
}
