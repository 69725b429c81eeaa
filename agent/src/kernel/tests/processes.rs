//! Processes in numbers and in odd forms: each is attributed, to the right parent.

use std::collections::{HashMap, HashSet};

use super::*;

#[test]
fn fifty_thousand_processes_are_attributed() {
    let Some(mut bench) = Bench::new("fifty_thousand_processes_are_attributed") else { return };
    // An emulated processor is two orders slower.
    let (runs, forks) = if kept_pins().is_some() { (200, 800) } else { (10_000, 40_000) };
    let act = ["many", "/bin/true", &runs.to_string(), &forks.to_string()];
    let (session, mut actor) = bench.enrolled(Role::Host, &act);
    let id = actor.id();
    let mut rings = bench.kernel.rings(ALICE).unwrap();
    let (mut forked, mut executed, mut ended) = (HashMap::new(), HashSet::new(), HashSet::new());
    let mut done = false;
    actor.go();
    while !done {
        let handed = rings.drain(100_000, &mut |one| {
            assert_eq!(one.mark.session, session);
            match one.kind {
                ObservationKind::Fork { child } => {
                    assert!(forked.insert(child, one.process).is_none(), "{child:?} was made twice");
                }
                ObservationKind::Exec { parent, .. } => {
                    assert_eq!(parent, id);
                    assert!(executed.insert(one.process), "{:?} executed twice", one.process);
                }
                ObservationKind::Exit { .. } if one.process == id => done = true,
                ObservationKind::Exit { .. } => assert!(ended.insert(one.process), "{:?} ended twice", one.process),
                _ => {}
            }
        });
        if handed == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert!(actor.end().success());
    let Counters { attempted, reported, lost, unmarked_children, by_kind: _ } = bench.kernel.counters(session).unwrap();
    assert_eq!(attempted, reported + lost);
    assert_eq!(lost, 0, "of {attempted}");
    assert_eq!(forked.len(), runs + forks);
    assert!(forked.values().all(|parent| *parent == id));
    assert_eq!(executed.len(), runs);
    assert!(executed.iter().all(|process| forked.contains_key(process)));
    assert_eq!(ended, forked.keys().copied().collect::<HashSet<_>>());
    assert_eq!(unmarked_children, 0);
}

#[test]
fn an_exec_by_another_thread_is_the_process_s() {
    let Some(mut bench) = Bench::new("an_exec_by_another_thread_is_the_process_s") else { return };
    let (session, mut actor) = bench.enrolled(Role::Launched, &["exec-in-thread", "/bin/true"]);
    let id = actor.id();
    actor.go();
    assert!(actor.end().success());
    let seen = bench.observe_until_exit(ALICE, id);
    let execs: Vec<_> = seen.iter().filter(|one| matches!(one.kind, ObservationKind::Exec { .. })).collect();
    assert_eq!(execs.len(), 1);
    assert_eq!((execs[0].process, execs[0].mark.session, execs[0].mark.role), (id, session, Role::Launched));
    assert_eq!(seen.iter().filter(|one| is_exit(&one.kind)).count(), 1, "{seen:#?}");
}

#[test]
fn vfork_and_posix_spawn_hand_the_mark_down() {
    let Some(mut bench) = Bench::new("vfork_and_posix_spawn_hand_the_mark_down") else { return };
    let (session, mut actor) = bench.enrolled(Role::Launched, &["vfork-and-spawn", "/bin/true"]);
    let id = actor.id();
    actor.go();
    assert!(actor.end().success());
    let seen = bench.observe_until_exit(ALICE, id);
    let children: Vec<_> = seen
        .iter()
        .filter(|one| matches!(one.kind, ObservationKind::Exec { parent, .. } if parent == id))
        .map(|one| (one.mark.session, one.mark.role))
        .collect();
    assert_eq!(children, [(session, Role::Launched); 2]);
}

#[test]
fn a_pid_that_is_used_again_carries_no_mark() {
    const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
    let name = "a_pid_that_is_used_again_carries_no_mark";
    let Some(mut bench) = Bench::new(name) else { return };
    let (_, mut actor) = bench.enrolled(Role::Launched, &["exec", "/bin/true"]);
    let before = actor.id();
    actor.go();
    assert!(actor.end().success());
    bench.observe_until_exit(ALICE, before);
    // Somebody else may take the number first: then it is tried again.
    let again = (0..200).find_map(|_| {
        std::fs::write(LAST_PID, (before.pid - 1).to_string()).ok()?;
        let stranger = Actor::start(&bench.actor, ALICE, &["exec", "/bin/true"]);
        (stranger.id().pid == before.pid).then_some(stranger)
    });
    let Some(mut stranger) = again else {
        eprintln!("SKIPPED {name}: {LAST_PID} could not bring pid {} back", before.pid);
        return;
    };
    assert_ne!(stranger.id(), before);
    assert_eq!(bench.kernel.mark_of(stranger.id()).unwrap(), None);
    assert!(matches!(bench.kernel.mark_of(before), Err(KernelError::Gone(_))));
    stranger.go();
    assert!(stranger.end().success());
    let mut rings = bench.kernel.rings(ALICE).unwrap();
    let mut seen = 0;
    rings.drain(1000, &mut |_| seen += 1);
    assert_eq!(seen, 0, "nothing is told of the stranger");
}

#[test]
fn a_full_table_of_sessions_is_said_and_disturbs_nobody() {
    let Some(mut bench) = Bench::new("a_full_table_of_sessions_is_said_and_disturbs_nobody") else { return };
    let (_, mut actor) = bench.enrolled(Role::Host, &["exec", "/bin/true"]);
    let id = actor.id();
    let refused = (0..=SESSIONS).find_map(|_| bench.kernel.open_session(BOB).err());
    assert!(matches!(refused, Some(KernelError::Limit("SESSIONS"))), "{refused:?}");
    actor.go();
    assert!(actor.end().success());
    bench.observe_until_exit(ALICE, id);
}

#[test]
fn a_32_bit_program_is_observed() {
    let name = "a_32_bit_program_is_observed";
    let Some(mut bench) = Bench::new(name) else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let program = bench.directory.path().join("i386");
    std::fs::write(&program, connecting_i386_program(port)).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    if let Err(error) = std::process::Command::new(&program).status() {
        eprintln!("SKIPPED {name}: this kernel runs no 32-bit programs: {error}");
        return;
    }
    let (session, mut actor) = bench.enrolled(Role::Launched, &["exec", &program.display().to_string()]);
    let id = actor.id();
    actor.go();
    assert!(actor.end().success());
    let seen = bench.observe_until_exit(ALICE, id);
    let connects = |one: &&Observation| matches!(&one.kind, ObservationKind::Connect { peer, .. } if *peer == Peer::V4([127, 0, 0, 1], port));
    let connect = seen.iter().find(connects).unwrap();
    assert_eq!((connect.process, connect.mark.session), (id, session));
}

/// A static i386 program that connects to loopback through `socketcall`, and exits with the errno.
pub(super) fn connecting_i386_program(port: u16) -> Vec<u8> {
    const BASE: u32 = 0x0804_8000;
    const HEADERS: u32 = 52 + 32;
    const CODE: u32 = 58;
    let data = BASE + HEADERS + CODE;
    let (socket, connect, address) = (data, data + 12, data + 24);
    let call = |number: u8, arguments: u32| {
        // mov eax, SYS_socketcall; mov ebx, number; mov ecx, arguments; int 0x80
        let mut code = vec![0xb8, 0x66, 0, 0, 0, 0xbb, number, 0, 0, 0, 0xb9];
        code.extend(arguments.to_le_bytes());
        code.extend([0xcd, 0x80]);
        code
    };
    let mut code = call(1, socket);
    code.push(0xa3); // mov [connect], eax
    code.extend(connect.to_le_bytes());
    code.extend(call(3, connect));
    // neg eax; mov ebx, eax; mov eax, SYS_exit; int 0x80
    code.extend([0xf7, 0xd8, 0x89, 0xc3, 0xb8, 1, 0, 0, 0, 0xcd, 0x80]);
    code.resize(CODE as usize, 0x90);
    let size = HEADERS + CODE + 40;
    let mut file = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for half in [2u16, 3] {
        file.extend(half.to_le_bytes()); // ET_EXEC, EM_386
    }
    for word in [1, BASE + HEADERS, 52, 0, 0] {
        file.extend(u32::to_le_bytes(word)); // version, entry, program headers, sections, flags
    }
    for half in [52u16, 32, 1, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    for word in [1, 0, BASE, BASE, size, size, 7, 0x1000] {
        file.extend(u32::to_le_bytes(word)); // PT_LOAD, all of it, readable, writable, executable
    }
    file.extend(code);
    for word in [2u32, 1, 0, 0, address, 16] {
        file.extend(word.to_le_bytes()); // socket(AF_INET, SOCK_STREAM, 0), connect(fd, address, 16)
    }
    file.extend([2, 0]);
    file.extend(port.to_be_bytes());
    file.extend([127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    file
}
