//! Events of gates in entries and findings.

use super::super::entry::Verdict;
use super::super::join::JoinerConfig;
use super::super::refusal::{LaunchContext, RefusedCall};
use super::super::scene::{Ledger, Scene, bytes};
use super::*;
use crate::ledger::refusal::Attribution;
use crate::policy::judge::Outcome::NoOverride;
use crate::probe::protocol::{ObservationKind, Peer, ResolvedPeer};

fn event(gate: u32, errno: u16) -> GateEvent {
    GateEvent {
        gate,
        errno,
        label: 0,
        file: None,
        peer: None,
        path: Default::default(),
        path_in_file_system: false,
        too_deep: false,
        killed: false,
        fallback: false,
        by_git: false,
        other_pid: 0,
        family: 0,
        detail: 0,
    }
}

/// Knows one rule by its label, and one process.
struct Names;

impl Attribution for Names {
    fn layer(&self, _: &str, _: &LaunchContext, _: RefusedCall<'_>) -> Attributed {
        Attributed { layer: Layer::Other, inferred: true, rule: None }
    }

    fn gate(&self, _: &str, _: &Mark, event: &GateEvent) -> Named {
        Named {
            rule: (event.label == 7).then(|| "docker".to_owned()),
            other: (event.other_pid == 1234).then(|| "ringfenced".to_owned()),
            own: event.other_pid == 1234,
        }
    }
}

fn scene() -> Scene {
    let mut scene = Scene::new();
    let config = JoinerConfig::plain(Default::default()).unwrap();
    scene.ledger = Ledger::with(JoinerConfig { attribution: Box::new(Names), ..config });
    scene.open(crate::host::HostKind::ClaudeCode);
    scene
}

#[test]
fn refusals_read_as_what_was_tried() {
    let words = |event: &GateEvent| {
        let named = Names.gate("", &Mark { session: 1, launch: 1, generation: 1, role: Role::Launched }, event);
        in_words(event, &named)
    };
    let v4 = Some(Peer::V4([10, 0, 0, 1], 443));
    assert_eq!(words(&GateEvent { peer: v4.clone(), ..event(gate::CONNECT, 13) }), "connect 10.0.0.1:443");
    assert_eq!(words(&GateEvent { peer: v4, ..event(gate::DATAGRAM, 13) }), "send to 10.0.0.1:443");
    assert_eq!(words(&GateEvent { path: bytes("/x/y"), ..event(gate::EXEC, 13) }), "run /x/y");
    let docker = Some(Peer::UnixPath(bytes("/run/docker.sock")));
    assert_eq!(words(&GateEvent { peer: docker, label: 7, ..event(gate::UNIX, 1) }), "unix docker (/run/docker.sock)");
    let deep = GateEvent { path: bytes("/w/.git/hooks/pre-commit"), too_deep: true, ..event(gate::WRITE, 13) };
    assert_eq!(words(&deep), "write /w/.git/hooks/pre-commit (too deep to be judged)");
    assert_eq!(words(&GateEvent { other_pid: 1234, ..event(gate::SIGNAL, 1) }), "signal 1234 (ringfenced)");
    assert_eq!(words(&GateEvent { other_pid: 5, ..event(gate::TRACE, 1) }), "trace 5");
    let odd = GateEvent { path: bytes("/x\x1b[2J"), ..event(gate::READ, 13) };
    assert!(!words(&odd).contains('\x1b'));
}

#[test]
fn what_a_gate_refused_is_in_its_entry_and_makes_its_verdict() {
    let mut scene = scene();
    scene.decide("c1", "make", NoOverride);
    let (shell, launch) = scene.launch("make");
    let connect = GateEvent { peer: Some(Peer::V4([10, 0, 0, 1], 443)), ..event(gate::CONNECT, 13) };
    let kill = GateEvent { path: bytes("/x/y"), killed: true, fallback: true, ..event(gate::EXEC, 13) };
    let send = GateEvent { fallback: true, peer: Some(Peer::V4([9, 9, 9, 9], 53)), ..event(gate::DATAGRAM, 1) };
    for one in [connect.clone(), connect, kill, send] {
        scene.observe(shell, launch, Role::Launched, ObservationKind::Gate(one));
    }
    scene.exit(shell, launch, 1);
    scene.result("c1", true, Some(1));
    let entry = scene.ledger.call("c1");
    assert_eq!(entry.verdict, Verdict::RefusedInKernel);
    let told: Vec<_> = entry.refusals.iter().map(|r| (r.layer, r.what.as_str(), r.count, r.inferred)).collect();
    assert_eq!(
        told,
        [
            (Layer::BpfLsm, "connect 10.0.0.1:443", 2, false),
            (Layer::Signal, "run /x/y", 1, false),
            (Layer::Cgroup, "send to 9.9.9.9:53", 1, false)
        ]
    );
    assert_eq!((entry.counts.refusals, entry.counts.connections), (4, 3));
    assert_eq!(entry.connections[0].layer, Some(Layer::BpfLsm));
    assert!(entry.findings.is_empty(), "{:?}", entry.findings);
}

