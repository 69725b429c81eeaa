//! Internet addresses, and what the rules say of them.

use core::ffi::c_void;

use ringfence_common::mark::Mark;
use ringfence_common::record::GateHead;
use ringfence_common::rules::{Ports, Prefix4, Prefix6, gate};

use crate::fields::kernel_bytes;
use crate::gate as gates;
use crate::maps::{ADDRESSES4, ADDRESSES6};

/// `AF_UNSPEC`.
pub const AF_UNSPEC: u32 = 0;
/// `AF_UNIX`.
pub const AF_UNIX: u32 = 1;
/// `AF_INET`.
pub const AF_INET: u32 = 2;
/// `AF_INET6`.
pub const AF_INET6: u32 = 10;

/// `SOCK_STREAM`: TCP, MPTCP, and SCTP in its one-to-one style.
const SOCK_STREAM: u32 = 1;
/// `SOCK_SEQPACKET`: SCTP.
const SOCK_SEQPACKET: u32 = 5;

/// `127.0.0.1` as it is on the wire.
const LOOPBACK: u32 = u32::from_ne_bytes([127, 0, 0, 1]);
/// The last word of `::1` as it is on the wire.
const LAST_OF_LOOPBACK: u32 = u32::from_ne_bytes([0, 0, 0, 1]);
/// The third word of an IPv4 address in IPv6 form.
const MAPPED: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);

/// An address and a port.
pub struct Address {
    /// [`AF_INET`] or [`AF_INET6`].
    pub family: u32,
    /// Port in host order.
    pub port: u32,
    /// The address as it is on the wire; IPv4 in the first word.
    pub words: [u32; 4],
}

impl Address {
    /// Copies a `sockaddr` of the kernel's; `None` for another family. `unspecified` is what AF_UNSPEC stands for.
    ///
    /// Its length is not looked at: the kernel refuses one that is too short for its family.
    #[inline(always)]
    pub fn of_kernel(address: *const c_void, unspecified: u32) -> Option<Address> {
        let mut raw = [0u32; 7];
        // SAFETY: `raw` has 28 bytes, a whole `sockaddr_in6`; the kernel keeps every address in a `sockaddr_storage`.
        unsafe { kernel_bytes(raw.as_mut_ptr().cast(), 28, address) };
        let [first, v4, v6 @ .., _] = raw;
        let family = first & 0xffff;
        let family = if family == AF_UNSPEC { unspecified } else { family };
        let port = u32::from(u16::from_be((first >> 16) as u16));
        match family {
            AF_INET => Some(Address { family, port, words: [v4, 0, 0, 0] }),
            AF_INET6 => Some(Address { family, port, words: v6 }),
            _ => None,
        }
    }

    /// Whether the rules refuse it for `gate`. The unspecified address is the machine itself, but for [`gate::BIND`].
    #[inline(always)]
    pub fn refused(&self, mark: &Mark, gate: u32) -> bool {
        if mark.generation == 0 {
            return false;
        }
        let [a, b, c, d] = self.words;
        let peer = gate != gate::BIND;
        if self.family == AF_INET {
            return refused4(mark, gate, if peer && a == 0 { LOOPBACK } else { a }, self.port);
        }
        if a | b == 0 && c == MAPPED {
            return refused4(mark, gate, if peer && d == 0 { LOOPBACK } else { d }, self.port);
        }
        if peer && a | b | c | d == 0 {
            // A socket that is bound to IPv4 reaches 127.0.0.1 by it.
            return refused6(mark, gate, [0, 0, 0, LAST_OF_LOOPBACK], self.port)
                || refused4(mark, gate, LOOPBACK, self.port);
        }
        refused6(mark, gate, self.words, self.port)
    }

    /// The record of its refusal.
    #[inline(always)]
    pub fn head(&self, gate: u32, errno: u32) -> GateHead {
        GateHead { family: self.family, port: self.port, address: self.bytes(), ..gates::head(gate, errno) }
    }

    /// The address as records have it.
    #[inline(always)]
    pub fn bytes(&self) -> [u8; 16] {
        let [a, b, c, d] = self.words.map(u32::to_ne_bytes);
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3]]
    }
}

/// The gate of what a socket of this type is connected to.
#[inline(always)]
pub fn gate_of_type(socket_type: u32) -> u32 {
    if socket_type == SOCK_STREAM || socket_type == SOCK_SEQPACKET { gate::CONNECT } else { gate::DATAGRAM }
}

#[inline(always)]
fn refused4(mark: &Mark, gate: u32, address: u32, port: u32) -> bool {
    let key = Prefix4 { bits: 64, generation: mark.generation, address: address.to_ne_bytes() };
    verdict(mark, gate, ADDRESSES4.get(&key), port)
}

#[inline(always)]
fn refused6(mark: &Mark, gate: u32, words: [u32; 4], port: u32) -> bool {
    let address = Address { family: AF_INET6, port, words }.bytes();
    let key = Prefix6 { bits: 160, generation: mark.generation, address };
    verdict(mark, gate, ADDRESSES6.get(&key), port)
}

/// What is refused wins over what is allowed. No branch in the loop: each would double the ways that the verifier walks.
#[inline(always)]
fn verdict(mark: &Mark, gate: u32, ports: Option<&Ports>, port: u32) -> bool {
    let (mut refuses, mut allows) = (0u64, 0u64);
    if let Some(ports) = ports {
        for range in &ports.ranges {
            let (first, last, port) = (u64::from(range.first), u64::from(range.last), u64::from(port));
            let outside = (port.wrapping_sub(first) | last.wrapping_sub(port)) >> 63;
            let speaks = (u64::from(range.gates) >> gate) & !outside & 1;
            refuses |= speaks & u64::from(range.refused);
            allows |= speaks & !u64::from(range.refused);
        }
    }
    if refuses != 0 {
        return true;
    }
    allows == 0 && gates::refused_by_default(mark, gate)
}
