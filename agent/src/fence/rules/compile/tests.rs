//! Shipped fences, brokers, modes and domain names as rule sets.

use std::os::unix::net::UnixListener;

use ringfence_common::rules::*;

use super::*;
use crate::fence::Fences;
use crate::fence::file::*;
use crate::fence::rules::draft::domains;
use crate::fence::rules::explained::gate_name;
use crate::fence::rules::files::Index;
use crate::fence::rules::names::{self, walk};
use crate::probe::rules::ObjectRule;

struct Scene {
    _root: tempfile::TempDir,
    home: PathBuf,
    _listening: Vec<UnixListener>,
}

impl Scene {
    fn new() -> Scene {
        let root = tempfile::tempdir().unwrap();
        let home = std::fs::canonicalize(root.path()).unwrap();
        for dir in ["p/.git", "p/.claude", "rf/run", "rf/state", "rf/bin", "run"] {
            std::fs::create_dir_all(home.join(dir)).unwrap();
        }
        let sockets = ["rf/run/hook.sock", "rf/run/control.sock", "rf/probe.sock", "run/bus"];
        let listening = sockets.iter().map(|path| UnixListener::bind(home.join(path)).unwrap()).collect();
        Scene { _root: root, home, _listening: listening }
    }

    fn request(&self, fence: &str) -> RulesRequest {
        let fences = Fences::load().unwrap();
        let home = self.home.clone();
        RulesRequest {
            launched: fences.get(fence).unwrap().clone(),
            host: fences.get("host").unwrap().clone(),
            host_kind: HostKind::ClaudeCode,
            session: "s".into(),
            tree: Tree { top: home.join("p"), git: vec![] },
            uid: 4_000_000_000,
            tools: ToolPlaces::from_environment(&home, |_| None),
            host_directories: vec![home.join(".claude")],
            own: OwnPlaces {
                runtime_dir: home.join("rf/run"),
                state_dir: home.join("rf/state"),
                policies: policy_directories(&home),
                programs: home.join("rf/bin"),
                probe_socket: home.join("rf/probe.sock"),
            },
            environment: HashMap::from([(OsString::from("XDG_RUNTIME_DIR"), home.join("run").into_os_string())]),
            domains: HashMap::new(),
            home,
        }
    }

    /// As the probe answers on a file system whose `stat` tells the truth.
    fn identify(gathered: &Gathered) -> Vec<FileId> {
        let inode = |at: usize| FileId { device: 1, inode: at as u64 + 1, generation: 0 };
        (0..gathered.files.len()).map(inode).collect()
    }
}

fn object(compiled: &RuleSet, files: &mut Files, path: &Path) -> Option<ObjectRule> {
    use super::super::files::{Found, Ground};
    let index = match files.look(path) {
        Found::Directory(Index(at)) | Found::Socket(Index(at)) | Found::File(Index(at)) => at,
        Found::Absent | Found::Link(_) => return None,
    };
    compiled.objects.iter().find(|rule| rule.file.inode == index as u64 + 1).copied()
}

#[test]
fn every_shipped_fence_compiles_and_protects_ringfence() {
    let scene = Scene::new();
    for fence in Fences::load().unwrap().names() {
        let request = scene.request(fence);
        let mut gathered = gather(&request).unwrap();
        let mut files = std::mem::take(&mut gathered.files);
        let count = files.len();
        gathered.files = Files::default();
        let Gathered { launched, host, labels, .. } = gathered;
        let ids: Vec<FileId> = (0..count).map(|at| FileId { device: 1, inode: at as u64 + 1, generation: 0 }).collect();
        for set in [launched.finish(&ids), host.finish(&ids)] {
            let home = &scene.home;
            let control = object(&set, &mut files, &home.join("rf/run/control.sock")).unwrap();
            assert_ne!(control.bits & OBJECT_SOCKET_REFUSED, 0);
            let probe = object(&set, &mut files, &home.join("rf/probe.sock")).unwrap();
            assert_ne!(probe.bits & OBJECT_SOCKET_REFUSED, 0);
            let hook = object(&set, &mut files, &home.join("rf/run/hook.sock")).unwrap();
            assert_eq!(hook.bits & (OBJECT_SOCKET_HOOKS | OBJECT_SOCKET_REFUSED), OBJECT_SOCKET_HOOKS);
            let bus = object(&set, &mut files, &home.join("run/bus")).unwrap();
            assert_ne!(bus.bits & OBJECT_SOCKET_REFUSED, 0, "{fence}");
            assert_eq!(labels.name(bus.label), Some("session bus"));
            let mut anchor = |path: &Path| {
                let rule = object(&set, &mut files, path)?;
                Some(names::Anchor { bits: rule.bits, label: rule.label, state: rule.state })
            };
            let anchors: HashMap<PathBuf, names::Anchor> =
                ["rf/state/plans/x", "p/.claude/settings.json", ".claude/settings.json"]
                    .iter()
                    .flat_map(|path| home.join(path).ancestors().map(Path::to_owned).collect::<Vec<_>>())
                    .filter_map(|path| anchor(&path).map(|anchor| (path, anchor)))
                    .collect();
            for path in
                ["rf/state/ringfence.db", "p/.claude/settings.json", ".claude/settings.json", ".config/ringfence/x"]
            {
                let bits = walk::bits_of(&set.names, |path| anchors.get(path).copied(), &home.join(path));
                assert_ne!(bits & NAME_WRITE_REFUSED, 0, "{fence} {path}");
            }
            assert!(set.addresses4.iter().all(|rule| rule.ports.len() <= PORT_RANGES));
        }
    }
}

