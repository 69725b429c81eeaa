//! A session's two rule sets: first what they speak of is found and opened, then, when the probe has said how the kernel
//! keys it, they are made.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use ringfence_common::rules::{
    OBJECT_EXEC_ALLOWED, OBJECT_EXEC_REFUSED, OBJECT_SOCKET_ALLOWED, OBJECT_SOCKET_HOOKS, OBJECT_SOCKET_REFUSED,
    UNIX_ALL_OFF, gate,
};
use serde::Serialize;

use super::addresses::{self, Linear, TooManyRanges};
use super::brokers::{self, Brokers, BrokersError, Present, Surroundings};
use super::files::{Files, Index};
use super::labels::Labels;
use super::names::{self, NameError};
use super::protected::{ProtectedError, ProtectedNames, Side};
use crate::fence::compile::{ToolPlaces, temporary_directory};
use crate::fence::file::{
    Addresses, Exec, Fence, Network, NetworkMode, OutsideGate, PortSpan, ProcessGate, Protocol, Target, Unix, UnixMode,
};
use crate::fence::named::Named;
use crate::fence::tree::Tree;
use crate::host::HostKind;
use crate::probe::protocol::FileId;
use crate::probe::rules::{AbstractRule, ObjectRule, RuleSet};

/// Most entries of one rule set.
pub const MOST_ENTRIES: usize = 1 << 15;

/// Where Ringfence's own things are.
#[derive(Clone, Debug)]
pub struct OwnPlaces {
    /// Holds `hook.sock` and `control.sock`.
    pub runtime_dir: PathBuf,
    /// History, plans, passphrase.
    pub state_dir: PathBuf,
    /// Directories of policy files.
    pub policies: Vec<PathBuf>,
    /// The installed programs.
    pub programs: PathBuf,
    /// The probe's socket.
    pub probe_socket: PathBuf,
}

/// What a session's rules are made for.
#[derive(Clone, Debug)]
pub struct RulesRequest {
    /// For what comes of a launch.
    pub launched: Fence,
    /// For the host and what it starts for itself.
    pub host: Fence,
    /// Which host.
    pub host_kind: HostKind,
    /// Our id of the session.
    pub session: String,
    /// The working tree.
    pub tree: Tree,
    /// The person's home.
    pub home: PathBuf,
    /// The person's uid.
    pub uid: u32,
    /// Tool caches and the like.
    pub tools: ToolPlaces,
    /// The host's configuration directories.
    pub host_directories: Vec<PathBuf>,
    /// Ringfence's own.
    pub own: OwnPlaces,
    /// The service's environment.
    pub environment: HashMap<OsString, OsString>,
    /// Addresses of domain names that the fences name.
    pub domains: HashMap<String, Vec<IpAddr>>,
}

/// Why there are no rules.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// Addresses.
    #[error(transparent)]
    Addresses(#[from] TooManyRanges),
    /// Protected names.
    #[error(transparent)]
    Protected(#[from] ProtectedError),
    /// Their form.
    #[error(transparent)]
    Names(#[from] NameError),
    /// Brokers.
    #[error(transparent)]
    Brokers(#[from] BrokersError),
    /// A fence grants a broker that is not known.
    #[error("fence {0}: no broker is called {1:?} (see policies/brokers.toml)")]
    UnknownBroker(String, String),
    /// A path names no place.
    #[error("fence {0}: {1} is neither absolute nor starts with ~/ or a known @place")]
    Path(String, String),
    /// Over [`MOST_ENTRIES`].
    #[error("fence {0} needs {1} entries in the kernel's maps, and a rule set takes {MOST_ENTRIES}")]
    TooMany(String, usize),
    /// The probe answered for another number of files.
    #[error("the probe identified {0} of {1} files")]
    NotIdentified(usize, usize),
}

/// What the rules say, for a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// For what comes of a launch.
    pub launched: ExplainedSet,
    /// For the host and what it starts for itself.
    pub host: ExplainedSet,
    /// What was left out.
    pub remarks: Vec<String>,
}

/// One rule set, for a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExplainedSet {
    /// The fence.
    pub fence: String,
    /// What is refused unless something allows it.
    pub refused_by_default: Vec<&'static str>,
    /// Addresses, with what they came from.
    pub addresses: Vec<ExplainedAddress>,
    /// Unix sockets, with their brokers.
    pub sockets: Vec<ExplainedSocket>,
    /// Protected names: path and what is done.
    pub names: Vec<(PathBuf, Vec<&'static str>)>,
    /// Entries in the kernel's maps.
    pub entries: usize,
}

/// One rule about addresses, for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedAddress {
    /// Address and length.
    pub network: String,
    /// First and last port.
    pub ports: (u16, u16),
    /// Refused, else allowed.
    pub refused: bool,
    /// What it is called: for a domain name, that name.
    pub name: String,
}

/// One unix socket, for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedSocket {
    /// Path, or `@` and the abstract name.
    pub socket: String,
    /// The broker, or what allows it.
    pub name: String,
    /// Refused, else allowed.
    pub refused: bool,
}

