//! What is concluded from two rounds and the kernel's word.

use super::*;

fn event(gate: u32, peer: Option<crate::probe::protocol::Peer>, fallback: bool, killed: bool) -> GateEvent {
    GateEvent {
        gate,
        errno: 1,
        label: 0,
        file: None,
        peer,
        path: Default::default(),
        path_in_file_system: false,
        too_deep: false,
        killed,
        fallback,
        by_git: false,
        other_pid: 0,
        family: 0,
        detail: 0,
    }
}

fn program(name: &str, attached: bool) -> ProgramState {
    ProgramState { program: name.into(), attached, reason: (!attached).then(|| "refused by the kernel".into()) }
}

fn one(trial: Trial, bare: End, shut: End, events: Vec<GateEvent>, programs: &[ProgramState]) -> Option<GateState> {
    let rounds = Rounds { bare: vec![(trial, bare)], shut: vec![(trial, shut)], events };
    judge(&rounds, programs, "now").pop()
}

#[test]
fn only_a_refusal_that_the_kernel_tells_of_is_proof() {
    let refused = End::Errno(libc::EACCES);
    let by_lsm = vec![event(gate::SIGNAL, None, false, false)];
    let state = one(Trial::Signal, End::Done, refused, by_lsm.clone(), &[program("rf_bprm", true)]).unwrap();
    assert_eq!((state.layer.as_str(), state.state), ("bpf_lsm", State::Enforced));
    assert_eq!(state.proven_at.as_deref(), Some("now"));
    let untold = one(Trial::Signal, End::Done, refused, Vec::new(), &[program("rf_bprm", true)]).unwrap();
    assert_eq!((untold.state, untold.proven_at), (State::Degraded, None));
    let to_all = one(Trial::Signal, refused, refused, by_lsm, &[program("rf_bprm", true)]).unwrap();
    assert_eq!(to_all.state, State::Degraded, "{to_all:?}");
}

#[test]
fn the_layer_is_the_one_that_did_it() {
    let v4 = Some(crate::probe::protocol::Peer::V4([127, 0, 0, 1], 9));
    let by_cgroup = vec![event(gate::CONNECT, v4, true, false)];
    let free = End::Errno(libc::ECONNREFUSED);
    let state = one(Trial::Connect4, free, End::Errno(libc::EPERM), by_cgroup.clone(), &[]).unwrap();
    assert_eq!((state.layer.as_str(), state.state), ("cgroup", State::Enforced));
    let other_family = one(Trial::Connect6, free, End::Errno(libc::EPERM), by_cgroup, &[]).unwrap();
    assert_eq!(other_family.state, State::Degraded, "the word is of another address");
    let killed = vec![event(gate::EXEC, None, true, true)];
    let state = one(Trial::Exec, End::Done, End::Killed(libc::SIGKILL), killed, &[]).unwrap();
    assert_eq!((state.layer.as_str(), state.state), ("signal", State::Enforced));
}

#[test]
fn a_program_that_never_fires_is_degraded_with_the_reason() {
    let modules = ProgramState {
        program: SECURITY_MODULES.into(),
        attached: false,
        reason: Some("`bpf` is not among the active security modules (yama): boot with lsm=yama,bpf".into()),
    };
    let silent = one(Trial::Write, End::Done, End::Done, Vec::new(), &[program("rf_bprm", true), modules.clone()]);
    let silent = silent.unwrap();
    assert_eq!((silent.layer.as_str(), silent.state), ("bpf_lsm", State::Degraded));
    assert!(silent.reason.contains("lsm=yama,bpf"), "{}", silent.reason);
    let absent = one(Trial::Write, End::Done, End::Done, Vec::new(), &[program("rf_bprm", false)]).unwrap();
    assert_eq!(absent.state, State::Absent);
    let why = why_no_lsm(&[program("rf_bprm", false)]).unwrap();
    assert!(why.contains("refused by the kernel"), "{why}");
    let open = one(Trial::Connect4, End::Done, End::Done, Vec::new(), &[program("rf_connect4", true)]).unwrap();
    assert_eq!((open.layer.as_str(), open.state), ("cgroup", State::Degraded));
}

#[test]
fn what_the_machine_has_not_is_left_out() {
    let nothing = End::Errno(libc::EADDRNOTAVAIL);
    assert_eq!(one(Trial::Connect6, nothing, nothing, Vec::new(), &[]), None);
}
