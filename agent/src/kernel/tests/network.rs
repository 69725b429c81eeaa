//! Internet sockets that are refused: proven by who got nothing.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use ringfence_common::rules::gate;

use super::*;
use crate::probe::protocol::GateEvent;
use crate::probe::rules::{AddressRule, PortRule, RuleSet};

const ADDRESSED: [u32; 3] = [gate::CONNECT, gate::DATAGRAM, gate::BIND];

/// Bits of gates.
pub fn bits(gates: &[u32]) -> u64 {
    gates.iter().map(|gate| 1 << gate).sum()
}

fn range(first: u16, last: u16, refused: bool) -> PortRule {
    PortRule { first, last, gates: bits(&ADDRESSED) as u16, refused }
}

/// Adds what is said of a prefix, all that shorter ones say included.
fn say(set: &mut RuleSet, prefix: &str, ports: &[PortRule]) {
    let (address, len) = prefix.split_once('/').unwrap();
    let (len, ports) = (len.parse().unwrap(), ports.to_vec());
    match address.parse().unwrap() {
        IpAddr::V4(v4) => set.addresses4.push(AddressRule { address: v4.octets(), bits: len, ports }),
        IpAddr::V6(v6) => set.addresses6.push(AddressRule { address: v6.octets(), bits: len, ports }),
    }
}

/// Has each target tried by a launched process that is judged by `rules`; answers the errnos and what was observed.
pub fn tried(
    bench: &mut Bench,
    rules: impl FnOnce(&mut Bench, u64) -> RuleSet,
    targets: &[String],
) -> (BTreeMap<String, i32>, Vec<Observation>) {
    let words: Vec<&str> = ["reach"].into_iter().chain(targets.iter().map(String::as_str)).collect();
    let (session, mut actor) = bench.enrolled(Role::Launched, &words);
    let rules = rules(bench, session);
    bench.kernel.set_rules(session, &rules, &RuleSet::default()).unwrap();
    let id = actor.id();
    actor.go();
    let mut answers = BTreeMap::new();
    for target in targets {
        let told = actor.wait_for("did");
        let (what, errno) = told.rsplit_once(' ').unwrap();
        assert_eq!(what, target);
        answers.insert(target.clone(), errno.parse().unwrap());
    }
    assert!(actor.end().success());
    let seen = bench.observe_until_exit(ALICE, id);
    let Counters { attempted, reported, lost, .. } = bench.kernel.counters(session).unwrap();
    assert_eq!((attempted, lost), (reported, 0));
    (answers, seen)
}

pub fn has(bench: &Bench, program: &str) -> bool {
    bench.kernel.programs().iter().any(|state| state.program == program && state.attached)
}

/// What the refusals of addresses answer: the LSM programs', or the cgroup programs'.
fn refusal(bench: &Bench) -> i32 {
    if has(bench, "rf_sock_connect") { libc::EACCES } else { libc::EPERM }
}

pub fn gates(seen: &[Observation]) -> Vec<GateEvent> {
    let gate =
        |one: &Observation| if let ObservationKind::Gate(event) = &one.kind { Some(event.clone()) } else { None };
    seen.iter().filter_map(gate).collect()
}

/// Listens and receives on the same port of one address.
struct Server {
    tcp: TcpListener,
    udp: UdpSocket,
    address: SocketAddr,
}

impl Server {
    fn new(ip: &str) -> Server {
        let tcp = TcpListener::bind((ip.parse::<IpAddr>().unwrap(), 0)).unwrap();
        let address = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(address).unwrap();
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        Server { tcp, udp, address }
    }

    /// How many came, and how many datagrams.
    fn got(&self) -> (usize, usize) {
        let came = std::iter::from_fn(|| self.tcp.accept().ok()).count();
        (came, std::iter::from_fn(|| self.udp.recv(&mut [0; 8]).ok()).count())
    }

    fn port(&self) -> u16 {
        self.address.port()
    }
}

/// Every way to reach a server on IPv4 and one on IPv6.
fn every_way(v4: &Server, v6: &Server) -> Vec<String> {
    let mapped = format!("[::ffff:127.0.0.1]:{}", v4.port());
    let unspecified = format!("0.0.0.0:{}", v4.port());
    let places = [&v4.address.to_string(), &v6.address.to_string(), &mapped];
    let ways = ["tcp", "udp", "sendto", "sendmmsg", "fastopen", "mptcp", "uring"];
    let all = ways.iter().flat_map(|way| places.iter().map(move |place| format!("{way}={place}")));
    all.chain([format!("tcp={unspecified}"), format!("sendto={unspecified}"), format!("nofamily={}", v4.address)])
        .collect()
}

/// Leaves out, and says so, what this kernel cannot do at all.
fn possible(mut answers: BTreeMap<String, i32>) -> BTreeMap<String, i32> {
    let cannot = [libc::ENOSYS, libc::EPROTONOSUPPORT, libc::ENOPROTOOPT, libc::EOPNOTSUPP];
    answers.retain(|target, errno| {
        let skipped = cannot.contains(errno);
        if skipped {
            eprintln!("SKIPPED {target}: {}", std::io::Error::from_raw_os_error(*errno));
        }
        !skipped
    });
    answers
}