/// One rule set, files still by their place in [`Files`].
#[derive(Clone, Debug, Default, Hash)]
struct Draft {
    refuse: u64,
    families: u64,
    objects: BTreeMap<Index, (u32, u32, u32)>,
    rest: Rest,
}

/// What needs no file.
#[derive(Clone, Debug, Default)]
struct Rest(RuleSet);

impl Hash for Rest {
    fn hash<H: Hasher>(&self, into: &mut H) {
        let RuleSet { refuse: _, families: _, addresses4, addresses6, objects: _, names, abstract_names } = &self.0;
        for rule in addresses4 {
            (rule.address, rule.bits, &rule.ports).hash(into);
        }
        for rule in addresses6 {
            (rule.address, rule.bits, &rule.ports).hash(into);
        }
        for rule in names {
            (rule.state, &rule.name, rule.bits, rule.label, rule.next).hash(into);
        }
        for rule in abstract_names {
            (&rule.name, rule.bits, rule.label).hash(into);
        }
    }
}

/// What the rules speak of, found and held open.
#[derive(Debug)]
pub struct Gathered {
    files: Files,
    launched: Draft,
    host: Draft,
    labels: Labels,
    explained: Explained,
    linear: [Vec<Linear>; 2],
}

/// A session's rules.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// For what comes of a launch.
    pub launched: RuleSet,
    /// For the host and what it starts for itself.
    pub host: RuleSet,
    /// What refusals are called.
    pub labels: Labels,
    /// The rules for a person.
    pub explained: Explained,
    /// The rules about addresses as they were written, launched first: they say what a refused address is called.
    pub linear: [Vec<Linear>; 2],
}

/// Finds and opens what a session's rules speak of. Reads directories: not for a thread that must not wait.
pub fn gather(request: &RulesRequest) -> Result<Gathered, RulesError> {
    let brokers = Brokers::shipped()?;
    let protected = ProtectedNames::shipped()?;
    let others = others(request);
    let temporary = temporary_directory(request.uid, &request.session);
    let named = Named {
        home: &request.home,
        tree: &request.tree,
        temporary: &temporary,
        host_directories: &request.host_directories,
        tools: &request.tools,
        others: &others,
    };
    let bound = brokers::bound();
    let at = Surroundings { named, uid: request.uid, environment: &request.environment, bound: &bound };
    let mut files = Files::default();
    let present = brokers.present(&at, &mut files)?;
    let mut gathering = Gathering {
        request,
        named,
        brokers,
        protected,
        present: &present,
        bound: &bound,
        own_addresses: addresses::own(),
        files,
        labels: Labels::default(),
    };
    let (launched, launched_explained, of_launched) = gathering.draft(&request.launched, Side::Launched)?;
    let (host, host_explained, of_host) = gathering.draft(&request.host, Side::Host)?;
    let Gathering { files, labels, .. } = gathering;
    let mut remarks = Vec::new();
    if files.left_out() > 0 {
        remarks.push(format!("{} files are over the limit of a session and have no rule", files.left_out()));
    }
    let explained = Explained { launched: launched_explained, host: host_explained, remarks };
    Ok(Gathered { files, launched, host, labels, explained, linear: [of_launched, of_host] })
}

impl Gathered {
    /// The files to identify, in order.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.files.descriptors()
    }

    /// The same for the same rules about the same files.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        (&self.launched, &self.host, self.files.identities()).hash(&mut hash);
        hash.finish()
    }

    /// The rule sets, once the probe has said how the kernel keys each file.
    pub fn finish(self, identified: &[FileId]) -> Result<Compiled, RulesError> {
        let Gathered { files, launched, host, labels, explained, linear } = self;
        if identified.len() != files.len() {
            return Err(RulesError::NotIdentified(identified.len(), files.len()));
        }
        let launched = launched.finish(identified);
        let host = host.finish(identified);
        Ok(Compiled { launched, host, labels, explained, linear })
    }
}

