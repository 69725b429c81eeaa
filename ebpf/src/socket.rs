//! Where processes connect, send and bind: cgroup programs. They tell every attempt, and refuse what the rules refuse:
//! alone where no LSM program loads, else as a second line.

use core::ffi::c_void;

use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use ringfence_common::limits::UNIX_NAME_BYTES;
use ringfence_common::maps::{Attempt, TIER_UNIX_BY_PEER, TaskState};
use ringfence_common::mark::Mark;
use ringfence_common::record::{
    CONNECT_NAME_CUT, Connect, GATE_FALLBACK, GateHead, KIND_CONNECT, KIND_DENIED, KIND_NOTED,
};
use ringfence_common::rules::{UNIX_ALL_OFF, gate};

use crate::address::{AF_INET, AF_INET6, AF_UNIX, Address, gate_of_type};
use crate::emit;
use crate::fields::*;
use crate::gate::{self as gates, EPERM, Subject};
use crate::lsm::unix::{Name, Said, said};
use crate::maps::{ATTEMPTS, RULES};
use crate::marks;

/// What a cgroup program answers to let something pass.
const PASS: i32 = 1;
/// What it answers to refuse: the caller gets EPERM.
const REFUSE: i32 = 0;

/// `connect` to IPv4.
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/connect4")]
pub fn rf_connect4(ctx: *mut bpf_sock_addr) -> i32 {
    reach(ctx, AF_INET)
}

/// `connect` to IPv6.
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/connect6")]
pub fn rf_connect6(ctx: *mut bpf_sock_addr) -> i32 {
    reach(ctx, AF_INET6)
}

/// A datagram with an address, IPv4.
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/sendmsg4")]
pub fn rf_sendmsg4(ctx: *mut bpf_sock_addr) -> i32 {
    reach(ctx, AF_INET)
}

/// A datagram with an address, IPv6.
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/sendmsg6")]
pub fn rf_sendmsg6(ctx: *mut bpf_sock_addr) -> i32 {
    reach(ctx, AF_INET6)
}

/// `bind` to IPv4.
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/bind4")]
pub fn rf_bind4(ctx: *mut bpf_sock_addr) -> i32 {
    bind(ctx, AF_INET)
}

/// `bind` to IPv6.
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/bind6")]
pub fn rf_bind6(ctx: *mut bpf_sock_addr) -> i32 {
    bind(ctx, AF_INET6)
}

/// `connect` to a unix socket (kernel 6.7). The object's section says connect4, since the library knows no other:
/// the loader loads and attaches it itself.
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/connect4")]
pub fn rf_connect_unix(ctx: *mut bpf_sock_addr) -> i32 {
    unix(ctx)
}

/// A datagram to a unix socket (kernel 6.7). For its section see [`rf_connect_unix`].
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/sendmsg4")]
pub fn rf_sendmsg_unix(ctx: *mut bpf_sock_addr) -> i32 {
    unix(ctx)
}

/// Who acts, and since when the process lives.
struct Actor {
    /// As it is judged.
    mark: Mark,
    start_ns: u64,
    /// Not where the mirror is used.
    state: Option<&'static mut TaskState>,
}

/// The running process if it is marked.
#[inline(always)]
fn actor() -> Option<Actor> {
    if global(&USE_MIRROR) != 0 {
        let mirrored = marks::mirrored()?;
        return Some(Actor { mark: gates::judged(mirrored.mark), start_ns: mirrored.start_ns, state: None });
    }
    let task = current();
    let state = marks::current(task)?;
    let start_ns = marks::start_ns(marks::leader(task));
    Some(Actor { mark: gates::judged(state.mark), start_ns, state: Some(state) })
}

/// Tells a refusal, and that the present system call's answer is told by it.
#[inline(always)]
fn deny(actor: Actor, head: GateHead, subject: Subject) -> i32 {
    match actor.state {
        Some(state) => state.denied = 1,
        None => {
            let watch = marks::state().map_or(0, |state| state.watch);
            if watch != 0 {
                let thread = bpf_get_current_pid_tgid() as u32;
                let _ = ATTEMPTS.insert(&thread, &Attempt { attempt: 0, watch, denied: 1 }, 0);
            }
        }
    }
    let head = GateHead { flags: GATE_FALLBACK, ..head };
    gates::tell::<KIND_DENIED>(&actor.mark, actor.start_ns, head, subject);
    REFUSE
}

/// The address that the caller named, and the socket's type.
#[inline(always)]
fn address(ctx: *mut bpf_sock_addr, family: u32) -> (Address, u32) {
    let mut words = [0u32; 4];
    // SAFETY: the context of this kind of program; the verifier checks each field.
    let (port, socket_type) = unsafe {
        if family == AF_INET {
            words[0] = (&raw const (*ctx).user_ip4).read_volatile();
        } else {
            for (index, word) in words.iter_mut().enumerate() {
                *word = (&raw const (*ctx).user_ip6[index]).read_volatile();
            }
        }
        ((&raw const (*ctx).user_port).read_volatile(), (&raw const (*ctx).type_).read_volatile())
    };
    (Address { family, port: u32::from(u16::from_be(port as u16)), words }, socket_type)
}

