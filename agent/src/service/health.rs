//! What is enforced and proven now, layer by layer: what `status` shows, reports carry and metrics count.
#![forbid(unsafe_code)]

use std::fmt;

use serde::{Deserialize, Serialize};

use super::canary::{self, Seen};
use super::probe_link::ProbeState;
use crate::ledger::entry::{GateState, LayerState, State};
use crate::probe::protocol::ProgramState;

/// Everything that `ringfence status` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The service's version.
    pub ringfence: String,
    /// Layer by layer.
    pub layers: Vec<LayerState>,
    /// Gate by gate: what the last canary proved.
    pub gates: Vec<GateState>,
    /// What this machine's layers cannot do.
    pub limits: Vec<String>,
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
    /// What was proven of the kernel's gates; empty when nothing was tried.
    pub gates: Vec<GateState>,
}

/// Programs that observe.
const OBSERVING: [&str; 11] = [
    "rf_fork",
    "rf_exit",
    "rf_exec",
    "rf_sys_exit",
    "rf_enrol",
    "rf_connect4",
    "rf_connect6",
    "rf_sendmsg4",
    "rf_sendmsg6",
    "rf_connect_unix",
    "rf_sendmsg_unix",
];

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
    ];
    all.push(lsm(proof, programs.map_or(&[], |(programs, _)| programs)));
    let no_probe = match probe {
        ProbeState::Absent => Some("no probe".to_owned()),
        ProbeState::Silent(reason) => Some(format!("the probe does not answer: {reason}")),
        ProbeState::Connected => None,
    };
    match (no_probe, programs) {
        (None, Some((programs, refusals))) => {
            let (exec, connect, refusal) =
                proof.seen.as_ref().map_or((false, false, false), |seen| (seen.exec, seen.connect, seen.refusal));
            let (state, sockets, proven) = cgroup(proof, connect);
            all.push(layer("cgroup", state, sockets, proven));
            let missing: Vec<&str> = programs
                .iter()
                .filter(|p| !p.attached && p.reason.as_deref() != Some(ON_DEMAND))
                .map(|p| p.program.as_str())
                .filter(|program| OBSERVING.contains(program) || program.starts_with("role "))
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

/// BPF LSM, summed up from its gates.
fn lsm(proof: &Proof, programs: &[ProgramState]) -> LayerState {
    let by_lsm = |gate: &&GateState| gate.layer == "bpf_lsm" && gate.state == State::Enforced;
    let held = proof.gates.iter().filter(by_lsm).count();
    let open: Vec<&GateState> = proof.gates.iter().filter(|gate| !by_lsm(gate)).collect();
    let (state, reason) = match (held, open.as_slice()) {
        (0, []) => (State::Absent, "not proven: no canary has tried the kernel's gates".to_owned()),
        (0, open) => {
            let alone = || open.iter().find(|gate| gate.layer == "bpf_lsm").map(|gate| gate.reason.clone());
            (State::Absent, canary::gates::why_no_lsm(programs).or_else(alone).unwrap_or_default())
        }
        (_, []) => (State::Enforced, format!("a canary was refused at each of {held} gates")),
        (_, open) => {
            let names: Vec<&str> = open.iter().map(|gate| gate.gate.as_str()).collect();
            (State::Degraded, format!("a canary was refused at {held} gates, and not at: {}", names.join(", ")))
        }
    };
    LayerState { layer: "bpf_lsm".to_owned(), state, reason, proven_at: proof.at.clone().filter(|_| held > 0) }
}

/// The cgroup programs, summed up from their gates.
fn cgroup(proof: &Proof, connect_seen: bool) -> (State, String, bool) {
    let mine: Vec<&GateState> = proof.gates.iter().filter(|gate| gate.layer == "cgroup").collect();
    let (held, open): (Vec<&GateState>, Vec<&GateState>) =
        mine.into_iter().partition(|gate| gate.state == State::Enforced);
    let names = |gates: &[&GateState]| gates.iter().map(|gate| gate.gate.as_str()).collect::<Vec<_>>().join(", ");
    match (held.as_slice(), open.as_slice()) {
        ([], []) if connect_seen => {
            (State::Degraded, "a canary's connect was seen; LSM programs refuse before it is asked".to_owned(), true)
        }
        ([], _) => (State::Degraded, "no canary was refused by it".to_owned(), connect_seen),
        (held, []) => (State::Enforced, format!("a canary was refused: {}", names(held)), true),
        (held, open) => {
            (State::Degraded, format!("a canary was refused: {}; and not: {}", names(held), names(open)), true)
        }
    }
}

/// Gate by gate: the two of the launcher, and those of the kernel programs.
pub fn gates(proof: &Proof, probe: &ProbeState) -> Vec<GateState> {
    let of = |gate: &str, layer: &str, result: Option<Result<String, String>>| {
        let (state, reason) = match result {
            Some(Ok(reason)) => (State::Enforced, reason),
            Some(Err(reason)) => (State::Absent, reason),
            None => (State::Degraded, "not proven yet: the canary has not run".to_owned()),
        };
        let proven_at = proof.at.clone().filter(|_| state == State::Enforced);
        GateState { gate: gate.to_owned(), layer: layer.to_owned(), state, reason, proven_at }
    };
    let landlock = proof.landlock.clone().map(|abi| abi.map(|abi| format!("ABI {abi}: a write outside left no file")));
    let seccomp = proof.seccomp.clone().map(|done| done.map(|()| "a canary's personality() was refused".to_owned()));
    let mut all = vec![of("files", "landlock", landlock), of("system_calls", "seccomp", seccomp)];
    all.extend(match (proof.gates.as_slice(), probe) {
        ([], ProbeState::Absent) => canary::gates::untried("no probe"),
        ([], ProbeState::Silent(reason)) => canary::gates::untried(&format!("the probe does not answer: {reason}")),
        ([], ProbeState::Connected) => canary::gates::untried("not proven yet: no canary has tried it"),
        (gates, _) => gates.to_vec(),
    });
    all
}

/// What the layers that are proven cannot do.
pub fn limits(gates: &[GateState]) -> Vec<String> {
    let by_lsm = |name: &str| {
        gates.iter().any(|gate| gate.gate == name && gate.layer == "bpf_lsm" && gate.state == State::Enforced)
    };
    [
        (
            "exec",
            "programs are killed at their start instead of refused; scripts and ld.so as a loader cannot be refused",
        ),
        ("unix_path", "unix sockets are known by name only: a fence closes all of them or none"),
        ("write", "protected names are not protected by the kernel: Landlock alone confines writes"),
        ("signal", "processes outside the tree, Ringfence's too, are kept from signals and tracing by Landlock alone"),
        ("namespace", "user namespaces and bpf are refused by seccomp alone, behind the launcher"),
    ]
    .into_iter()
    .filter(|(gate, _)| !by_lsm(gate))
    .map(|(_, limit)| limit.to_owned())
    .collect()
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
            gates,
            limits,
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
        writeln!(out, "  {:<16} {:<9} {:<9} what a canary proved", "gate", "layer", "state")?;
        for GateState { gate, layer, state, reason, proven_at } in gates {
            let proven = proven_at.as_ref().map(|at| format!(" (proven {at})")).unwrap_or_default();
            writeln!(out, "  {gate:<16} {layer:<9} {:<9} {reason}{proven}", word(*state))?;
        }
        for limit in limits {
            writeln!(out, "  without BPF LSM: {limit}")?;
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
        let one = ProgramState { program: "rf_connect_unix".into(), attached: false, reason: Some("needs 6.7".into()) };
        let seen = Some(Seen { exec: true, connect: true, refusal: true, refusals: Vec::new() });
        let proof = Proof { at: Some("2026-01-01T00:00:00Z".into()), seen, ..Proof::default() };
        let all = layers(&proof, &ProbeState::Connected, Some(&(vec![one], false)));
        let observation = all.iter().find(|l| l.layer == "observation").unwrap();
        assert_eq!(observation.state, State::Degraded);
        assert!(observation.reason.contains("connect_unix"));
    }
}
