//! One of a session's two rule sets while it is made: what its fence says becomes entries of the kernel's maps.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use ringfence_common::rules::{
    OBJECT_EXEC_ALLOWED, OBJECT_EXEC_REFUSED, OBJECT_SOCKET_ALLOWED, OBJECT_SOCKET_HOOKS, OBJECT_SOCKET_REFUSED,
    UNIX_ALL_OFF, gate,
};

use super::addresses::{self, Linear};
use super::brokers::{self, Brokers, Present};
use super::compile::{MOST_ENTRIES, OwnPlaces, RulesError, RulesRequest};
use super::explained::{ExplainedAddress, ExplainedSet, ExplainedSocket, gate_name};
use super::files::{Files, Index};
use super::labels::Labels;
use super::names;
use super::protected::{ProtectedNames, Side};
use crate::fence::file::{
    Addresses, Exec, Fence, Network, NetworkMode, OutsideGate, PortSpan, ProcessGate, Protocol, Target, Unix, UnixMode,
};
use crate::fence::named::Named;
use crate::probe::protocol::FileId;
use crate::probe::rules::{AbstractRule, ObjectRule, RuleSet};

/// One rule set, files still by their place in [`Files`].
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Draft {
    pub refuse: u64,
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

impl Draft {
    pub fn finish(self, identified: &[FileId]) -> RuleSet {
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

/// What a draft is made from.
pub(super) struct Gathering<'a> {
    pub request: &'a RulesRequest,
    pub named: Named<'a>,
    pub brokers: &'a Brokers,
    pub protected: &'a ProtectedNames,
    pub present: &'a [Present],
    pub bound: &'a [Vec<u8>],
    pub own_addresses: Vec<IpNet>,
    pub files: Files,
    pub labels: Labels,
}

/// `AF_UNIX`, `AF_INET`, `AF_INET6`, `AF_NETLINK`.
const FAMILIES: u64 = 1 << libc::AF_UNIX | 1 << libc::AF_INET | 1 << libc::AF_INET6 | 1 << libc::AF_NETLINK;

impl Gathering<'_> {
    pub fn draft(&mut self, fence: &Fence, side: Side) -> Result<(Draft, ExplainedSet, Vec<Linear>), RulesError> {
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
