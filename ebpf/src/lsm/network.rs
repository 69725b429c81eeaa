//! Internet sockets: where they connect and send to, what they bind; and which families of sockets are made.

use core::ffi::c_void;

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::record::GateHead;
use ringfence_common::rules::{MadeBy, Rules, gate};

use crate::address::{AF_INET, AF_INET6, AF_UNIX, AF_UNSPEC, Address, gate_of_type};
use crate::fields::*;
use crate::gate::{self as gates, Actor, EACCES, Subject};
use crate::maps::{RULES, SOCKETS};

/// `SOCK_DGRAM`.
const SOCK_DGRAM: u32 = 2;
/// `SS_CONNECTED` (include/uapi/linux/net.h).
const SS_CONNECTED: u32 = 3;

/// `connect` of any internet socket. AF_UNSPEC takes a connection back.
#[lsm(hook = "socket_connect")]
pub fn rf_sock_connect(ctx: LsmContext) -> i32 {
    let Some(actor) = gates::actor() else { return 0 };
    let Some(address) = Address::of_kernel(ctx.arg(1), AF_UNSPEC) else { return 0 };
    let (_, socket_type) = kind(ctx.arg(0));
    judge(actor, &address, gate_of_type(socket_type))
}

/// Sending with an address: datagrams, and TCP Fast Open, which connects past the hook above.
#[lsm(hook = "socket_sendmsg")]
pub fn rf_sock_sendmsg(ctx: LsmContext) -> i32 {
    let Some(actor) = gates::actor() else { return 0 };
    let name = pointer(ctx.arg(1), &OFF_MSGHDR_NAME);
    if name.is_null() {
        return 0;
    }
    let socket: *const c_void = ctx.arg(0);
    let (family, socket_type) = kind(socket);
    if family != AF_INET && family != AF_INET6 {
        return 0;
    }
    let gate = gate_of_type(socket_type);
    // A connected stream does not look at the address.
    if gate == gate::CONNECT && read::<u32>(socket, &OFF_SOCKET_STATE) == SS_CONNECTED {
        return 0;
    }
    // UDP over IPv6 takes AF_UNSPEC for no address; every other socket for its own family.
    let unspecified = if family == AF_INET6 && socket_type == SOCK_DGRAM { AF_UNSPEC } else { family };
    let Some(address) = Address::of_kernel(name, unspecified) else { return 0 };
    judge(actor, &address, gate)
}

/// `bind` to an internet address, port 0 (any free one) included.
#[lsm(hook = "socket_bind")]
pub fn rf_sock_bind(ctx: LsmContext) -> i32 {
    let Some(actor) = gates::actor() else { return 0 };
    let (family, _) = kind(ctx.arg(0));
    if family != AF_INET && family != AF_INET6 {
        return 0;
    }
    let Some(address) = Address::of_kernel(ctx.arg(1), family) else { return 0 };
    judge(actor, &address, gate::BIND)
}

/// `listen`, also of a socket that was never bound.
#[lsm(hook = "socket_listen")]
pub fn rf_sock_listen(ctx: LsmContext) -> i32 {
    let Some(mut actor) = gates::actor() else { return 0 };
    let (family, socket_type) = kind(ctx.arg(0));
    let internet = family == AF_INET || family == AF_INET6;
    if !internet || !gates::refused_by_default(&actor.mark, gate::LISTEN) {
        return 0;
    }
    let head = GateHead { family, port: socket_type, ..gates::head(gate::LISTEN, EACCES) };
    gates::deny(&mut actor, head, Subject::None);
    -(EACCES as i32)
}

/// Making a socket. Those of the kernel's own, made on behalf of a process, pass.
#[lsm(hook = "socket_create")]
pub fn rf_sock_create(ctx: LsmContext) -> i32 {
    let Some(mut actor) = gates::actor() else { return 0 };
    let (family, of_kernel): (u32, u32) = (ctx.arg(0), ctx.arg(3));
    // SAFETY: rule sets are never changed.
    let Some(Rules { refuse, families, names: _, reserved: _ }) = (unsafe { RULES.get(&actor.mark.generation) }) else {
        return 0;
    };
    if of_kernel != 0 || refuse & (1 << gate::FAMILY) == 0 || families & 1u64.unbounded_shl(family) != 0 {
        return 0;
    }
    let (port, detail) = (ctx.arg(1), ctx.arg(2));
    let head = GateHead { family, port, detail, ..gates::head(gate::FAMILY, EACCES) };
    gates::deny(&mut actor, head, Subject::None);
    -(EACCES as i32)
}

/// A unix socket belongs to the tree that made it, both of a pair included. (What `accept` makes is nobody's peer.)
#[lsm(hook = "socket_post_create")]
pub fn rf_sock_made(ctx: LsmContext) -> i32 {
    let Some(actor) = gates::actor() else { return 0 };
    if ctx.arg::<u32>(1) != AF_UNIX {
        return 0;
    }
    // SAFETY: the verifier knows the argument as a socket.
    let socket = unsafe { socket_field(ctx.arg(0), &OFF_SOCKET_SK) };
    if !socket.is_null() {
        SOCKETS.get_or_insert(socket, &mut MadeBy { session: actor.mark.session });
    }
    0
}

/// Family and type of a `struct socket`.
#[inline(always)]
fn kind(socket: *const c_void) -> (u32, u32) {
    let socket = pointer(socket, &OFF_SOCKET_SK);
    (u32::from(read::<u16>(socket, &OFF_SOCK_FAMILY)), u32::from(read::<u16>(socket, &OFF_SOCK_TYPE)))
}

#[inline(always)]
fn judge(mut actor: Actor, address: &Address, gate: u32) -> i32 {
    if !address.refused(&actor.mark, gate) {
        return 0;
    }
    gates::deny(&mut actor, address.head(gate, EACCES), Subject::None);
    -(EACCES as i32)
}
