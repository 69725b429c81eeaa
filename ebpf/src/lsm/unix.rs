//! Unix sockets, by the peer that the kernel resolved: whatever name led to it, it is the socket that counts.
//!
//! Only the side that connects or sends is judged: a process outside may connect to a socket of the tree's.

use core::ffi::c_void;

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::limits::UNIX_NAME_BYTES;
use ringfence_common::maps::FileKey;
use ringfence_common::mark::{IDENTITY_LAUNCHER, Mark, ROLE_HOOK};
use ringfence_common::record::{CONNECT_INSIDE, CONNECT_NAME_CUT, CONNECT_RESOLVED, Connect, GateHead, KIND_CONNECT};
use ringfence_common::rules::{
    AbstractKey, OBJECT_SOCKET_ALLOWED, OBJECT_SOCKET_HOOKS, OBJECT_SOCKET_REFUSED, Object, gate,
};

use crate::address::AF_UNIX;
use crate::emit;
use crate::fields::*;
use crate::file;
use crate::gate::{self as gates, Actor, EPERM, Subject};
use crate::maps::{ABSTRACT_NAMES, SOCKETS};
use crate::marks;

/// `sizeof(sun_path)`; before it comes the family, two bytes.
pub const SUN_PATH: u32 = 108;
/// How far above a socket a directory of allowed ones is looked for.
const DIRECTORIES: usize = 6;

/// Streams and sequenced packets.
#[lsm(hook = "unix_stream_connect")]
pub fn rf_unix_stream(ctx: LsmContext) -> i32 {
    let Some(actor) = gates::actor() else { return 0 };
    reach(actor, ctx.arg(0), ctx.arg(1))
}

/// Datagrams: connecting, and each that is sent.
#[lsm(hook = "unix_may_send")]
pub fn rf_unix_dgram(ctx: LsmContext) -> i32 {
    let Some(actor) = gates::actor() else { return 0 };
    let own = pointer(ctx.arg(0), &OFF_SOCKET_SK);
    // SAFETY: the verifier knows the argument as a socket.
    let peer = unsafe { socket_field(ctx.arg(1), &OFF_SOCKET_SK) };
    // Judged when it was connected, as a stream is.
    if peer.is_null() || pointer(own, &OFF_UNIX_PEER) == peer.cast_const() {
        return 0;
    }
    reach(actor, own, peer)
}

/// Judges a peer, and tells either the refusal or the attempt.
#[inline(always)]
fn reach(mut actor: Actor, own: *const c_void, peer: *mut c_void) -> i32 {
    // SAFETY: the verifier knows `peer` as a socket; a map value lives as long as the program runs.
    let made_by = unsafe { SOCKETS.get(peer).as_ref() };
    let inside = made_by.is_some_and(|made| made.session == actor.mark.session);
    let address = pointer(peer, &OFF_UNIX_ADDRESS);
    let name = Name::new(
        at(address, &OFF_UNIX_ADDRESS_NAME).wrapping_byte_add(2),
        read::<u32>(address, &OFF_UNIX_ADDRESS_LEN).saturating_sub(2),
    );
    let listener = read::<u32>(pointer(peer, &OFF_SOCK_PEER_PID), &OFF_PID_NUMBERS);
    let dentry = pointer(peer, &OFF_UNIX_DENTRY);
    let file = file::key_of_inode(pointer(dentry, &OFF_DENTRY_INODE));
    if !inside && let Some((gate, label)) = refusal(&actor, &name, dentry, file) {
        let head = GateHead { label, file, family: AF_UNIX, other_pid: listener, ..gates::head(gate, EPERM) };
        gates::deny(&mut actor, head, name.subject());
        return -(EPERM as i32);
    }
    let attempt = now();
    marks::attempts(Some(actor.state), attempt);
    let Some(event) = emit::begin(&actor.mark, KIND_CONNECT) else { return 0 };
    let mut kept = [0u8; UNIX_NAME_BYTES];
    let whole = name.copy(&mut kept);
    event.send(Connect {
        header: emit::header(KIND_CONNECT, size_of::<Connect>(), actor.mark, actor.task),
        attempt,
        family: AF_UNIX,
        port: 0,
        socket_type: u32::from(read::<u16>(own, &OFF_SOCK_TYPE)),
        flags: CONNECT_RESOLVED | if inside { CONNECT_INSIDE } else { 0 } | if whole { 0 } else { CONNECT_NAME_CUT },
        name_len: name.kept(),
        peer_pid: listener,
        address: [0; 16],
        name: kept,
    });
    0
}