#[test]
fn a_granted_broker_is_allowed_and_an_unknown_one_is_an_error() {
    let scene = Scene::new();
    let mut request = scene.request("default");
    request.launched.unix.brokers = vec!["session bus".into()];
    let gathered = gather(&request).unwrap();
    let shown = gathered.explained.launched.sockets.iter().find(|socket| socket.socket.ends_with("run/bus")).unwrap();
    assert!(!shown.refused && shown.name == "session bus");
    request.launched.unix.brokers = vec!["nobody".into()];
    assert!(matches!(gather(&request), Err(RulesError::UnknownBroker(..))));
}

#[test]
fn the_same_scene_has_the_same_fingerprint_and_another_socket_another() {
    let scene = Scene::new();
    let request = scene.request("default");
    let first = gather(&request).unwrap();
    assert_eq!(first.fingerprint(), gather(&request).unwrap().fingerprint());
    std::fs::remove_file(scene.home.join("run/bus")).unwrap();
    let _new = UnixListener::bind(scene.home.join("run/bus")).unwrap();
    assert_ne!(first.fingerprint(), gather(&request).unwrap().fingerprint());
    let ids = Scene::identify(&first);
    assert!(matches!(gather(&request).unwrap().finish(&ids[1..]), Err(RulesError::NotIdentified(..))));
    let compiled = first.finish(&ids).unwrap();
    assert!(compiled.launched.len() > compiled.host.abstract_names.len());
}

#[test]
fn modes_become_gates_and_addresses() {
    let scene = Scene::new();
    let mut request = scene.request("default");
    request.launched.network.mode = NetworkMode::Loopback;
    let gathered = gather(&request).unwrap();
    let rules = &gathered.linear[0];
    let says = |address: [u8; 4], port| {
        addresses::speaking_of(rules, address.into(), port, gate::CONNECT)
            .first()
            .map(|rule| (rule.refused, rule.name.clone()))
    };
    assert_ne!(gathered.launched.refuse & 1 << gate::CONNECT, 0);
    assert_eq!(says([127, 1, 2, 3], 3000), Some((false, "@own".into())));
    assert_eq!(says([127, 0, 0, 1], 22), Some((true, "sshd".into())));
    assert_eq!(says([0, 0, 0, 0], 2375), Some((true, "docker API".into())));
    assert_eq!(says([192, 0, 2, 1], 443), None);
    let strict = gather(&scene.request("strict")).unwrap();
    for gate in
        [gate::CONNECT, gate::DATAGRAM, gate::BIND, gate::LISTEN, gate::UNIX, gate::EXEC_ANONYMOUS, gate::METADATA]
    {
        assert_ne!(strict.launched.refuse & 1 << gate, 0, "{}", gate_name(gate));
    }
    assert_eq!(strict.host.refuse, 1 << gate::FORK);
    assert_ne!(strict.launched.refuse & UNIX_ALL_OFF, 0, "no unix sockets at all");
}

#[test]
fn a_domain_name_is_the_addresses_it_was_resolved_to() {
    let scene = Scene::new();
    let mut request = scene.request("default");
    request.launched.network.refuse.push(Addresses {
        name: None,
        to: Target::Domain("api.example.org".into()),
        ports: vec![],
        protocols: vec![Protocol::Tcp],
        bind: false,
    });
    assert_eq!(domains(&request.launched).collect::<Vec<_>>(), ["api.example.org"]);
    request.domains.insert("api.example.org".into(), vec![[192, 0, 2, 7].into()]);
    let gathered = gather(&request).unwrap();
    let shown = gathered.explained.launched.addresses.iter().find(|rule| rule.name == "api.example.org").unwrap();
    assert_eq!((shown.network.as_str(), shown.refused), ("192.0.2.7/32", true));
}