impl Draft {
    fn finish(self, identified: &[FileId]) -> RuleSet {
        let Draft { refuse, families, objects, rest } = self;
        let mut by_file: BTreeMap<(u32, u64, u32), ObjectRule> = BTreeMap::new();
        for (Index(at), (bits, label, state)) in objects {
            let file = identified[at];
            let new = ObjectRule { file, bits: 0, label, state };
            let rule = by_file.entry((file.device, file.inode, file.generation)).or_insert(new);
            rule.bits |= bits;
            if rule.state == 0 {
                rule.state = state;
            }
        }
        RuleSet { refuse, families, objects: by_file.into_values().collect(), ..rest.0 }
    }

    fn object(&mut self, file: Index, bits: u32, label: u32) {
        let (all, first, _) = self.objects.entry(file).or_insert((0, label, 0));
        *all |= bits;
        if *first == 0 {
            *first = label;
        }
    }
}

/// The `@names` that only rules know.
fn others(request: &RulesRequest) -> Vec<(&'static str, PathBuf)> {
    let OwnPlaces { runtime_dir, state_dir, policies, programs, probe_socket: _ } = &request.own;
    let mut others = vec![
        ("runtime-ringfence", runtime_dir.clone()),
        ("state", state_dir.clone()),
        ("programs", programs.clone()),
        ("runtime", PathBuf::from(format!("/run/user/{}", request.uid))),
    ];
    let of = |name: &str| request.environment.get(std::ffi::OsStr::new(name));
    if let Some(runtime) = of("XDG_RUNTIME_DIR").map(PathBuf::from)
        && runtime.is_absolute()
        && runtime != others[3].1
    {
        others.push(("runtime", runtime));
    }
    others.extend(policies.iter().map(|path| ("policies", path.clone())));
    let in_home = |path: &PathBuf| path.starts_with(&request.home) && *path != request.home;
    let mut on_path: Vec<PathBuf> =
        of("PATH").map(|path| std::env::split_paths(path).filter(in_home).collect()).unwrap_or_default();
    on_path.extend([".local/bin", "bin", ".cargo/bin"].map(|dir| request.home.join(dir)));
    // Tools of the project itself (node_modules/.bin, a virtual environment) are the tree's.
    on_path.retain(|path| !path.starts_with(&request.tree.top));
    on_path.sort();
    on_path.dedup();
    on_path.truncate(32);
    others.extend(on_path.into_iter().map(|path| ("path", path)));
    others
}

struct Gathering<'a> {
    request: &'a RulesRequest,
    named: Named<'a>,
    brokers: &'a Brokers,
    protected: &'a ProtectedNames,
    present: &'a [Present],
    bound: &'a [Vec<u8>],
    own_addresses: Vec<IpNet>,
    files: Files,
    labels: Labels,
}

/// `AF_UNIX`, `AF_INET`, `AF_INET6`, `AF_NETLINK`.
const FAMILIES: u64 = 1 << libc::AF_UNIX | 1 << libc::AF_INET | 1 << libc::AF_INET6 | 1 << libc::AF_NETLINK;