#[test]
fn an_attack_on_ringfence_is_an_alarm_of_its_entry() {
    let mut scene = scene();
    scene.decide("c1", "make", NoOverride);
    let (shell, launch) = scene.launch("make");
    let kill = GateEvent { other_pid: 1234, ..event(gate::SIGNAL, 1) };
    for _ in 0..3 {
        scene.observe(shell, launch, Role::Launched, ObservationKind::Gate(kill.clone()));
    }
    scene.exit(shell, launch, 1);
    scene.result("c1", true, Some(1));
    let found: Vec<_> = scene.ledger.findings.iter().filter(|f| f.kind == "self_protection").collect();
    assert_eq!(found.len(), 1, "{:?}", scene.ledger.findings);
    assert_eq!((found[0].gravity, found[0].entry.is_some()), (Gravity::Alarm, true));
    assert!(found[0].text.contains("signal 1234 (ringfenced)"), "{}", found[0].text);
}

#[test]
fn refusals_outside_calls_are_findings_and_bounded() {
    let mut scene = scene();
    let host = scene.host;
    for port in 0..1000 {
        let refused = GateEvent { peer: Some(Peer::V4([10, 0, 0, 1], port)), ..event(gate::CONNECT, 13) };
        scene.observe(host, 0, Role::Host, ObservationKind::Gate(refused));
    }
    let own = GateEvent { other_pid: 1234, ..event(gate::TRACE, 1) };
    scene.observe(host, 0, Role::Host, ObservationKind::Gate(own));
    scene.tick(10);
    let kinds = |kind: &str| scene.ledger.findings.iter().filter(|f| f.kind == kind).count();
    assert_eq!((kinds("refused_outside_call"), kinds("self_protection")), (MOST_TOLD, 1));
}

#[test]
fn what_passed_and_is_to_be_known_is_a_finding_and_no_refusal() {
    let mut scene = scene();
    scene.decide("c1", "make", NoOverride);
    let (shell, launch) = scene.launch("make");
    let write = |by_git, path| GateEvent { by_git, path: bytes(path), ..event(gate::WRITE, 0) };
    let unresolved = GateEvent { fallback: true, peer: Some(Peer::UnixPath(bytes("/tmp/x"))), ..event(gate::UNIX, 0) };
    // A launcher's notice, and somebody who tries a socket that is not for it.
    let ours =
        |path: &str| GateEvent { other_pid: 1234, peer: Some(Peer::UnixPath(bytes(path))), ..unresolved.clone() };
    let (notice, control) = (ours("/r/hook.sock"), ours("/r/control.sock"));
    for one in [write(false, "/w/.envrc"), write(true, "/w/.mcp.json"), notice, control, unresolved] {
        scene.observe(shell, launch, Role::Launched, ObservationKind::Gate(one));
    }
    let host = scene.host;
    scene.observe(host, 0, Role::Host, ObservationKind::Gate(write(false, "/h/.claude/settings.json")));
    scene.exit(shell, launch, 0);
    scene.result("c1", false, None);
    let entry = scene.ledger.call("c1");
    assert_eq!((entry.verdict, entry.refusals.len()), (Verdict::Confirmed, 0));
    let mut kinds: Vec<_> = scene.ledger.findings.iter().map(|f| f.kind.as_str()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["deferred_execution", "git_wrote", "host_wrote", "unresolved_peer"]);
    // One finding of a kind and call: the first that is one.
    let peer = scene.ledger.findings.iter().find(|f| f.kind == "unresolved_peer").unwrap();
    assert!(peer.text.contains("/r/control.sock"), "{}", peer.text);
}

#[test]
fn a_listener_outside_the_tree_is_in_the_connection() {
    let mut scene = scene();
    scene.decide("c1", "make", NoOverride);
    let (shell, launch) = scene.launch("make");
    let peer = |inside, pid| ObservationKind::Connect {
        attempt: 0,
        peer: Peer::UnixPath(bytes("/run/agent")),
        socket_type: 1,
        refused: false,
        resolved: Some(ResolvedPeer { inside, pid }),
    };
    scene.observe(shell, launch, Role::Launched, peer(false, 77));
    scene.observe(shell, launch, Role::Launched, peer(true, 78));
    scene.exit(shell, launch, 0);
    scene.result("c1", false, None);
    let brokers: Vec<_> = scene.ledger.call("c1").connections.iter().map(|c| c.broker).collect();
    assert_eq!(brokers, [Some(77), None]);
}
