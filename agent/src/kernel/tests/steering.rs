//! What is aimed at another process: at one of ours outside every tree always refused, whatever the rules say.

use ringfence_common::rules::gate;

use super::*;
use crate::probe::protocol::GateEvent;

/// Ways with an answer, and the gate that refuses each.
const WAYS: [(&str, u32); 9] = [
    ("ask", gate::SIGNAL),
    ("end", gate::SIGNAL),
    ("pidfd", gate::SIGNAL),
    ("trace", gate::TRACE),
    ("read", gate::TRACE),
    ("limit", gate::TRACE),
    ("processor", gate::TRACE),
    ("nice", gate::TRACE),
    ("io", gate::TRACE),
];

/// A bench whose kernel refuses by LSM programs, and one of ours that sleeps.
fn stand(test: &str) -> Option<(Bench, Actor)> {
    let bench = Bench::new(test)?;
    if !bench.kernel.programs().iter().any(|state| state.program == "rf_sigio" && state.attached) {
        eprintln!("SKIPPED {test}: this kernel loads no LSM programs");
        return None;
    }
    let own = Actor::start(&bench.options.own[0], ALICE, &["sleep"]);
    Some((bench, own))
}

fn refusals(seen: &[Observation]) -> Vec<&GateEvent> {
    seen.iter()
        .filter_map(|one| match &one.kind {
            ObservationKind::Gate(event) => Some(event),
            _ => None,
        })
        .collect()
}

#[test]
fn nothing_of_a_tree_signals_traces_or_starves_our_own() {
    let Some((mut bench, mut own)) = stand("nothing_of_a_tree_signals_traces_or_starves_our_own") else { return };
    let pid = own.id().pid;
    let deeds: Vec<String> = WAYS.iter().map(|(how, _)| format!("steer:{how}:{pid}")).collect();
    for role in [Role::Host, Role::Launched] {
        let words: Vec<&str> = ["deeds"].into_iter().chain(deeds.iter().map(String::as_str)).collect();
        let (_, mut actor) = bench.enrolled(role, &words);
        let id = actor.id();
        actor.go();
        let answers = actor.wait_for("done");
        actor.end();
        assert!(answers.split(' ').all(|errno| errno == libc::EPERM.to_string()), "{role:?}: {answers}");
        let seen = bench.observe_until_exit(ALICE, id);
        let told: Vec<(u32, u32)> = refusals(&seen).iter().map(|event| (event.gate, event.other_pid)).collect();
        assert_eq!(told, WAYS.map(|(_, gate)| (gate, pid)), "{role:?}");
    }
    // It lives, and does as it is told.
    own.go();
    assert!(own.end().success());
}

#[test]
fn no_signal_by_a_file_reaches_our_own() {
    let Some((mut bench, mut own)) = stand("no_signal_by_a_file_reaches_our_own") else { return };
    // Whoever the running task is: marked, and not.
    let (_, mut actor) = bench.enrolled(Role::Internal, &["signal-by-file", &own.id().pid.to_string()]);
    actor.go();
    actor.wait_for("sent");
    assert!(actor.end().success());
    let mut unmarked = Actor::start(&bench.actor, ALICE, &["signal-by-file", &own.id().pid.to_string()]);
    unmarked.go();
    unmarked.wait_for("sent");
    assert!(unmarked.end().success());
    own.go();
    assert!(own.end().success());

    // A process that is not ours is reached, so that what was tried is what would have ended it.
    let mut other = Actor::start(&bench.actor, ALICE, &["sleep"]);
    let (_, mut actor) = bench.enrolled(Role::Internal, &["signal-by-file", &other.id().pid.to_string()]);
    actor.go();
    actor.wait_for("sent");
    assert!(actor.end().success());
    assert!(!other.end().success());
}

/// Of the same session: the errno of each way of `how` that an actor of `role` tries on `other`.
fn tried(bench: &mut Bench, session: u64, role: Role, how: &[&str], other: &Actor) -> Vec<i32> {
    let deeds: Vec<String> = how.iter().map(|how| format!("steer:{how}:{}", other.id().pid)).collect();
    let words: Vec<&str> = ["deeds"].into_iter().chain(deeds.iter().map(String::as_str)).collect();
    let mut actor = Actor::start(&bench.actor, ALICE, &words);
    bench.kernel.enrol(session, actor.id(), role).unwrap();
    actor.go();
    let answers = actor.wait_for("done");
    actor.end();
    answers.split(' ').map(|errno| errno.parse().unwrap()).collect()
}

#[test]
fn only_the_host_reaches_its_hook_and_nobody_steers_the_host() {
    let name = "only_the_host_reaches_its_hook_and_nobody_steers_the_host";
    let Some((mut bench, _)) = stand(name) else { return };
    let (session, mut hook) = bench.enrolled(Role::Hook, &["sleep"]);
    let mut host = Actor::start(&bench.actor, ALICE, &["sleep"]);
    bench.kernel.enrol(session, host.id(), Role::Host).unwrap();
    let other = bench.kernel.open_session(ALICE).unwrap();
    let every = WAYS.map(|(how, _)| how);
    for (of, role) in [(session, Role::Internal), (session, Role::Launched), (other, Role::Host)] {
        assert_eq!(tried(&mut bench, of, role, &every, &hook), [libc::EPERM; 9], "{role:?}");
        assert_eq!(tried(&mut bench, of, role, &["trace", "read"], &host), [libc::EPERM; 2], "{role:?}");
    }
    // Signals to the host are no way to be it, and the host ends its own hooks.
    assert_eq!(tried(&mut bench, session, Role::Internal, &["ask"], &host), [0]);
    assert_eq!(tried(&mut bench, session, Role::Host, &["ask", "nice"], &hook), [0, 0]);
    for actor in [&mut host, &mut hook] {
        actor.go();
        assert!(actor.end().success());
    }
}