impl Gathering<'_> {
    fn draft(&mut self, fence: &Fence, side: Side) -> Result<(Draft, ExplainedSet, Vec<Linear>), RulesError> {
        let mut explained = ExplainedSet { fence: fence.name.clone(), ..ExplainedSet::default() };
        let mut draft = Draft { refuse: refused_by_default(fence), families: FAMILIES, ..Draft::default() };
        let linear = self.addresses(&fence.network);
        let tries = addresses::compile(&linear)?;
        (draft.rest.0.addresses4, draft.rest.0.addresses6) = (tries.v4, tries.v6);
        explained.addresses = linear
            .iter()
            .map(|rule| {
                let Linear { network, ports, gates: _, refused, name } = rule.clone();
                ExplainedAddress { network: network.to_string(), ports, refused, name }
            })
            .collect();
        self.sockets(fence, &mut draft, &mut explained)?;
        self.programs(fence, &mut draft)?;
        self.names(fence, side, &mut draft, &mut explained)?;
        explained.refused_by_default =
            (0..gate::GATES).filter(|gate| draft.refuse & 1 << gate != 0).map(gate_name).collect();
        explained.entries = draft.objects.len() + draft.rest.0.len();
        match explained.entries > MOST_ENTRIES {
            true => Err(RulesError::TooMany(fence.name.clone(), explained.entries)),
            false => Ok((draft, explained, linear)),
        }
    }

    fn addresses(&self, network: &Network) -> Vec<Linear> {
        let Network { mode, connect, bind, refuse, allow } = network;
        let mut rules = Vec::new();
        let both = 1 << gate::CONNECT | 1 << gate::DATAGRAM;
        match mode {
            NetworkMode::Loopback => {
                let own = |network: &IpNet| Linear {
                    network: *network,
                    ports: (0, u16::MAX),
                    gates: both,
                    refused: false,
                    name: "@own".into(),
                };
                rules.extend(self.own_addresses.iter().map(own));
            }
            NetworkMode::Ports => {
                for (ports, gate) in [(connect, gate::CONNECT), (bind, gate::BIND)] {
                    for (network, port) in
                        everywhere().into_iter().flat_map(|net| ports.iter().map(move |port| (net, *port)))
                    {
                        let name = "ports".to_owned();
                        rules.push(Linear { network, ports: (port, port), gates: 1 << gate, refused: false, name });
                    }
                }
            }
            NetworkMode::Off | NetworkMode::Open => {}
        }
        for (entries, refused) in [(refuse, true), (allow, false)] {
            for Addresses { name, to, ports, protocols, bind } in entries {
                let networks: Vec<IpNet> = match to {
                    Target::Own => self.own_addresses.clone(),
                    Target::Network(network) => vec![*network],
                    Target::Domain(domain) => {
                        let addresses = self.request.domains.get(domain).into_iter().flatten();
                        addresses.map(|address| IpNet::from(*address)).collect()
                    }
                };
                let mut gates = if *bind { 1 << gate::BIND } else { 0 };
                for protocol in protocols {
                    gates |= match protocol {
                        Protocol::Tcp => 1 << gate::CONNECT,
                        Protocol::Udp => 1 << gate::DATAGRAM,
                    };
                }
                let called = match to {
                    Target::Own => "@own".to_owned(),
                    Target::Network(network) => network.to_string(),
                    Target::Domain(domain) => domain.clone(),
                };
                let name = name.clone().unwrap_or(called);
                let all = [PortSpan { first: 0, last: u16::MAX }];
                let spans = if ports.is_empty() { &all[..] } else { ports };
                for network in networks {
                    for PortSpan { first, last } in spans {
                        rules.push(Linear { network, ports: (*first, *last), gates, refused, name: name.clone() });
                    }
                }
            }
        }
        rules
    }

    fn sockets(&mut self, fence: &Fence, draft: &mut Draft, explained: &mut ExplainedSet) -> Result<(), RulesError> {
        let Unix { mode: _, allow, brokers, abstract_names } = &fence.unix;
        if let Some(unknown) = brokers.iter().find(|name| !self.brokers.knows(name)) {
            return Err(RulesError::UnknownBroker(fence.name.clone(), unknown.clone()));
        }
        let shown = |socket: String, name: &str, refused: bool| ExplainedSocket { socket, name: name.into(), refused };
        // A broker that is granted and refused under another name is granted: the grant is the person's.
        let granted = |name: &str| brokers.iter().any(|broker| broker == name);
        let (mut allowed, mut names) = (Vec::new(), Vec::new());
        for present in self.present.iter().filter(|present| granted(&present.name)) {
            allowed.extend(present.sockets.iter().map(|(path, index)| (path.clone(), *index, present.name.clone())));
            names.extend(present.abstract_names.iter().map(|name| (name.clone(), present.name.clone())));
        }
        for (path, index, name) in &allowed {
            draft.object(*index, OBJECT_SOCKET_ALLOWED, 0);
            explained.sockets.push(shown(path.display().to_string(), name, false));
        }
        for (name, broker) in &names {
            draft.rest.0.abstract_names.push(AbstractRule {
                name: name.clone(),
                bits: OBJECT_SOCKET_ALLOWED,
                label: 0,
            });
            explained.sockets.push(shown(format!("@{}", String::from_utf8_lossy(name)), broker, false));
        }
        for present in self.present.iter().filter(|present| !granted(&present.name)) {
            let label = self.labels.number(&present.name);
            for (path, index) in &present.sockets {
                if !allowed.iter().any(|(_, granted, _)| granted == index) {
                    draft.object(*index, OBJECT_SOCKET_REFUSED, label);
                    explained.sockets.push(shown(path.display().to_string(), &present.name, true));
                }
            }
            for name in &present.abstract_names {
                if !names.iter().any(|(granted, _)| granted == name) {
                    let (name, bits) = (name.clone(), OBJECT_SOCKET_REFUSED);
                    explained.sockets.push(shown(format!("@{}", String::from_utf8_lossy(&name)), &present.name, true));
                    draft.rest.0.abstract_names.push(AbstractRule { name, bits, label });
                }
            }
        }
        for written in allow {
            for path in self.expand(fence, written)? {
                let mut found = Vec::new();
                // A directory stands for the sockets in it.
                brokers::matching(&path, &mut self.files, &mut found);
                brokers::matching(&path.join("*"), &mut self.files, &mut found);
                for (path, index) in found {
                    draft.object(index, OBJECT_SOCKET_ALLOWED, 0);
                    explained.sockets.push(shown(path.display().to_string(), written, false));
                }
            }
        }
        for pattern in abstract_names {
            let Some(matches) = brokers::names_like(pattern) else { continue };
            let known = |name: &[u8]| draft.rest.0.abstract_names.iter().any(|rule| rule.name == name);
            let found: Vec<Vec<u8>> = self.bound.iter().filter(|name| matches(name) && !known(name)).cloned().collect();
            for name in found {
                explained.sockets.push(shown(format!("@{}", String::from_utf8_lossy(&name)), pattern, false));
                draft.rest.0.abstract_names.push(AbstractRule { name, bits: OBJECT_SOCKET_ALLOWED, label: 0 });
            }
        }
        let OwnPlaces { runtime_dir, probe_socket, .. } = &self.request.own;
        let own = [
            (runtime_dir.join("control.sock"), OBJECT_SOCKET_REFUSED),
            (probe_socket.clone(), OBJECT_SOCKET_REFUSED),
            (runtime_dir.join("hook.sock"), OBJECT_SOCKET_HOOKS),
        ];
        let label = self.labels.number("Ringfence");
        for (path, bits) in own {
            if let Some(index) = self.files.socket(&path) {
                draft.objects.insert(index, (bits, label, 0));
                explained.sockets.push(shown(path.display().to_string(), "Ringfence", true));
            }
        }
        Ok(())
    }

    fn programs(&mut self, fence: &Fence, draft: &mut Draft) -> Result<(), RulesError> {
        let Exec { refuse, only, anonymous: _ } = &fence.exec;
        for (list, bits) in [(refuse, OBJECT_EXEC_REFUSED), (only, OBJECT_EXEC_ALLOWED)] {
            for written in list {
                let label = if bits == OBJECT_EXEC_REFUSED { self.labels.number(written) } else { 0 };
                for path in self.expand(fence, written)? {
                    let mut found = Vec::new();
                    brokers::each_place(&path, &mut self.files, |path, files| found.extend(files.regular(path)));
                    found.into_iter().for_each(|index| draft.object(index, bits, label));
                }
            }
        }
        Ok(())
    }

    fn names(
        &mut self,
        fence: &Fence,
        side: Side,
        draft: &mut Draft,
        explained: &mut ExplainedSet,
    ) -> Result<(), RulesError> {
        let host = self.request.host_kind;
        let list = self.protected.of(fence, side, host, &self.named, &mut self.labels)?;
        let names::Names { anchors, steps } = names::compile(&list, &mut self.files)?;
        for (index, names::Anchor { bits, label, state }) in anchors {
            draft.object(index, bits, label);
            if let Some((_, _, of_object)) = draft.objects.get_mut(&index) {
                *of_object = state;
            }
        }
        draft.rest.0.names = steps;
        explained.names = list.into_iter().map(|name| (name.path, names::words(name.bits))).collect();
        Ok(())
    }

    fn expand(&self, fence: &Fence, written: &str) -> Result<Vec<PathBuf>, RulesError> {
        let unknown = || RulesError::Path(fence.name.clone(), written.to_owned());
        self.named.expand(written).ok_or_else(unknown)
    }
}

