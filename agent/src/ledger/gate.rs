//! What the gates of the kernel programs refused, or let pass and noted: refusals of their launch, or findings.
#![forbid(unsafe_code)]

use ringfence_common::rules::gate;

use super::entry::{Gravity, Layer};
use super::fold::{Target, peer_in_words};
use super::observe::Surroundings;
use super::refusal::{Attributed, WHAT_BYTES};
use super::text::{cut, shown, shown_text};
use super::tree::{Ns, Owner, Place, Tree};
use crate::probe::protocol::{GateEvent, Mark, Peer, Role};
use crate::process::ProcessId;

/// Different findings about gates that one session has.
const MOST_TOLD: usize = 64;
/// Findings of one launch that wait until it is known whose it is.
const MOST_WAITING: usize = 16;

/// What the service knows of a gate's event beyond what the kernel said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The rule, by its name in policy or fence.
    pub rule: Option<String>,
    /// The program of the process that was to be signalled or traced.
    pub other: Option<String>,
    /// It was aimed at Ringfence itself: its processes, sockets, state, programs or settings.
    pub own: bool,
}

/// A finding that a gate's event makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GateFinding {
    kind: &'static str,
    gravity: Gravity,
    text: String,
}

/// Which layer decided.
pub(super) fn layer(event: &GateEvent) -> Layer {
    match event {
        GateEvent { killed: true, .. } => Layer::Signal,
        GateEvent { fallback: true, .. } => Layer::Cgroup,
        _ => Layer::BpfLsm,
    }
}

/// What was tried, in words.
pub(super) fn in_words(event: &GateEvent, named: &Named) -> String {
    let path = || {
        let mut path = shown(&event.path.bytes);
        if event.path.truncated {
            path.insert(0, '…');
        }
        if path.is_empty() { "an unnamed file".to_owned() } else { path }
    };
    let peer = || event.peer.as_ref().map_or("an unknown address".to_owned(), |peer| peer_in_words(peer).1);
    let other = || match &named.other {
        Some(program) => format!("{} ({})", event.other_pid, shown_text(program)),
        None => event.other_pid.to_string(),
    };
    let mut what = match event.gate {
        gate::EXEC => format!("run {}", path()),
        gate::EXEC_ANONYMOUS => format!("run a file that no name leads to ({})", path()),
        gate::CONNECT => format!("connect {}", peer()),
        gate::DATAGRAM => format!("send to {}", peer()),
        gate::BIND => format!("bind {}", peer()),
        gate::LISTEN => "listen on an internet socket".to_owned(),
        gate::UNIX | gate::ABSTRACT => match &named.rule {
            Some(name) => format!("unix {} ({})", shown_text(name), peer()),
            None => format!("unix {}", peer()),
        },
        gate::FAMILY => format!("open a socket of family {}", event.family),
        gate::TRACE => format!("trace {}", other()),
        gate::SIGNAL => format!("signal {}", other()),
        gate::NAMESPACE => "make a user namespace".to_owned(),
        gate::BPF => "bpf".to_owned(),
        gate::READ => format!("read {}", path()),
        gate::WRITE => format!("write {}", path()),
        gate::METADATA => format!("change mode, owner or attributes of {}", path()),
        gate::RECEIVE => format!("take over the open file {}", path()),
        gate::FORK => "start a process that could not be marked".to_owned(),
        other => format!("gate {other}"),
    };
    if event.too_deep {
        what.push_str(" (too deep to be judged)");
    }
    cut(what, WHAT_BYTES)
}

/// Whether the peer is the socket that hooks and launchers speak to, by its name.
fn speaks_to_hooks(event: &GateEvent) -> bool {
    matches!(&event.peer, Some(Peer::UnixPath(path)) if path.bytes.ends_with(b"/hook.sock"))
}