/// Why a peer that was made outside is not reached: the gate, and the label of the rule.
#[inline(always)]
fn refusal(actor: &Actor, name: &Name, dentry: *const c_void, file: FileKey) -> Option<(u32, u32)> {
    let mark = &actor.mark;
    if mark.generation == 0 {
        return None;
    }
    let (gate, object) = if name.is_abstract() {
        (gate::ABSTRACT, name.object(mark))
    } else {
        (gate::UNIX, if file.inode != 0 { gates::object(mark, file) } else { None })
    };
    match said(mark, object) {
        // The launcher tells what it is about to put on.
        Said::Refused(_) if object.is_some_and(for_hooks_alone) && is_launcher(actor) => None,
        Said::Refused(label) => Some((gate, label)),
        Said::Allowed => None,
        Said::Nothing if !gates::refused_by_default(mark, gate) => None,
        Said::Nothing if file.inode != 0 && in_allowed_directory(mark, dentry) => None,
        Said::Nothing => Some((gate, 0)),
    }
}

/// Whether nothing but its being for hooks speaks against a socket.
#[inline(always)]
fn for_hooks_alone(object: &Object) -> bool {
    object.bits & (OBJECT_SOCKET_HOOKS | OBJECT_SOCKET_REFUSED) == OBJECT_SOCKET_HOOKS
}

/// Whether the process is the launcher, which has not become the command yet.
#[inline(always)]
fn is_launcher(actor: &Actor) -> bool {
    marks::identity(&file::key(file::executable(actor.task.cast()))) == IDENTITY_LAUNCHER
}

/// What a rule says of a socket that was made outside.
pub enum Said {
    /// Refused, by the rule of this label.
    Refused(u32),
    /// Allowed.
    Allowed,
    /// No rule speaks of it.
    Nothing,
}

/// What a rule says of a socket to a process with this mark.
#[inline(always)]
pub fn said(mark: &Mark, object: Option<&Object>) -> Said {
    let Some(object) = object else { return Said::Nothing };
    let hook = mark.role() == ROLE_HOOK && mark.launch == 0;
    if object.bits & OBJECT_SOCKET_REFUSED != 0 || (object.bits & OBJECT_SOCKET_HOOKS != 0 && !hook) {
        return Said::Refused(object.label);
    }
    let allowed = object.bits & (OBJECT_SOCKET_ALLOWED | OBJECT_SOCKET_HOOKS) != 0;
    if allowed { Said::Allowed } else { Said::Nothing }
}

/// Whether a directory above the socket is one of allowed sockets.
#[inline(always)]
fn in_allowed_directory(mark: &Mark, dentry: *const c_void) -> bool {
    let mut slot_of = 0usize;
    set_slot(&mut slot_of, dentry);
    let mut bits = 0usize;
    for _ in 0..DIRECTORIES {
        let below = slot(&slot_of);
        read_into(&mut slot_of, below, &OFF_DENTRY_PARENT);
        let key = file::key_of_inode(pointer(slot(&slot_of), &OFF_DENTRY_INODE));
        bits = forget(bits | gates::object(mark, key).map_or(0, |object| object.bits as usize));
    }
    bits as u32 & OBJECT_SOCKET_ALLOWED != 0
}

/// A unix name where the kernel keeps it: `sun_path`.
pub struct Name {
    bytes: *const c_void,
    len: u32,
    first: u8,
}

impl Name {
    /// So many bytes at this address.
    #[inline(always)]
    pub fn new(bytes: *const c_void, len: u32) -> Name {
        let mut first = [1u8];
        // SAFETY: room for one byte.
        unsafe { kernel_bytes(first.as_mut_ptr(), 1, bytes) };
        Name { bytes, len, first: first[0] }
    }

    /// Whether it begins with a NUL, so that it is no path.
    #[inline(always)]
    pub fn is_abstract(&self) -> bool {
        self.len != 0 && self.first == 0
    }

    /// How many bytes of it are kept.
    #[inline(always)]
    pub fn kept(&self) -> u32 {
        at_most(self.len, SUN_PATH)
    }

    /// Copies it; answers whether it is there as a whole.
    #[inline(always)]
    pub fn copy(&self, to: &mut [u8; UNIX_NAME_BYTES]) -> bool {
        // SAFETY: there is more room than SUN_PATH.
        unsafe { kernel_bytes(to.as_mut_ptr(), self.kept(), self.bytes) && self.len <= SUN_PATH }
    }

    /// For a record of a gate.
    #[inline(always)]
    pub fn subject(&self) -> Subject {
        Subject::Bytes(self.bytes, self.len)
    }

    /// What the rules say of this abstract name.
    #[inline(always)]
    pub fn object(&self, mark: &Mark) -> Option<&'static Object> {
        let len = at_most(self.len.wrapping_sub(1), SUN_PATH - 1);
        let mut key = AbstractKey { generation: mark.generation, len, name: [0; UNIX_NAME_BYTES] };
        // SAFETY: there is more room than SUN_PATH; a rule set is never changed while a session is judged by it.
        unsafe {
            kernel_bytes(key.name.as_mut_ptr(), len, self.bytes.wrapping_byte_add(1));
            ABSTRACT_NAMES.get(&key)
        }
    }
}