#[test]
fn an_address_that_is_refused_is_not_reached_by_any_way() {
    let Some(bench) = Bench::new("an_address_that_is_refused_is_not_reached_by_any_way") else { return };
    no_way_leads_there(bench);
}

#[test]
fn no_way_leads_there_without_task_storage_too() {
    let Some(bench) = Bench::with("no_way_leads_there_without_task_storage_too", true) else { return };
    no_way_leads_there(bench);
}

fn no_way_leads_there(mut bench: Bench) {
    let (v4, v6) = (Server::new("127.0.0.1"), Server::new("::1"));
    let targets = every_way(&v4, &v6);
    let refusing = RuleSet { refuse: bits(&[gate::CONNECT, gate::DATAGRAM]), ..RuleSet::default() };
    bench.kernel.watch_refusals(true).unwrap();
    let (answers, seen) = tried(&mut bench, |_, _| refusing, &targets);
    bench.kernel.watch_refusals(false).unwrap();
    let answers = possible(answers);
    let wanted = refusal(&bench);
    for (target, errno) in &answers {
        assert_eq!(*errno, wanted, "{target}");
    }
    assert_eq!((v4.got(), v6.got()), ((0, 0), (0, 0)));
    let told = gates(&seen);
    assert!(told.len() >= answers.len(), "{told:#?}");
    for event in &told {
        let port = match event.peer {
            Some(Peer::V4(_, port) | Peer::V6(_, port)) => port,
            _ => panic!("{event:?}"),
        };
        assert!(port == v4.port() || port == v6.port());
        assert!(event.gate == gate::CONNECT || event.gate == gate::DATAGRAM);
        assert_eq!((i32::from(event.errno), event.fallback), (wanted, wanted == libc::EPERM));
    }
    let twice = |one: &&Observation| {
        matches!(one.kind, ObservationKind::Connect { .. } | ObservationKind::SyscallRefused { .. })
    };
    assert_eq!(seen.iter().find(twice), None, "what is refused is told once");
}

#[test]
fn an_address_that_is_allowed_is_reached_by_every_way() {
    let Some(mut bench) = Bench::new("an_address_that_is_allowed_is_reached_by_every_way") else { return };
    let (v4, v6) = (Server::new("127.0.0.1"), Server::new("::1"));
    let targets = every_way(&v4, &v6);
    let mut set = RuleSet { refuse: bits(&[gate::CONNECT, gate::DATAGRAM]), ..RuleSet::default() };
    say(&mut set, "127.0.0.1/32", &[range(v4.port(), v4.port(), false)]);
    say(&mut set, "::1/128", &[range(v6.port(), v6.port(), false)]);
    let (answers, seen) = tried(&mut bench, |_, _| set, &targets);
    for (target, errno) in possible(answers) {
        assert_eq!(errno, 0, "{target}");
    }
    assert!(v4.got().0 >= 3 && v6.got().0 >= 1);
    assert_eq!(gates(&seen), []);
}

#[test]
fn what_is_refused_wins_and_the_longest_prefix_speaks() {
    let Some(mut bench) = Bench::new("what_is_refused_wins_and_the_longest_prefix_speaks") else { return };
    // Inside what is allowed something is refused, and inside that something is allowed again.
    let mut set = RuleSet { refuse: bits(&[gate::CONNECT]), ..RuleSet::default() };
    let all = range(0, u16::MAX, false);
    say(&mut set, "127.0.0.0/8", &[all]);
    say(&mut set, "127.1.0.0/16", &[range(0, u16::MAX, true)]);
    say(&mut set, "127.1.1.0/24", &[all]);
    // A range inside an allowed one; of two that speak of a port, the refusing one wins.
    say(&mut set, "127.2.0.0/16", &[all, range(1000, 1999, true)]);
    say(&mut set, "127.3.0.0/16", &[range(1000, 1999, false)]);
    // Speaks of datagrams alone.
    say(&mut set, "127.4.0.0/16", &[PortRule { gates: bits(&[gate::DATAGRAM]) as u16, ..all }]);
    // As many rules as a session may well have.
    for n in 0..122 {
        say(&mut set, &format!("127.9.{n}.0/24"), &[range(0, u16::MAX, n % 2 == 0)]);
    }
    let expected = [
        ("127.0.0.5:999", true),
        ("127.1.0.5:999", false),
        ("127.1.1.5:999", true),
        ("127.2.0.1:999", true),
        ("127.2.0.1:1000", false),
        ("127.2.0.1:1999", false),
        ("127.2.0.1:2000", true),
        ("127.3.0.1:999", false),
        ("127.3.0.1:1000", true),
        ("127.3.0.1:1999", true),
        ("127.3.0.1:2000", false),
        ("127.4.0.1:999", false),
        ("127.9.120.1:999", false),
        ("127.9.121.1:999", true),
        ("[::1]:999", false),
    ];
    let targets: Vec<String> = expected.iter().map(|(place, _)| format!("tcp={place}")).collect();
    let (answers, _) = tried(&mut bench, |_, _| set, &targets);
    let refused = refusal(&bench);
    for (place, passes) in expected {
        let wanted = if passes { libc::ECONNREFUSED } else { refused };
        assert_eq!(answers[&format!("tcp={place}")], wanted, "{place}");
    }
}