#[inline(always)]
fn reach(ctx: *mut bpf_sock_addr, family: u32) -> i32 {
    let Some(actor) = actor() else { return PASS };
    let (address, socket_type) = address(ctx, family);
    let gate = gate_of_type(socket_type);
    if address.refused(&actor.mark, gate) {
        return deny(actor, address.head(gate, EPERM), Subject::None);
    }
    let attempt = now();
    marks::attempts(actor.state, attempt);
    let Some(event) = emit::begin(&actor.mark, KIND_CONNECT) else { return PASS };
    event.send(Connect {
        header: emit::header_with(KIND_CONNECT, size_of::<Connect>(), actor.mark, actor.start_ns),
        attempt,
        family,
        port: address.port,
        socket_type,
        flags: 0,
        name_len: 0,
        peer_pid: 0,
        address: address.bytes(),
        name: [0; UNIX_NAME_BYTES],
    });
    PASS
}

#[inline(always)]
fn bind(ctx: *mut bpf_sock_addr, family: u32) -> i32 {
    let Some(actor) = actor() else { return PASS };
    let (address, _) = address(ctx, family);
    if !address.refused(&actor.mark, gate::BIND) {
        return PASS;
    }
    deny(actor, address.head(gate::BIND, EPERM), Subject::None)
}

/// Here only the caller's string is known. It can lead anywhere, so that where paths are refused either all are or
/// none is; an abstract name is the socket.
#[inline(always)]
fn unix(ctx: *mut bpf_sock_addr) -> i32 {
    let Some(actor) = actor() else { return PASS };
    if marks::state().is_some_and(|state| state.tier & TIER_UNIX_BY_PEER != 0) {
        return PASS;
    }
    // The verifier offers no field for a unix address: the kernel's own context struct is read instead.
    let context: *const c_void = ctx.cast();
    let address = pointer(context, &OFF_SOCK_ADDR_UADDR);
    let address_len: u32 = read(context, &OFF_SOCK_ADDR_UADDRLEN);
    let name = Name::new(address.wrapping_byte_add(2), address_len.saturating_sub(2));
    let (gate, unresolved) = unresolved(&actor.mark, &name);
    match unresolved {
        Unresolved::Refused(label) => {
            let head = GateHead { label, family: AF_UNIX, ..gates::head(gate, EPERM) };
            return deny(actor, head, name.subject());
        }
        Unresolved::Noted => {
            let head = GateHead { family: AF_UNIX, flags: GATE_FALLBACK, ..gates::head(gate, 0) };
            gates::tell::<KIND_NOTED>(&actor.mark, actor.start_ns, head, name.subject());
        }
        Unresolved::Passes => {}
    }
    let attempt = now();
    marks::attempts(actor.state, attempt);
    let Some(event) = emit::begin(&actor.mark, KIND_CONNECT) else { return PASS };
    let socket_type = u32::from(read::<u16>(pointer(context, &OFF_SOCK_ADDR_SK), &OFF_SOCK_TYPE));
    let mut kept = [0u8; UNIX_NAME_BYTES];
    let whole = name.copy(&mut kept);
    event.send(Connect {
        header: emit::header_with(KIND_CONNECT, size_of::<Connect>(), actor.mark, actor.start_ns),
        attempt,
        family: AF_UNIX,
        port: 0,
        socket_type,
        flags: if whole { 0 } else { CONNECT_NAME_CUT },
        name_len: name.kept(),
        peer_pid: 0,
        address: [0; 16],
        name: kept,
    });
    PASS
}

/// What becomes of a peer that nobody resolved.
enum Unresolved {
    /// Refused, by the rule of this label.
    Refused(u32),
    /// Let pass, and told: it may be one that the rules refuse.
    Noted,
    /// Not refused wherever the name leads.
    Passes,
}

#[inline(always)]
fn unresolved(mark: &Mark, name: &Name) -> (u32, Unresolved) {
    let is_abstract = name.is_abstract();
    let gate = if is_abstract { gate::ABSTRACT } else { gate::UNIX };
    // SAFETY: rule sets are never changed.
    let Some(rules) = (unsafe { RULES.get(&mark.generation) }) else { return (gate, Unresolved::Passes) };
    if is_abstract {
        match said(mark, name.object(mark)) {
            Said::Refused(label) => return (gate, Unresolved::Refused(label)),
            Said::Allowed => return (gate, Unresolved::Passes),
            Said::Nothing => {}
        }
    }
    if rules.refuse & (1 << gate) == 0 {
        return (gate, Unresolved::Passes);
    }
    (gate, if rules.refuse & UNIX_ALL_OFF != 0 { Unresolved::Refused(0) } else { Unresolved::Noted })
}