/// The finding that goes with an event; most refusals inside a launch make none: they are in its entry.
fn finding(event: &GateEvent, named: &Named, mark: &Mark, what: &str) -> Option<GateFinding> {
    let layer = layer(event);
    let made = |kind, gravity, text| Some(GateFinding { kind, gravity, text });
    if event.errno != 0 {
        return match named.own {
            true => made(
                "self_protection",
                Gravity::Alarm,
                format!("against Ringfence itself: {what} (refused by {layer})"),
            ),
            false => None,
        };
    }
    match (event.gate, mark.role) {
        // Every launcher tells the service of its launch; whoever else speaks there is refused by the service.
        (gate::UNIX, Role::Launched) if named.own && speaks_to_hooks(event) => None,
        (gate::UNIX | gate::ABSTRACT, _) => {
            made("unresolved_peer", Gravity::Note, format!("{what}: who listens there is known by its name only"))
        }
        (gate::WRITE, _) if event.by_git => {
            made("git_wrote", Gravity::Note, format!("the system's git changed a protected name: {what}"))
        }
        (gate::WRITE, Role::Host) => {
            made("host_wrote", Gravity::Note, format!("the host changed its own settings: {what}"))
        }
        (gate::WRITE, _) => {
            made("deferred_execution", Gravity::Warning, format!("{what}: another program may run what is in it later"))
        }
        _ => made("noted", Gravity::Note, format!("passed, and is to be known: {what}")),
    }
}

impl Tree {
    /// Takes what a gate did.
    pub(super) fn gated(
        &mut self,
        process: ProcessId,
        mark: &Mark,
        time_ns: Ns,
        event: &GateEvent,
        around: &Surroundings<'_>,
    ) {
        let session = self.current().map(|s| s.summary.id.clone()).unwrap_or_default();
        let named = around.attribution.gate(&session, mark, event);
        let what = in_words(event, &named);
        let found = finding(event, &named, mark, &what);
        let Some(Place::Launch(key)) = self.place_of(process, mark, time_ns) else {
            let layer = layer(event);
            let who = if mark.role == Role::Hook { "a hook" } else { "the host, outside any call," };
            let refused = (event.errno != 0).then(|| GateFinding {
                kind: "refused_outside_call",
                gravity: Gravity::Warning,
                text: format!("{who} was refused: {what} ({layer})"),
            });
            if let Some(GateFinding { kind, gravity, text }) = found.or(refused) {
                self.tell_of_gate(&session, None, kind, gravity, &text);
            }
            return;
        };
        let Some(launch) = self.launches.get_mut(&key) else { return };
        if event.errno != 0 {
            let by = Attributed { layer: layer(event), inferred: false, rule: named.rule };
            if let Some(peer) = &event.peer
                && matches!(event.gate, gate::CONNECT | gate::DATAGRAM | gate::UNIX | gate::ABSTRACT)
            {
                let socket_type = match event.gate {
                    gate::CONNECT => 1,
                    gate::DATAGRAM => 2,
                    _ => 0,
                };
                let broker = (event.other_pid != 0).then_some(event.other_pid);
                let target = Target { peer, socket_type, broker };
                launch.fold.connection_refused(process, time_ns, target, event.errno, by.layer);
            }
            launch.fold.refused(process.pid, event.errno, what, by);
        }
        if let Some(found) = found
            && launch.gate_findings.len() < MOST_WAITING
            && !launch.gate_findings.contains(&found)
        {
            launch.gate_findings.push(found);
            self.with_gate_findings.insert(key);
        }
        self.touch_launch(key);
    }

    /// Findings of launches of which it is known by now whose they are.
    pub(super) fn tell_gate_findings(&mut self) {
        for key in self.with_gate_findings.clone() {
            let Some(launch) = self.launches.get_mut(&key) else {
                self.with_gate_findings.remove(&key);
                continue;
            };
            let item = match launch.owner {
                Owner::Nobody => continue,
                Owner::Item(item) => Some(item),
                Owner::Host => None,
            };
            let found = std::mem::take(&mut launch.gate_findings);
            self.with_gate_findings.remove(&key);
            let of_item = item.and_then(|item| self.items.get(&item)).map(|item| item.session.clone());
            let session = of_item.or_else(|| self.current().map(|s| s.summary.id.clone())).unwrap_or_default();
            for GateFinding { kind, gravity, text } in found {
                self.tell_of_gate(&session, item, kind, gravity, &text);
            }
        }
    }

    fn tell_of_gate(&mut self, session: &str, item: Option<u64>, kind: &str, gravity: Gravity, text: &str) {
        let told = (session.to_owned(), item, text.to_owned());
        if self.told_of_gates.contains(&told) {
            return;
        }
        // What is aimed at Ringfence itself is told whatever else was.
        if self.told_of_gates.len() >= MOST_TOLD && gravity != Gravity::Alarm {
            return;
        }
        if self.told_of_gates.len() < 2 * MOST_TOLD {
            self.told_of_gates.insert(told);
        }
        self.find(session, item, kind, gravity, text);
    }
}

#[cfg(test)]
mod tests;