/// The domain names that a fence speaks of.
pub fn domains(fence: &Fence) -> impl Iterator<Item = &str> {
    let entries = fence.network.refuse.iter().chain(&fence.network.allow);
    entries.filter_map(|entry| match &entry.to {
        Target::Domain(domain) => Some(domain.as_str()),
        Target::Own | Target::Network(_) => None,
    })
}

fn everywhere() -> [IpNet; 2] {
    let any = |address: IpAddr| IpNet::new_assert(address, 0);
    [any(IpAddr::from([0; 4])), any(IpAddr::from([0u16; 8]))]
}

/// The gates that refuse what no rule allows.
fn refused_by_default(fence: &Fence) -> u64 {
    let mut gates: Vec<u32> = Vec::new();
    match fence.network.mode {
        NetworkMode::Off => gates.extend([gate::CONNECT, gate::DATAGRAM, gate::BIND, gate::LISTEN]),
        NetworkMode::Loopback => gates.extend([gate::CONNECT, gate::DATAGRAM]),
        NetworkMode::Ports => {
            gates.extend([gate::CONNECT, gate::DATAGRAM, gate::BIND]);
            // Without a bind the kernel picks a port.
            if fence.network.bind.is_empty() {
                gates.push(gate::LISTEN);
            }
        }
        NetworkMode::Open => {}
    }
    if fence.unix.mode != UnixMode::Open {
        gates.push(gate::UNIX);
    }
    if fence.scope.abstract_unix || fence.unix.mode != UnixMode::Open {
        gates.push(gate::ABSTRACT);
    }
    if fence.scope.signals {
        gates.push(gate::SIGNAL);
    }
    if !fence.exec.only.is_empty() {
        gates.push(gate::EXEC);
    }
    if !fence.exec.anonymous {
        gates.push(gate::EXEC_ANONYMOUS);
    }
    gates.extend(fence.process.refuse.iter().map(|refused| match refused {
        ProcessGate::Trace => gate::TRACE,
        ProcessGate::Namespaces => gate::NAMESPACE,
        ProcessGate::Bpf => gate::BPF,
        ProcessGate::Families => gate::FAMILY,
        ProcessGate::UnmarkedChildren => gate::FORK,
    }));
    gates.extend(fence.outside.refuse.iter().map(|refused| match refused {
        OutsideGate::Metadata => gate::METADATA,
        OutsideGate::Receive => gate::RECEIVE,
    }));
    // Where no program knows the peer, a fence without unix sockets has none at all.
    let all_off = if fence.unix.mode == UnixMode::None { UNIX_ALL_OFF } else { 0 };
    gates.into_iter().fold(all_off, |bits, gate| bits | 1 << gate)
}

