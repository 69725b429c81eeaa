//! Unix sockets: whatever name leads to one that was made outside, it is that socket that is refused.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use ringfence_common::rules::{OBJECT_SOCKET_ALLOWED, OBJECT_SOCKET_HOOKS, OBJECT_SOCKET_REFUSED, UNIX_ALL_OFF, gate};

use super::network::{bits, gates, has, tried};
use super::*;
use crate::probe::protocol::ResolvedPeer;
use crate::probe::rules::{AbstractRule, ObjectRule, RuleSet};

/// Made outside every tree: a stream and a datagram socket, by path and by abstract name.
struct Outside {
    stream: UnixListener,
    datagram: UnixDatagram,
    abstract_stream: UnixListener,
    directory: PathBuf,
    name: String,
}

impl Outside {
    fn new(bench: &Bench) -> Outside {
        let directory = bench.home(ALICE).join("run");
        std::fs::create_dir(&directory).unwrap();
        let name = format!("ringfence-outside-{}", std::process::id());
        let outside = Outside {
            stream: UnixListener::bind(directory.join("stream")).unwrap(),
            datagram: UnixDatagram::bind(directory.join("datagram")).unwrap(),
            abstract_stream: UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
            directory,
            name,
        };
        for path in ["stream", "datagram"].map(|name| outside.directory.join(name)) {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
        }
        for stream in [&outside.stream, &outside.abstract_stream] {
            stream.set_nonblocking(true).unwrap();
        }
        outside.datagram.set_nonblocking(true).unwrap();
        outside
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// How many came by path and by name, and how many datagrams.
    fn got(&self) -> [usize; 3] {
        let came = |stream: &UnixListener| std::iter::from_fn(|| stream.accept().ok()).count();
        let datagrams = std::iter::from_fn(|| self.datagram.recv(&mut [0; 8]).ok()).count();
        [came(&self.stream), came(&self.abstract_stream), datagrams]
    }
}

fn by_peer(bench: &Bench, test: &str) -> bool {
    let by_peer = has(bench, "rf_unix_stream") && has(bench, "rf_unix_dgram");
    if !by_peer {
        eprintln!("SKIPPED {test}: no LSM program knows the resolved peer");
    }
    by_peer
}

fn all_off() -> RuleSet {
    RuleSet { refuse: bits(&[gate::UNIX, gate::ABSTRACT]), ..RuleSet::default() }
}

/// What the rules say of a socket or directory by its path.
fn object(bench: &mut Bench, session: u64, path: &str, bits: u32, label: u32) -> ObjectRule {
    // O_PATH opens a socket too.
    let file = nix::fcntl::open(path, nix::fcntl::OFlag::O_PATH, nix::sys::stat::Mode::empty()).unwrap();
    let file = bench.kernel.identify_held(session, vec![file]).unwrap()[0];
    ObjectRule { file, bits, label, state: 0 }
}

#[test]
fn a_socket_made_outside_is_refused_whatever_leads_to_it() {
    let test = "a_socket_made_outside_is_refused_whatever_leads_to_it";
    let Some(mut bench) = Bench::new(test) else { return };
    if !by_peer(&bench, test) {
        return;
    }
    let outside = Outside::new(&bench);
    let [stream, datagram, link, hard, mounted] =
        ["stream", "datagram", "link", "hard", "mounted"].map(|name| outside.path(name));
    std::os::unix::fs::symlink(&stream, &link).unwrap();
    std::fs::hard_link(&stream, &hard).unwrap();
    std::fs::create_dir(&mounted).unwrap();
    mount(Some(&outside.directory), mounted.as_str(), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let targets = [
        format!("ustream={stream}"),
        format!("ustream={link}"),
        format!("ustream={hard}"),
        format!("ustream={mounted}/stream"),
        format!("ustream=@{}", outside.name),
        format!("uring-unix={stream}"),
        format!("udgram={datagram}"),
        format!("usendto={datagram}"),
        format!("usendmmsg={datagram}"),
    ];
    let (answers, seen) = tried(&mut bench, |_, _| all_off(), &targets);
    umount2(mounted.as_str(), MntFlags::empty()).unwrap();
    for (target, errno) in &answers {
        if target.starts_with("uring") && *errno == libc::ENOSYS {
            eprintln!("SKIPPED {target}: this kernel has no io_uring");
            continue;
        }
        assert_eq!(*errno, libc::EPERM, "{target}");
    }
    assert_eq!(outside.got(), [0; 3]);
    let told = gates(&seen);
    assert!(told.len() >= targets.len() - 1, "{told:#?}");
    assert!(told.iter().all(|event| !event.fallback && i32::from(event.errno) == libc::EPERM));
    let pid = std::process::id();
    let first = &told[0];
    assert_eq!((first.gate, first.other_pid), (gate::UNIX, pid));
    assert!(matches!(&first.peer, Some(Peer::UnixPath(path)) if text(path) == stream), "{first:?}");
    let by_name = told.iter().find(|event| event.gate == gate::ABSTRACT).unwrap();
    assert!(matches!(&by_name.peer, Some(Peer::UnixAbstract(name)) if text(name) == outside.name), "{by_name:?}");
    assert!(!seen.iter().any(|one| matches!(one.kind, ObservationKind::Connect { .. })));
}

#[test]
fn sockets_of_the_tree_s_own_go_on() {
    let test = "sockets_of_the_tree_s_own_go_on";
    let Some(mut bench) = Bench::new(test) else { return };
    if !by_peer(&bench, test) {
        return;
    }
    let home = bench.home(ALICE);
    let at = |name: &str| home.join(name).display().to_string();
    let targets = [
        format!("uown={}", at("own")),
        format!("uown=@ringfence-own-{}", std::process::id()),
        format!("uowndgram={}", at("own-datagram")),
        format!("pair={}", libc::SOCK_STREAM),
        format!("pair={}", libc::SOCK_DGRAM),
        format!("pair={}", libc::SOCK_SEQPACKET),
    ];
    let (answers, seen) = tried(&mut bench, |_, _| all_off(), &targets);
    assert!(answers.values().all(|errno| *errno == 0), "{answers:?}");
    assert_eq!(gates(&seen), []);
    let told: Vec<Option<ResolvedPeer>> = seen
        .iter()
        .filter_map(|one| match &one.kind {
            ObservationKind::Connect { resolved, .. } => Some(*resolved),
            _ => None,
        })
        .collect();
    assert_eq!(told.len(), 3, "a pair connects to nobody: {told:?}");
    assert!(told.iter().all(|peer| peer.as_ref().is_some_and(|peer| peer.inside)), "{told:?}");
}

#[test]
fn rules_speak_of_sockets_and_their_directories() {
    let test = "rules_speak_of_sockets_and_their_directories";
    let Some(mut bench) = Bench::new(test) else { return };
    if !by_peer(&bench, test) {
        return;
    }
    let outside = Outside::new(&bench);
    let [stream, datagram, directory] = ["stream", "datagram", "."].map(|name| outside.path(name));
    let (by_path, by_name) = (format!("ustream={stream}"), format!("ustream=@{}", outside.name));
    let targets = [by_path.clone(), format!("usendto={datagram}"), by_name.clone()];
    let mut outcome = |rules: &dyn Fn(&mut Bench, u64) -> RuleSet| {
        let (answers, seen) = tried(&mut bench, rules, &targets);
        (targets.each_ref().map(|target| answers[target]), gates(&seen))
    };
    let name = |bits| AbstractRule { name: outside.name.clone().into_bytes(), bits, label: 5 };
    let refused = libc::EPERM;

    let allowed = |bench: &mut Bench, session: u64| RuleSet {
        objects: vec![object(bench, session, &stream, OBJECT_SOCKET_ALLOWED, 0)],
        abstract_names: vec![name(OBJECT_SOCKET_ALLOWED)],
        ..all_off()
    };
    assert_eq!(outcome(&allowed).0, [0, refused, 0]);
    let below = |bench: &mut Bench, session: u64| RuleSet {
        objects: vec![object(bench, session, &directory, OBJECT_SOCKET_ALLOWED, 0)],
        ..all_off()
    };
    assert_eq!(outcome(&below).0, [0, 0, refused]);
    let named = |bits: u32| {
        let (stream, name) = (stream.clone(), name(bits));
        move |bench: &mut Bench, session: u64| RuleSet {
            objects: vec![object(bench, session, &stream, bits, 4)],
            abstract_names: vec![name.clone()],
            ..RuleSet::default()
        }
    };
    let (answers, told) = outcome(&named(OBJECT_SOCKET_REFUSED | OBJECT_SOCKET_ALLOWED));
    assert_eq!(answers, [refused, 0, refused], "what is refused wins, and the rest is open");
    assert_eq!(told.iter().map(|event| event.label).collect::<Vec<_>>(), [4, 5]);
    assert_eq!(outcome(&named(OBJECT_SOCKET_HOOKS)).0, [refused, 0, refused], "a launched process is no hook");
    assert_eq!(outcome(&|_, _| RuleSet::default()).0, [0; 3]);
}

#[test]
fn a_hook_reaches_what_is_for_hooks() {
    let test = "a_hook_reaches_what_is_for_hooks";
    let Some(mut bench) = Bench::new(test) else { return };
    if !by_peer(&bench, test) {
        return;
    }
    let outside = Outside::new(&bench);
    let stream = outside.path("stream");
    for (role, errno) in [(Role::Hook, 0), (Role::Host, libc::EPERM), (Role::Internal, libc::EPERM)] {
        let (session, mut actor) = bench.enrolled(role, &["reach", &format!("ustream={stream}")]);
        let rules =
            RuleSet { objects: vec![object(&mut bench, session, &stream, OBJECT_SOCKET_HOOKS, 0)], ..all_off() };
        bench.kernel.set_rules(session, &RuleSet::default(), &rules).unwrap();
        actor.go();
        assert!(actor.wait_for("did").ends_with(&format!(" {errno}")), "{role:?}");
        assert!(actor.end().success());
    }
    assert_eq!(outside.got(), [1, 0, 0]);
}

#[test]
fn the_listener_still_learns_who_came() {
    let test = "the_listener_still_learns_who_came";
    let Some(mut bench) = Bench::new(test) else { return };
    let outside = Outside::new(&bench);
    let target = format!("ustream={}", outside.path("stream"));
    let (_, mut actor) = bench.enrolled(Role::Launched, &["reach", &target]);
    let id = actor.id();
    actor.go();
    assert!(actor.wait_for("did").ends_with(" 0"));
    assert!(actor.end().success());
    let (came, _) = outside.stream.accept().unwrap();
    let peer = nix::sys::socket::getsockopt(&came, nix::sys::socket::sockopt::PeerCredentials).unwrap();
    assert_eq!((peer.pid() as u32, peer.uid()), (id.pid, ALICE));
    let seen = bench.observe_until_exit(ALICE, id);
    let resolved = seen.iter().find_map(|one| match &one.kind {
        ObservationKind::Connect { resolved, .. } => Some(*resolved),
        _ => None,
    });
    if by_peer(&bench, test) {
        let pid = std::process::id();
        assert_eq!(resolved, Some(Some(ResolvedPeer { inside: false, pid })));
    }
}

#[test]
fn a_connection_that_was_judged_stays() {
    let test = "a_connection_that_was_judged_stays";
    let Some(mut bench) = Bench::new(test) else { return };
    if !by_peer(&bench, test) {
        return;
    }
    let outside = Outside::new(&bench);
    let (session, mut actor) = bench.enrolled(Role::Launched, &["connected", &outside.path("datagram")]);
    let id = actor.id();
    actor.go();
    actor.wait_for("connected");
    bench.kernel.set_rules(session, &all_off(), &all_off()).unwrap();
    actor.go();
    assert_eq!(actor.wait_for("sent"), "0 0");
    assert!(actor.end().success());
    assert_eq!(outside.got(), [0, 0, 2]);
    let seen = bench.observe_until_exit(ALICE, id);
    let told = seen.iter().filter(|one| matches!(one.kind, ObservationKind::Connect { .. })).count();
    assert_eq!(told, 1, "the connection, and not what is sent over it");
}

#[test]
fn without_the_peer_all_unix_sockets_are_off_or_noted() {
    let test = "without_the_peer_all_unix_sockets_are_off_or_noted";
    let Some(mut bench) = Bench::new(test) else { return };
    if has(&bench, "rf_unix_stream") || !has(&bench, "rf_connect_unix") {
        eprintln!("SKIPPED {test}: an LSM program knows the peer, or no cgroup program sees unix sockets");
        return;
    }
    let outside = Outside::new(&bench);
    let own = bench.home(ALICE).join("own");
    let targets = [
        format!("ustream={}", outside.path("stream")),
        format!("usendto={}", outside.path("datagram")),
        format!("ustream=@{}", outside.name),
        format!("uown={}", own.display()),
        format!("pair={}", libc::SOCK_DGRAM),
    ];
    let mut outcome = |rules: RuleSet| {
        let (answers, seen) = tried(&mut bench, |_, _| rules, &targets);
        let told = gates(&seen);
        assert!(told.iter().all(|event| event.fallback), "{told:?}");
        (targets.each_ref().map(|target| answers[target]), told)
    };
    let refused = libc::EPERM;
    let off = RuleSet { refuse: all_off().refuse | UNIX_ALL_OFF, ..RuleSet::default() };
    let (answers, told) = outcome(off.clone());
    assert_eq!(answers, [refused, refused, refused, refused, 0]);
    assert!(told.iter().all(|event| i32::from(event.errno) == refused), "{told:?}");
    assert_eq!(outside.got(), [0; 3]);
    std::fs::remove_file(&own).unwrap();

    let (answers, told) = outcome(all_off());
    assert_eq!(answers, [0; 5]);
    assert_eq!(
        told.iter().map(|event| (event.gate, event.errno)).collect::<Vec<_>>(),
        [(gate::UNIX, 0), (gate::UNIX, 0), (gate::ABSTRACT, 0), (gate::UNIX, 0)]
    );
    assert_eq!(outside.got(), [1, 1, 1]);
    std::fs::remove_file(&own).unwrap();

    let name = |bits| AbstractRule { name: outside.name.clone().into_bytes(), bits, label: 5 };
    let (answers, told) = outcome(RuleSet { abstract_names: vec![name(OBJECT_SOCKET_ALLOWED)], ..off });
    assert_eq!((answers[2], told.len()), (0, 3), "an abstract name is the socket");
    let (answers, told) = outcome(RuleSet { abstract_names: vec![name(OBJECT_SOCKET_REFUSED)], ..RuleSet::default() });
    assert_eq!((answers, told[0].label), ([0, 0, refused, libc::EADDRINUSE, 0], 5));
}
