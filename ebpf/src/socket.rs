//! Where processes connect and send to: cgroup programs, which observe and always let pass.

use core::ffi::c_void;

use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use ringfence_common::limits::UNIX_NAME_BYTES;
use ringfence_common::maps::Attempt;
use ringfence_common::mark::Mark;
use ringfence_common::record::{CONNECT_NAME_CUT, Connect, KIND_CONNECT};

use crate::emit;
use crate::fields::*;
use crate::maps::ATTEMPTS;
use crate::marks;

const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
/// `sizeof(sun_path)`; before it comes the family, two bytes.
const SUN_PATH: u32 = 108;
/// What a cgroup program answers to let something pass.
const PASS: i32 = 1;

/// `connect` to IPv4.
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/connect4")]
pub fn rf_connect4(ctx: *mut bpf_sock_addr) -> i32 {
    internet(ctx, AF_INET)
}

/// `connect` to IPv6.
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/connect6")]
pub fn rf_connect6(ctx: *mut bpf_sock_addr) -> i32 {
    internet(ctx, AF_INET6)
}

/// A datagram with an address, IPv4.
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/sendmsg4")]
pub fn rf_sendmsg4(ctx: *mut bpf_sock_addr) -> i32 {
    internet(ctx, AF_INET)
}

/// A datagram with an address, IPv6.
#[unsafe(no_mangle)]
#[unsafe(link_section = "cgroup/sendmsg6")]
pub fn rf_sendmsg6(ctx: *mut bpf_sock_addr) -> i32 {
    internet(ctx, AF_INET6)
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
    mark: Mark,
    start_ns: u64,
}

/// The running process if it is marked; remembers that it is in attempt `time_ns`.
#[inline(always)]
fn actor(time_ns: u64) -> Option<Actor> {
    if global(&USE_MIRROR) != 0 {
        let mirrored = marks::mirrored()?;
        let watch = marks::state().map_or(0, |state| state.watch);
        if watch != 0 {
            let thread = bpf_get_current_pid_tgid() as u32;
            let _ = ATTEMPTS.insert(&thread, &Attempt { attempt: time_ns, watch, reserved: 0 }, 0);
        }
        return Some(Actor { mark: mirrored.mark, start_ns: mirrored.start_ns });
    }
    let task = current();
    let state = marks::current(task)?;
    state.attempt = time_ns;
    state.watch = marks::state().map_or(0, |state| state.watch);
    Some(Actor { mark: state.mark, start_ns: marks::start_ns(marks::leader(task)) })
}

#[inline(always)]
fn internet(ctx: *mut bpf_sock_addr, family: u32) -> i32 {
    let attempt = now();
    let Some(actor) = actor(attempt) else { return PASS };
    let Some(event) = emit::begin(&actor.mark, KIND_CONNECT) else { return PASS };
    let mut address = [0u32; 4];
    // SAFETY: the context of this kind of program; the verifier checks each field.
    let (port, socket_type) = unsafe {
        if family == AF_INET {
            address[0] = (&raw const (*ctx).user_ip4).read_volatile();
        } else {
            for (index, word) in address.iter_mut().enumerate() {
                *word = (&raw const (*ctx).user_ip6[index]).read_volatile();
            }
        }
        ((&raw const (*ctx).user_port).read_volatile(), (&raw const (*ctx).type_).read_volatile())
    };
    let [a, b, c, d] = address.map(u32::to_ne_bytes);
    event.send(Connect {
        header: emit::header_with(KIND_CONNECT, size_of::<Connect>(), actor.mark, actor.start_ns),
        attempt,
        family,
        port: u32::from(u16::from_be(port as u16)),
        socket_type,
        flags: 0,
        name_len: 0,
        peer_pid: 0,
        address: [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3]],
        name: [0; UNIX_NAME_BYTES],
    });
    PASS
}

#[inline(always)]
fn unix(ctx: *mut bpf_sock_addr) -> i32 {
    let attempt = now();
    let Some(actor) = actor(attempt) else { return PASS };
    let Some(event) = emit::begin(&actor.mark, KIND_CONNECT) else { return PASS };
    // The verifier offers no field for a unix address: the kernel's own context struct is read instead.
    let context: *const c_void = ctx.cast();
    let address = pointer(context, &OFF_SOCK_ADDR_UADDR);
    let address_len: u32 = read(context, &OFF_SOCK_ADDR_UADDRLEN);
    let socket_type = u32::from(read::<u16>(pointer(context, &OFF_SOCK_ADDR_SK), &OFF_SOCK_TYPE));
    let name_len = address_len.saturating_sub(2);
    let kept = if name_len > SUN_PATH { SUN_PATH } else { name_len };
    let mut name = [0u8; UNIX_NAME_BYTES];
    // SAFETY: `name` has more room than SUN_PATH.
    let read = unsafe { kernel_bytes(name.as_mut_ptr(), kept, address.wrapping_byte_add(2)) };
    event.send(Connect {
        header: emit::header_with(KIND_CONNECT, size_of::<Connect>(), actor.mark, actor.start_ns),
        attempt,
        family: AF_UNIX,
        port: 0,
        socket_type,
        flags: if read && kept == name_len { 0 } else { CONNECT_NAME_CUT },
        name_len: if read { kept } else { 0 },
        peer_pid: 0,
        address: [0; 16],
        name,
    });
    PASS
}
