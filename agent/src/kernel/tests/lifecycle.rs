//! Sessions and users, losses, restart and unloading.

use std::net::UdpSocket;

use super::*;

#[test]
fn all_programs_of_this_tier_load() {
    let Some(bench) = Bench::new("all_programs_of_this_tier_load") else { return };
    let lsm: Vec<&str> = load::lsm_programs().collect();
    let (of_lsm, rest): (Vec<_>, Vec<_>) =
        bench.kernel.programs().into_iter().partition(|state| lsm.contains(&state.program.as_str()));
    for state in rest {
        // The list of security modules is no program, and cannot be read everywhere.
        let ok = state.attached || [SYS_EXIT, "security modules"].contains(&state.program.as_str());
        if !ok && state.program.ends_with("_unix") {
            eprintln!("SKIPPED {}: {:?}", state.program, state.reason);
            continue;
        }
        assert!(ok, "{state:?}");
    }
    // All or none: a kernel that takes one of them takes them all.
    let later = ["rf_ftruncate", "rf_set_acl", "rf_remove_acl"];
    let absent = |state: &ProgramState| {
        later.contains(&state.program.as_str()) && state.reason.as_deref() == Some(load::NO_HOOK)
    };
    let of_lsm: Vec<_> = of_lsm.into_iter().filter(|state| !absent(state)).collect();
    let refused: Vec<_> = of_lsm.iter().filter(|state| !state.attached).collect();
    if refused.len() == of_lsm.len() {
        eprintln!("SKIPPED the LSM programs: {:?}", refused[0].reason);
    } else {
        assert!(refused.is_empty(), "{refused:?}");
    }
}

#[test]
fn a_restart_takes_over() {
    let Some(mut bench) = Bench::new("a_restart_takes_over") else { return };
    let (session, mut actor) = bench.enrolled(Role::Host, &["exec", "/bin/true"]);
    let id = actor.id();
    bench.kernel.watch_refusals(true).unwrap();
    let before = bench.kernel.programs();
    bench.kernel = Kernel::start(&bench.options).unwrap();
    assert!(bench.kernel.taken_over());
    assert_eq!(bench.kernel.programs(), before);
    assert!(bench.kernel.watching_refusals());
    assert_eq!(bench.kernel.sessions(ALICE).unwrap(), [session]);
    assert_eq!(bench.kernel.owner(session), Some(ALICE));
    assert_eq!(bench.kernel.mark_of(id).unwrap().unwrap().session, session);
    actor.go();
    assert!(actor.end().success());
    let seen = bench.observe_until_exit(ALICE, id);
    assert!(seen.iter().any(|one| matches!(one.kind, ObservationKind::Exec { .. })));
    assert!(bench.kernel.open_session(ALICE).unwrap() > session, "numbers are not given again");
}

#[test]
fn another_object_keeps_maps_and_marks() {
    let Some(mut bench) = Bench::new("another_object_keeps_maps_and_marks") else { return };
    let (session, mut actor) = bench.enrolled(Role::Host, &["exec", "/bin/true"]);
    let id = actor.id();
    bench.kernel.watch_refusals(true).unwrap();
    // The same programs in a file that differs: one byte more.
    let other = bench.directory.path().join("other.o");
    let mut bytes = OBJECT.unwrap().to_vec();
    bytes.push(0);
    std::fs::write(&other, bytes).unwrap();
    bench.options.object = Some(other);
    bench.kernel = Kernel::start(&bench.options).unwrap();
    assert!(!bench.kernel.taken_over());
    assert!(bench.kernel.watching_refusals());
    assert_eq!(bench.kernel.sessions(ALICE).unwrap(), [session]);
    // The kernel takes the old links down in the background.
    std::thread::sleep(Duration::from_millis(500));
    actor.go();
    assert!(actor.end().success());
    let seen = bench.observe_until_exit(ALICE, id);
    let execs = seen.iter().filter(|one| matches!(one.kind, ObservationKind::Exec { .. })).count();
    assert_eq!(execs, 1, "the old programs are gone");
    assert_eq!(seen[0].mark.session, session);
}

