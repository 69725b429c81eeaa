//! What must hold under a flood, and while the probe is replaced.

use std::net::{TcpListener, UdpSocket};

use ringfence_common::rules::{OBJECT_EXEC_REFUSED, gate};

use super::*;
use crate::probe::rules::{AddressRule, ObjectRule, PortRule, RuleSet};

/// A script that Alice may run.
fn script(bench: &Bench, name: &str, text: &str) -> String {
    let path = bench.directory.path().join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// A program that the rules refuse, and the rule.
fn refused_program(bench: &mut Bench, session: u64) -> (String, ObjectRule) {
    let path = bench.directory.path().join("refused");
    std::fs::copy("/bin/true", &path).unwrap();
    let files = bench.kernel.identify_held(session, vec![File::open(&path).unwrap().into()]).unwrap();
    let rule = ObjectRule { file: files[0], bits: OBJECT_EXEC_REFUSED, label: 7, state: 0 };
    (path.display().to_string(), rule)
}

#[test]
fn refusals_survive_a_flood_of_ordinary_events() {
    const REFUSALS: usize = 100;
    let Some(mut bench) = Bench::new("refusals_survive_a_flood_of_ordinary_events") else { return };
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = sink.local_addr().unwrap().port().to_string();
    let (session, mut flood) = bench.enrolled(Role::Host, &["flood", &port, "100000"]);
    let (refused, rule) = refused_program(&mut bench, session);
    let rules = RuleSet { objects: vec![rule], ..RuleSet::default() };
    bench.kernel.set_rules(session, &rules, &rules).unwrap();
    let loops = format!("i=0; while [ $i -lt {REFUSALS} ]; do {refused} 2>/dev/null; i=$((i+1)); done; exit 0");
    let loops = script(&bench, "loops", &loops);
    let mut refusing = Actor::start(&bench.actor, ALICE, &["exec", &loops]);
    bench.kernel.enrol(session, refusing.id(), Role::Host).unwrap();

    // Nobody reads until both have ended.
    flood.go();
    refusing.go();
    assert!(flood.end().success() && refusing.end().success());
    let mut rings = bench.kernel.rings(ALICE).unwrap();
    let (mut denied, mut connects, mut all) = (0u64, 0u64, 0u64);
    while rings.drain(1000, &mut |one| {
        all += 1;
        match one.kind {
            ObservationKind::Gate(event) if event.errno != 0 => denied += 1,
            ObservationKind::Connect { .. } => connects += 1,
            _ => {}
        }
    }) > 0
    {}
    let counters = bench.kernel.counters(session).unwrap();
    let ByKind { fork, exec, exit, connect, connect_result, syscall_refused, denied: told, noted } = counters.by_kind;
    for kind in [fork, exec, exit, connect, connect_result, syscall_refused, told, noted] {
        assert_eq!(kind.attempted, kind.reported + kind.lost);
    }
    assert_eq!((told.attempted, told.reported, told.lost), (REFUSALS as u64, REFUSALS as u64, 0));
    assert_eq!(denied, REFUSALS as u64);
    assert!(connect.attempted >= 100_000 && connect.lost > 0, "{connect:?}");
    assert_eq!((connects, all), (connect.reported, counters.reported));
    assert_eq!(counters.attempted, counters.reported + counters.lost);
}

#[test]
fn no_moment_is_without_rules_while_the_probe_is_replaced() {
    let Some(mut bench) = Bench::new("no_moment_is_without_rules_while_the_probe_is_replaced") else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let session = bench.kernel.open_session(ALICE).unwrap();
    let (refused, rule) = refused_program(&mut bench, session);
    let ports = vec![PortRule { first: port, last: port, gates: 1 << gate::CONNECT, refused: true }];
    let address = AddressRule { address: [127, 0, 0, 1], bits: 32, ports };
    let rules = RuleSet { objects: vec![rule], addresses4: vec![address], ..RuleSet::default() };
    bench.kernel.set_rules(session, &rules, &rules).unwrap();

    let home = bench.home(ALICE);
    let (ran, rounds, stop) = (home.join("ran"), home.join("rounds"), home.join("stop"));
    // The shell that makes a connection is its own child, so that a refusal does not end the loop.
    let hammer = format!(
        "while [ ! -e {stop} ]; do {refused} 2>/dev/null && echo ran >> {ran}; \
         /bin/bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}' 2>/dev/null; echo x >> {rounds}; done; exit 0",
        stop = stop.display(),
        ran = ran.display(),
        rounds = rounds.display()
    );
    let hammer = script(&bench, "hammer", &hammer);
    let mut actor = Actor::start(&bench.actor, ALICE, &["exec", &hammer]);
    bench.kernel.enrol(session, actor.id(), Role::Launched).unwrap();
    actor.go();
    let done = || std::fs::read(&rounds).map_or(0, |text| text.len() / 2);
    let mut connected = 0;
    let mut wait_for = |more: usize| {
        let (begun, from) = (Instant::now(), done());
        while done() < from + more {
            assert!(begun.elapsed() < PATIENCE, "the hammer stands still after {from} rounds");
            while listener.accept().is_ok() {
                connected += 1;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for(5);
    // What follows the object's end is not read; its digest is another, so that every program is replaced.
    let other = bench.directory.path().join("other.o");
    std::fs::write(&other, [OBJECT.unwrap(), b"another"].concat()).unwrap();
    // An emulated machine takes a minute to load them.
    let starts = [None, Some(other.clone()), None, Some(other)];
    let starts = &starts[..if kept_pins().is_some() { 2 } else { 4 }];
    for object in starts.iter().cloned() {
        let taken_over = object.is_none() && bench.options.object.is_none();
        bench.options.object = object;
        bench.kernel = Kernel::start(&bench.options).unwrap();
        assert_eq!(bench.kernel.taken_over(), taken_over);
        wait_for(5);
    }
    std::fs::write(&stop, "").unwrap();
    assert!(actor.end().success());
    assert!(!ran.exists(), "a refused program ran");
    // Where the programs for addresses are part of the object.
    if bench.kernel.programs().iter().any(|state| state.program == "rf_bind4" && state.attached) {
        assert!(connected == 0 && listener.accept().is_err(), "a refused connection was made");
    }
    eprintln!("{} rounds, none got through", done());
}