#[test]
fn binding_and_listening_are_refused() {
    let Some(mut bench) = Bench::new("binding_and_listening_are_refused") else { return };
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut set = RuleSet { refuse: bits(&[gate::BIND, gate::LISTEN]), ..RuleSet::default() };
    say(&mut set, "127.0.0.1/32", &[range(free, free, false)]);
    let targets =
        [format!("bind=127.0.0.1:{free}"), "bind=127.0.0.1:0".into(), "bind=[::]:0".into(), "listen=0.0.0.0:0".into()];
    let (answers, seen) = tried(&mut bench, |_, _| set, &targets);
    let refused = refusal(&bench);
    let lsm = has(&bench, "rf_sock_listen");
    if !lsm {
        eprintln!("SKIPPED listen: no LSM program, and cgroups have no such hook");
    }
    let expected = [0, refused, refused, if lsm { refused } else { 0 }];
    assert_eq!(targets.each_ref().map(|target| answers[target]), expected);
    let told: Vec<u32> = gates(&seen).iter().map(|event| event.gate).collect();
    assert_eq!(told, [gate::BIND, gate::BIND, gate::LISTEN][..if lsm { 3 } else { 2 }]);
}

#[test]
fn families_that_are_not_named_are_not_made() {
    let Some(mut bench) = Bench::new("families_that_are_not_named_are_not_made") else { return };
    if !has(&bench, "rf_sock_create") {
        eprintln!("SKIPPED families_that_are_not_named_are_not_made: no LSM program, and cgroups have no such hook");
        return;
    }
    let (odd, plain) = (
        [libc::AF_VSOCK, libc::AF_ALG, libc::AF_PACKET, libc::AF_NETLINK, libc::AF_KEY],
        [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6],
    );
    let families = plain.iter().map(|family| 1 << family).sum();
    let set = RuleSet { refuse: bits(&[gate::FAMILY]), families, ..RuleSet::default() };
    let targets: Vec<String> = odd.iter().chain(&plain).map(|family| format!("make={family}")).collect();
    let (answers, seen) = tried(&mut bench, |_, _| set, &targets);
    for family in plain {
        assert_eq!(answers[&format!("make={family}")], 0);
    }
    let told: Vec<u32> = gates(&seen).iter().map(|event| event.family).collect();
    for family in odd {
        // What the kernel does not know at all is asked of nobody.
        if answers[&format!("make={family}")] == libc::EAFNOSUPPORT {
            eprintln!("SKIPPED family {family}: this kernel lacks it");
            continue;
        }
        assert_eq!(answers[&format!("make={family}")], libc::EACCES, "{family}");
        assert!(told.contains(&(family as u32)), "{told:?}");
    }
}

#[test]
fn each_session_has_addresses_of_its_own() {
    let Some(mut bench) = Bench::new("each_session_has_addresses_of_its_own") else { return };
    let server = Server::new("127.0.0.1");
    let target = [format!("tcp={}", server.address)];
    let mut set = RuleSet::default();
    say(&mut set, "127.0.0.1/32", &[range(server.port(), server.port(), true)]);
    let (_waiting_session, _waiting) = bench.enrolled(Role::Launched, &["sleep"]);
    let refused = tried(&mut bench, |_, _| set, &target).0;
    let passed = tried(&mut bench, |_, _| RuleSet::default(), &target).0;
    assert_eq!((refused[&target[0]], passed[&target[0]]), (refusal(&bench), 0));
    assert_eq!(server.got().0, 1);
}

#[test]
fn there_is_no_moment_without_rules() {
    let Some(mut bench) = Bench::new("there_is_no_moment_without_rules") else { return };
    let server = Server::new("127.0.0.1");
    let (session, mut actor) = bench.enrolled(Role::Launched, &["hammer", &server.address.to_string(), "2000"]);
    let set = |extra: u16| {
        let mut set = RuleSet::default();
        say(&mut set, "127.0.0.1/32", &[range(server.port(), server.port(), true), range(extra, extra, false)]);
        set
    };
    bench.kernel.set_rules(session, &set(1), &RuleSet::default()).unwrap();
    actor.go();
    let begin = Instant::now();
    let mut swaps = 0;
    while begin.elapsed() < Duration::from_millis(1900) {
        bench.kernel.set_rules(session, &set(swaps), &RuleSet::default()).unwrap();
        bench.kernel.sweep_rules(&|_| true).unwrap();
        swaps += 1;
        // What is replaced stays for a while, and there is room for so many.
        std::thread::sleep(Duration::from_millis(2));
    }
    let told = actor.wait_for("hammered");
    assert!(actor.end().success());
    let (tried, reached) = told.split_once(' ').unwrap();
    eprintln!("{tried} connects under {swaps} changes of the rules");
    assert!(tried.parse::<u64>().unwrap() > 100 && swaps > 10);
    assert_eq!((reached, server.got()), ("0", (0, 0)));
}