#[test]
fn a_flood_is_reported_or_counted() {
    let Some(mut bench) = Bench::new("a_flood_is_reported_or_counted") else { return };
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = sink.local_addr().unwrap().port().to_string();
    let (session, mut actor) = bench.enrolled(Role::Host, &["flood", &port, "100000"]);
    let id = actor.id();
    // Nobody reads meanwhile: 100 000 records do not fit.
    actor.go();
    assert!(actor.end().success());
    let mut rings = bench.kernel.rings(ALICE).unwrap();
    let mut seen = 0;
    while rings.drain(1000, &mut |_| seen += 1) > 0 {}
    let Counters { attempted, reported, lost, .. } = bench.kernel.counters(session).unwrap();
    assert_eq!(attempted, reported + lost);
    assert!(attempted >= 100_000 && lost > 0, "{attempted} {lost}");
    assert_eq!(reported, seen);
    let _ = id;
}

#[test]
fn users_do_not_see_each_other() {
    let Some(mut bench) = Bench::new("users_do_not_see_each_other") else { return };
    let (alices, mut alice) = bench.enrolled(Role::Host, &["exec", "/bin/true"]);
    let bobs = bench.kernel.open_session(BOB).unwrap();
    let mut bob = Actor::start(&bench.actor, BOB, &["exec", "/bin/true"]);
    bench.kernel.enrol(bobs, bob.id(), Role::Host).unwrap();
    assert_eq!(bench.kernel.sessions(ALICE).unwrap(), [alices]);
    assert_eq!(bench.kernel.sessions(BOB).unwrap(), [bobs]);
    let ids = [alice.id(), bob.id()];
    for actor in [&mut alice, &mut bob] {
        actor.go();
        assert!(actor.end().success());
    }
    for (uid, session, id) in [(ALICE, alices, ids[0]), (BOB, bobs, ids[1])] {
        let seen = bench.observe_until_exit(uid, id);
        assert!(seen.iter().all(|one| one.mark.session == session));
    }
    bench.kernel.close_session(bobs).unwrap();
    assert!(bench.kernel.sessions(BOB).unwrap().is_empty());
    assert!(matches!(bench.kernel.counters(bobs), Err(KernelError::UnknownSession(_))));
}

#[test]
fn files_that_others_can_write_give_no_role() {
    let Some(mut bench) = Bench::new("files_that_others_can_write_give_no_role") else { return };
    let file = bench.home(ALICE).join("launcher");
    std::fs::copy("/bin/true", &file).unwrap();
    chown(&file, Some(ALICE), None).unwrap();
    bench.options.launchers = vec![file];
    bench.kernel = Kernel::start(&bench.options).unwrap();
    let states = bench.kernel.programs();
    let state = states.iter().find(|one| one.program.starts_with("role launched by")).unwrap();
    assert!(!state.attached && state.reason.as_ref().unwrap().contains("root"), "{state:?}");
}

#[test]
fn only_objects_with_log_lines_are_followed() {
    assert!(!log::is_in(b"no such map"));
    assert!(log::is_in(b"...AYA_LOGS..."));
    if let Some(object) = OBJECT {
        assert!(!log::is_in(object), "a release object holds no format strings");
    }
}

#[test]
fn a_mirror_has_room_also_after_an_attempt_without_it() {
    let Some(mut bench) = Bench::new("a_mirror_has_room_also_after_an_attempt_without_it") else { return };
    // As on a kernel that refuses task storage to cgroup programs: the maps are there from the first attempt.
    let pins = Pins::new(&bench.options.pin_dir);
    load::load(OBJECT.unwrap(), &pins, &bench.options.cgroup, true, &Default::default()).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    bench.kernel = Kernel::start(&bench.options).unwrap();
    let (_, mut actor) = bench.enrolled(Role::Host, &["daemon", &port]);
    actor.go();
    assert!(actor.end().success());
    bench.observe(ALICE, |seen| seen.iter().any(|one| matches!(one.kind, ObservationKind::Connect { .. })));
}
