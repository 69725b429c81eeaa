//! Who is marked: threads, descendants, roles, launches, owners.

use std::net::TcpListener;

use super::*;

fn connects(seen: &[Observation]) -> Vec<&Observation> {
    seen.iter().filter(|one| matches!(one.kind, ObservationKind::Connect { .. })).collect()
}

#[test]
fn offsets_agree_with_proc() {
    let Some(bench) = Bench::new("offsets_agree_with_proc") else { return };
    use std::os::unix::fs::MetadataExt;
    let file = File::open("/proc/self/stat").unwrap();
    let answer = bench.kernel.ask_identity(&[std::os::fd::AsRawFd::as_raw_fd(&file) as u32]).unwrap();
    let own = crate::process::stat(std::process::id()).unwrap();
    assert_eq!(answer.start, own.id.start);
    assert_eq!(answer.parent, own.parent);
    assert_eq!(answer.owner, nix::unistd::getuid().as_raw());
    assert_eq!(answer.files[0].inode, file.metadata().unwrap().ino());
}

#[test]
fn every_thread_of_an_enrolled_process_is_marked() {
    let Some(mut bench) = Bench::new("every_thread_of_an_enrolled_process_is_marked") else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let session = bench.kernel.open_session(ALICE).unwrap();
    let mut actor = Actor::start(&bench.actor, ALICE, &["threads", &port]);
    actor.wait_for("threads");
    let id = actor.id();
    let marked = bench.kernel.enrol(session, id, Role::Host).unwrap();
    // Eight threads, the harness's main thread and the one that runs the act.
    assert_eq!(marked, 10);
    assert_eq!(bench.kernel.enrol(session, id, Role::Host).unwrap(), 0, "nothing new");
    actor.go();
    assert!(actor.end().success());
    let seen = bench.observe_until_exit(ALICE, id);
    let connects = connects(&seen);
    let forked: std::collections::HashSet<u32> =
        connects.iter().filter(|one| one.process != id).map(|one| one.process.pid).collect();
    let threads: std::collections::HashSet<u32> =
        connects.iter().filter(|one| one.process == id).map(|one| one.thread).collect();
    assert_eq!((forked.len(), threads.len()), (8, 8));
    assert!(connects.iter().all(|one| one.mark == Mark { session, launch: 0, generation: 0, role: Role::Host }));
    let forks = seen.iter().filter(|one| matches!(one.kind, ObservationKind::Fork { .. })).count();
    assert_eq!(forks, 8, "one per process, none per thread");
    let exits = seen.iter().filter(|one| is_exit(&one.kind)).count();
    assert_eq!(exits, 9);
}

#[test]
fn setsid_and_double_fork_keep_the_mark() {
    let Some(mut bench) = Bench::new("setsid_and_double_fork_keep_the_mark") else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let (session, mut actor) = bench.enrolled(Role::Launched, &["daemon", &port]);
    let id = actor.id();
    actor.go();
    assert!(actor.end().success());
    let seen = bench.observe(ALICE, |seen| !connects(seen).is_empty());
    let connect = connects(&seen)[0];
    assert_ne!(connect.process, id);
    assert_eq!((connect.mark.session, connect.mark.role), (session, Role::Launched));
    let enrolled = seen.iter().find(|one| one.process == id).unwrap();
    assert_eq!(connect.mark.launch, enrolled.mark.launch);
    assert_ne!(connect.mark.launch, 0);
}

#[test]
fn descendants_are_enrolled_with_their_ancestor() {
    let Some(mut bench) = Bench::new("descendants_are_enrolled_with_their_ancestor") else { return };
    let session = bench.kernel.open_session(ALICE).unwrap();
    // The host starts a program of its own and its hook before anybody enrols it.
    let mut shell = std::process::Command::new("/bin/sh");
    let hook = bench.hook().display().to_string();
    // (A shell gives what runs in the background /dev/null to read; both are to wait for their word.)
    let (own, act) = (bench.actor.display().to_string(), "kernel::tests::actor::act --exact <&3 &");
    let script = format!("exec 3<&0; {own} {act} {hook} {act} wait");
    use std::os::unix::process::CommandExt;
    shell.args(["-c", &script]).uid(ALICE).gid(ALICE).env("RINGFENCE_KERNEL_TEST_ACT", "sleep");
    shell.stdin(std::process::Stdio::piped()).process_group(0);
    let mut shell = shell.spawn().unwrap();
    let host = crate::process::stat(shell.id()).unwrap().id;
    let begin = Instant::now();
    let image = |pid: u32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let started = |child: &ProcessId| image(child.pid).is_some_and(|its| Some(its) != image(host.pid));
    while children(host.pid).iter().filter(|child| started(child)).count() < 2 {
        assert!(begin.elapsed() < PATIENCE, "the shell starts two programs");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(bench.kernel.enrol(session, host, Role::Host).unwrap() >= 3);
    assert_eq!(bench.kernel.mark_of(host).unwrap().unwrap().role, Role::Host);
    let mut roles: Vec<Role> =
        children(host.pid).iter().map(|c| bench.kernel.mark_of(*c).unwrap().unwrap().role).collect();
    roles.sort_by_key(|role| format!("{role:?}"));
    nix::sys::signal::killpg(nix::unistd::Pid::from_raw(host.pid as i32), nix::sys::signal::Signal::SIGKILL).unwrap();
    shell.wait().unwrap();
    assert_eq!(roles, [Role::Hook, Role::Internal]);
}

fn children(pid: u32) -> Vec<ProcessId> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace().map(|child| crate::process::stat(child.parse().unwrap()).unwrap().id).collect()
}

