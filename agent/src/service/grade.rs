//! What a session may require: which canaries must have proven their gates, or nothing is run.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::ledger::entry::{GateState, State};

/// A grade, weakest first; each includes those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Require {
    /// Landlock and seccomp hold.
    Landlock,
    /// And unix sockets that were made outside are refused.
    Unix,
    /// `kernel` where BPF LSM is active, else `unix`.
    #[value(skip)]
    Strict,
    /// And every gate of the kernel programs, by BPF LSM.
    Kernel,
}

impl Require {
    /// What `required` in policy files asks for.
    pub fn of_policy<'a>(layers: impl Iterator<Item = &'a str>) -> Option<Require> {
        let grade = |layer: &str| match layer {
            "landlock" | "seccomp" => Some(Require::Landlock),
            "unix" => Some(Require::Unix),
            "bpf_lsm" | "kernel" => Some(Require::Kernel),
            _ => None,
        };
        layers.filter_map(grade).max()
    }
}

/// Whether the gates reach a grade; else every canary that failed. `fence_refuses_unix`: the session's own filter lets no
/// unix socket be made.
pub fn reached(require: Require, gates: &[GateState], fence_refuses_unix: bool) -> Result<(), String> {
    let lsm_is_active = gates.iter().any(|gate| gate.layer == "bpf_lsm" && gate.state == State::Enforced);
    let grade = match require {
        Require::Strict if lsm_is_active => Require::Kernel,
        Require::Strict => Require::Unix,
        other => other,
    };
    let holds = |gate: &GateState| {
        let enforced = gate.state == State::Enforced;
        let by_lsm = enforced && gate.layer == "bpf_lsm";
        match (gate.layer.as_str(), gate.gate.as_str()) {
            ("landlock" | "seccomp", _) => enforced,
            _ if grade == Require::Kernel => by_lsm,
            // Without LSM the gate closes all unix sockets or none: it holds only in a fence that closes them.
            (_, "unix_path" | "unix_datagram") if grade == Require::Unix => by_lsm || fence_refuses_unix,
            _ => true,
        }
    };
    let failed: Vec<String> = gates
        .iter()
        .filter(|gate| !holds(gate))
        .map(|gate| {
            let GateState { gate, layer, state, reason, proven_at: _ } = gate;
            let but = match (state, grade) {
                (State::Enforced, Require::Kernel) => ", but not by BPF LSM",
                (State::Enforced, _) => {
                    ", but for all unix sockets or none, and this session's fence lets them be used"
                }
                _ => "",
            };
            let state = super::health::word(*state);
            format!("\n  {gate} ({layer}): {state}{but}: {reason}")
        })
        .collect();
    let known = gates.iter().any(|gate| gate.layer == "landlock") && gates.iter().any(|gate| gate.layer == "seccomp");
    match (failed.as_slice(), known) {
        ([], true) => Ok(()),
        ([], false) => Err("nothing was run: no canary has proven anything yet".to_owned()),
        (failed, _) => {
            let name = match grade {
                Require::Landlock => "landlock",
                Require::Unix | Require::Strict => "unix",
                Require::Kernel => "kernel",
            };
            Err(format!(
                "nothing was run: this machine does not reach `{name}`. Canaries that failed:{}",
                failed.concat()
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(name: &str, layer: &str, state: State) -> GateState {
        GateState { gate: name.into(), layer: layer.into(), state, reason: "r".into(), proven_at: None }
    }

    fn machine(unix: &str, signal: State) -> Vec<GateState> {
        vec![
            gate("files", "landlock", State::Enforced),
            gate("system_calls", "seccomp", State::Enforced),
            gate("unix_path", unix, State::Enforced),
            gate("signal", "bpf_lsm", signal),
        ]
    }

    #[test]
    fn each_grade_asks_for_its_canaries() {
        let without_lsm = machine("cgroup", State::Absent);
        assert_eq!(reached(Require::Landlock, &without_lsm, false), Ok(()));
        assert!(reached(Require::Unix, &without_lsm, false).unwrap_err().contains("unix_path (cgroup)"));
        assert_eq!(reached(Require::Unix, &without_lsm, true), Ok(()));
        assert_eq!(reached(Require::Strict, &without_lsm, true), Ok(()));
        let failed = reached(Require::Kernel, &without_lsm, true).unwrap_err();
        assert!(failed.contains("unix_path") && failed.contains("signal (bpf_lsm): absent: r"), "{failed}");

        let with_lsm = machine("bpf_lsm", State::Enforced);
        assert_eq!(reached(Require::Kernel, &with_lsm, false), Ok(()));
        assert_eq!(reached(Require::Strict, &with_lsm, false), Ok(()));
        let half = machine("bpf_lsm", State::Degraded);
        assert!(reached(Require::Strict, &half, true).is_err(), "LSM is active, so strict asks for all of it");
        assert!(reached(Require::Landlock, &[], false).is_err());
    }

    #[test]
    fn policies_ask_for_the_highest_that_they_name() {
        assert_eq!(Require::of_policy(["seccomp", "unix"].into_iter()), Some(Require::Unix));
        assert_eq!(Require::of_policy(["cgroup"].into_iter()), None);
        assert_eq!(Require::of_policy(["bpf_lsm", "landlock"].into_iter()), Some(Require::Kernel));
    }
}