/// A gate's word.
pub fn gate_name(gate: u32) -> &'static str {
    match gate {
        gate::EXEC => "exec",
        gate::EXEC_ANONYMOUS => "exec without a name",
        gate::CONNECT => "connect",
        gate::DATAGRAM => "datagram",
        gate::BIND => "bind",
        gate::LISTEN => "listen",
        gate::UNIX => "unix socket made outside",
        gate::ABSTRACT => "abstract socket made outside",
        gate::FAMILY => "socket family",
        gate::TRACE => "trace",
        gate::SIGNAL => "signal",
        gate::NAMESPACE => "namespace",
        gate::BPF => "bpf",
        gate::READ => "read",
        gate::WRITE => "write",
        gate::METADATA => "metadata",
        gate::RECEIVE => "receive",
        gate::FORK => "unmarked child",
        _ => "unknown gate",
    }
}

/// Directories of policy files beside the shipped ones, for a person whose home is `home`.
pub fn policy_directories(home: &Path) -> Vec<PathBuf> {
    vec![home.join(".config/ringfence")]
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use ringfence_common::rules::{NAME_WRITE_REFUSED, PORT_RANGES};

    use super::*;
    use crate::fence::Fences;
    use crate::fence::rules::names::walk;

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
            let ids: Vec<FileId> =
                (0..count).map(|at| FileId { device: 1, inode: at as u64 + 1, generation: 0 }).collect();
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
        let shown =
            gathered.explained.launched.sockets.iter().find(|socket| socket.socket.ends_with("run/bus")).unwrap();
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
}