#[test]
fn the_launcher_gives_a_launch_and_nothing_takes_it() {
    let Some(mut bench) = Bench::new("the_launcher_gives_a_launch_and_nothing_takes_it") else { return };
    let (launcher, hook) = (bench.launcher().display().to_string(), bench.hook().display().to_string());
    // Host, child: launcher, its child: hook, its child: launcher.
    let act = ["spawn", &launcher, "spawn", &hook, "spawn", &launcher, "exec", "/bin/true"];
    let (session, mut actor) = bench.enrolled(Role::Host, &act);
    let id = actor.id();
    actor.go();
    assert!(actor.end().success());
    let seen = bench.observe_until_exit(ALICE, id);
    let execs: Vec<Mark> =
        seen.iter().filter(|one| matches!(one.kind, ObservationKind::Exec { .. })).map(|one| one.mark).collect();
    assert_eq!(execs.len(), 4, "{seen:#?}");
    let launch = execs[0].launch;
    assert_ne!(launch, 0);
    assert!(execs.iter().all(|mark| *mark == Mark { session, launch, generation: 0, role: Role::Launched }));
    let exit = seen.iter().find(|one| one.process == id && is_exit(&one.kind)).unwrap();
    assert_eq!((exit.mark.launch, exit.mark.role), (0, Role::Host), "the host itself has none");

    let (_, mut second) = bench.enrolled(Role::Host, &["spawn", &launcher, "exec", "/bin/true"]);
    let id = second.id();
    second.go();
    assert!(second.end().success());
    let seen = bench.observe_until_exit(ALICE, id);
    let mark = seen.iter().find(|one| matches!(one.kind, ObservationKind::Exec { .. })).unwrap().mark;
    assert_ne!(mark.launch, launch, "a launch number is given once");
}

#[test]
fn only_a_child_of_the_host_becomes_a_hook() {
    let Some(mut bench) = Bench::new("only_a_child_of_the_host_becomes_a_hook") else { return };
    let (hook, other) = (bench.hook().display().to_string(), bench.actor.display().to_string());
    let mut roles = |act: &[&str]| {
        let (_, mut actor) = bench.enrolled(Role::Host, act);
        let id = actor.id();
        actor.go();
        assert!(actor.end().success());
        let seen = bench.observe_until_exit(ALICE, id);
        let execs = seen.into_iter().filter(|one| matches!(one.kind, ObservationKind::Exec { .. }));
        execs.map(|one| one.mark.role).collect::<Vec<_>>()
    };
    assert_eq!(roles(&["spawn", &hook, "exec", "/bin/true"]), [Role::Hook, Role::Internal]);
    let act = ["spawn", &other, "spawn", &hook, "exec", "/bin/true"];
    assert_eq!(roles(&act), [Role::Internal, Role::Internal, Role::Internal]);
    assert_eq!(roles(&["become", &other, "exec", "/bin/true"]), [Role::Host, Role::Host], "its own image");
}

#[test]
fn only_the_owner_s_processes_are_enrolled() {
    let Some(mut bench) = Bench::new("only_the_owner_s_processes_are_enrolled") else { return };
    let session = bench.kernel.open_session(ALICE).unwrap();
    let foreign = Actor::start(&bench.actor, BOB, &["sleep"]);
    assert!(matches!(bench.kernel.enrol(session, foreign.id(), Role::Host), Err(KernelError::NotOwner(_))));
    assert_eq!(bench.kernel.mark_of(foreign.id()).unwrap(), None);
    let reused = ProcessId { start: foreign.id().start + 1, ..foreign.id() };
    assert!(matches!(bench.kernel.enrol(session, reused, Role::Host), Err(KernelError::Gone(_))));
    assert!(matches!(bench.kernel.mark_of(reused), Err(KernelError::Gone(_))));
    assert!(matches!(bench.kernel.enrol(session + 9, foreign.id(), Role::Host), Err(KernelError::UnknownSession(_))));

    let own = Actor::start(&bench.actor, ALICE, &["sleep"]);
    bench.kernel.enrol(session, own.id(), Role::Internal).unwrap();
    let mark = Mark { session, launch: 0, generation: 0, role: Role::Internal };
    assert_eq!(bench.kernel.mark_of(own.id()).unwrap(), Some(mark));
    bench.kernel.enrol(session, own.id(), Role::Host).unwrap();
    assert_eq!(bench.kernel.mark_of(own.id()).unwrap(), Some(Mark { role: Role::Host, ..mark }));
    let other = bench.kernel.open_session(ALICE).unwrap();
    let refused = bench.kernel.enrol(other, own.id(), Role::Host);
    assert!(matches!(refused, Err(KernelError::OtherSession(_, first)) if first == session));
    bench.kernel.close_session(session).unwrap();
    bench.kernel.enrol(other, own.id(), Role::Host).unwrap();
    assert_eq!(bench.kernel.mark_of(own.id()).unwrap().unwrap().session, other);
}
