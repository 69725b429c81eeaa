//! From records in a ring buffer to observations.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{MapData, RingBuf};
use bytemuck::Pod;
use ringfence_common::limits::UNIX_NAME_BYTES;
use ringfence_common::mark as kernel;
use ringfence_common::record::{
    CONNECT_INSIDE, CONNECT_NAME_CUT, CONNECT_REFUSED, CONNECT_RESOLVED, Connect, ConnectResult, EXEC_ANONYMOUS,
    EXEC_ARGV_CUT, EXEC_FILENAME_CUT, EXEC_PATH_CUT, EXEC_PATH_DETACHED, ExecHead, Exit, Fork, GATE_BY_GIT,
    GATE_FALLBACK, GATE_KILLED, GATE_PATH_CUT, GATE_PATH_PART, GATE_PATH_WHOLE, GATE_TOO_DEEP, GateHead, Header,
    KIND_CONNECT, KIND_CONNECT_RESULT, KIND_DENIED, KIND_EXEC, KIND_EXIT, KIND_FORK, KIND_NOTED, KIND_REFUSED,
    REFUSED_COMPAT, REFUSED_PATH_CUT, RefusedHead,
};
use ringfence_common::rules::gate as rules;

use crate::probe::protocol::{Bytes, FileId, GateEvent, Mark, Observation, ObservationKind, Peer, ResolvedPeer, Role};
use crate::process::ProcessId;

/// One user's two ring buffers: refusals, and everything else.
pub struct Rings {
    rings: [RingBuf<MapData>; 2],
    tick_ns: u64,
    malformed: u64,
}

impl Rings {
    pub(super) fn new(rings: [RingBuf<MapData>; 2], tick_ns: u64) -> Rings {
        Rings { rings, tick_ns, malformed: 0 }
    }

    /// What to poll for readability (level-triggered).
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        self.rings.each_ref().map(AsFd::as_fd)
    }

    /// Hands over at most `max` observations, refusals first; answers how many there were.
    pub fn drain(&mut self, max: usize, sink: &mut dyn FnMut(Observation)) -> usize {
        let Rings { rings, tick_ns, malformed } = self;
        let mut handed = 0;
        for ring in rings {
            while handed < max {
                let Some(record) = ring.next() else { break };
                match decode(&record, *tick_ns) {
                    Some(observation) => {
                        sink(observation);
                        handed += 1;
                    }
                    None => *malformed += 1,
                }
            }
        }
        handed
    }

    /// Records that were not of a kind or length that this version knows: none, unless object and agent differ.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }
}

/// A mark as the protocol has it; `None` for a role that this version does not know.
pub(super) fn mark(mark: &kernel::Mark) -> Option<Mark> {
    let role = match mark.role() {
        kernel::ROLE_HOST => Role::Host,
        kernel::ROLE_HOOK => Role::Hook,
        kernel::ROLE_INTERNAL => Role::Internal,
        kernel::ROLE_LAUNCHED => Role::Launched,
        _ => return None,
    };
    Some(Mark { session: mark.session, launch: mark.launch, generation: mark.generation, role })
}

/// Reads one record; `None` when kind or lengths are not as this version writes them.
fn decode(record: &[u8], tick_ns: u64) -> Option<Observation> {
    let header: Header = head(record)?;
    if header.len as usize != record.len() {
        return None;
    }
    let process = |pid, start_ns: u64| ProcessId { pid, start: start_ns / tick_ns };
    let kind = match header.kind {
        KIND_FORK => {
            let Fork { header: _, child_start_ns, child_pid, reserved: _ } = exact(record)?;
            ObservationKind::Fork { child: process(child_pid, child_start_ns) }
        }
        KIND_EXEC => {
            let ExecHead {
                header: _,
                parent_start_ns,
                parent_pid,
                flags,
                file,
                filename_len,
                path_len,
                argv_len,
                reserved: _,
            } = head(record)?;
            let mut rest = &record[size_of::<ExecHead>()..];
            let mut take = |len: u32| rest.split_off(..len as usize);
            let (filename, path, argv) = (take(filename_len)?, take(path_len)?, take(argv_len)?);
            ObservationKind::Exec {
                parent: process(parent_pid, parent_start_ns),
                filename: bytes(without_nul(filename), flags & EXEC_FILENAME_CUT != 0),
                file: FileId { device: file.device, inode: file.inode, generation: file.generation },
                path: bytes(&joined(path, flags), flags & EXEC_PATH_CUT != 0),
                argv: bytes(without_nul(argv), flags & EXEC_ARGV_CUT != 0),
                anonymous: flags & EXEC_ANONYMOUS != 0,
            }
        }
        KIND_EXIT => {
            let Exit { header: _, status, reserved: _ } = exact(record)?;
            ObservationKind::Exit { code: (status >> 8) as u8, signal: (status & 0x7f) as u8 }
        }
        KIND_CONNECT => connect(exact(record)?)?,
        KIND_CONNECT_RESULT => {
            let ConnectResult { header: _, attempt, errno, reserved: _ } = exact(record)?;
            ObservationKind::ConnectResult { attempt, errno: errno.try_into().ok()? }
        }
        KIND_REFUSED => {
            let RefusedHead { header: _, syscall, errno, flags, path_len, arguments } = head(record)?;
            let path = record[size_of::<RefusedHead>()..].get(..path_len as usize)?;
            // A socket address is not a string: its last zero belongs to it.
            let is_path =
                matches!(ringfence_common::x86_64::subject(syscall), ringfence_common::x86_64::Subject::Path(_));
            ObservationKind::SyscallRefused {
                syscall: syscall as i32,
                compat: flags & REFUSED_COMPAT != 0,
                arguments,
                errno: errno.try_into().ok()?,
                path: bytes(if is_path { without_nul(path) } else { path }, flags & REFUSED_PATH_CUT != 0),
            }
        }
        KIND_DENIED | KIND_NOTED => ObservationKind::Gate(gate_event(record)?),
        _ => return None,
    };
    Some(Observation {
        time_ns: header.time_ns,
        mark: mark(&header.mark)?,
        process: process(header.pid, header.start_ns),
        thread: header.thread,
        kind,
    })
}

fn connect(record: Connect) -> Option<ObservationKind> {
    let Connect { header: _, attempt, family, port, socket_type, flags, name_len, peer_pid, address, name } = record;
    let peer = match i32::try_from(family).ok()? {
        libc::AF_INET => Peer::V4([address[0], address[1], address[2], address[3]], port.try_into().ok()?),
        libc::AF_INET6 => Peer::V6(address, port.try_into().ok()?),
        libc::AF_UNIX => unix(&name, name_len, flags & CONNECT_NAME_CUT != 0)?,
        _ => return None,
    };
    let resolved =
        (flags & CONNECT_RESOLVED != 0).then_some(ResolvedPeer { inside: flags & CONNECT_INSIDE != 0, pid: peer_pid });
    let refused = flags & CONNECT_REFUSED != 0;
    Some(ObservationKind::Connect { attempt, peer, socket_type: socket_type.try_into().ok()?, refused, resolved })
}

fn gate_event(record: &[u8]) -> Option<GateEvent> {
    let GateHead {
        header: _,
        gate,
        errno,
        flags,
        label,
        file,
        family,
        port,
        address,
        other_pid,
        detail,
        path_len,
        reserved: _,
    } = head(record)?;
    let path = record[size_of::<GateHead>()..].get(..path_len as usize)?;
    let cut = flags & GATE_PATH_CUT != 0;
    let peer = match gate {
        rules::CONNECT | rules::DATAGRAM | rules::BIND => match i32::try_from(family).ok()? {
            libc::AF_INET => Some(Peer::V4([address[0], address[1], address[2], address[3]], port.try_into().ok()?)),
            libc::AF_INET6 => Some(Peer::V6(address, port.try_into().ok()?)),
            _ => None,
        },
        rules::UNIX | rules::ABSTRACT => Some(unix_name(path, cut)),
        _ => None,
    };
    let path = match flags & GATE_PATH_WHOLE {
        0 => joined(path, if cut { EXEC_PATH_CUT } else { 0 }),
        _ => without_nul(path).to_owned(),
    };
    Some(GateEvent {
        gate,
        errno: errno.try_into().ok()?,
        label,
        file: (file.inode != 0).then_some(FileId {
            device: file.device,
            inode: file.inode,
            generation: file.generation,
        }),
        peer,
        path: bytes(&path, cut),
        path_in_file_system: flags & GATE_PATH_PART != 0,
        too_deep: flags & GATE_TOO_DEEP != 0,
        killed: flags & GATE_KILLED != 0,
        fallback: flags & GATE_FALLBACK != 0,
        by_git: flags & GATE_BY_GIT != 0,
        other_pid,
        family,
        detail,
    })
}

/// unix(7): a path ends at its NUL or at the address's length; an abstract name begins with one and is counted.
fn unix(name: &[u8; UNIX_NAME_BYTES], len: u32, cut: bool) -> Option<Peer> {
    name.get(..len as usize).map(|name| unix_name(name, cut))
}

fn unix_name(name: &[u8], cut: bool) -> Peer {
    match name {
        [] if cut => Peer::UnixPath(bytes(&[], true)),
        [] => Peer::UnixUnnamed,
        [0, rest @ ..] => Peer::UnixAbstract(bytes(rest, cut)),
        _ => Peer::UnixPath(bytes(name.split(|b| *b == 0).next().unwrap_or_default(), cut)),
    }
}

fn head<T: Pod>(record: &[u8]) -> Option<T> {
    record.get(..size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

fn exact<T: Pod>(record: &[u8]) -> Option<T> {
    (record.len() == size_of::<T>()).then(|| bytemuck::pod_read_unaligned(record))
}

fn bytes(bytes: &[u8], truncated: bool) -> Bytes {
    Bytes { bytes: bytes.to_owned(), truncated }
}

fn without_nul(bytes: &[u8]) -> &[u8] {
    bytes.strip_suffix(&[0]).unwrap_or(bytes)
}

/// Components come leaf first, each with its NUL. A cut path lacks its beginning, a detached one has no root.
fn joined(components: &[u8], flags: u32) -> Vec<u8> {
    let rooted = flags & (EXEC_PATH_CUT | EXEC_PATH_DETACHED) == 0;
    let mut path = Vec::with_capacity(components.len());
    for component in without_nul(components).split(|b| *b == 0).rev() {
        if rooted || !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(component);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_put_together_from_the_leaf() {
        assert_eq!(joined(b"ls\0bin\0usr\0", 0), b"/usr/bin/ls");
        assert_eq!(joined(b"memfd:x\0", EXEC_PATH_DETACHED), b"memfd:x");
        assert_eq!(joined(b"c\0b\0", EXEC_PATH_CUT), b"b/c");
    }

    #[test]
    fn unix_names_are_told_apart() {
        let named = |text: &[u8]| {
            let mut name = [0; UNIX_NAME_BYTES];
            name[..text.len()].copy_from_slice(text);
            unix(&name, text.len() as u32, false).unwrap()
        };
        assert_eq!(named(b"/run/x\0"), Peer::UnixPath(bytes(b"/run/x", false)));
        assert_eq!(named(b"/run/x"), Peer::UnixPath(bytes(b"/run/x", false)));
        assert_eq!(named(b"\0a\0b"), Peer::UnixAbstract(bytes(b"a\0b", false)));
        assert_eq!(named(b""), Peer::UnixUnnamed);
    }

    #[test]
    fn a_record_that_is_not_as_it_says_is_refused() {
        assert!(decode(&[], 1).is_none());
        assert!(decode(&[0; size_of::<Header>()], 1).is_none());
        let mark = kernel::Mark { session: 1, launch: 0, generation: 0, role_and_flags: kernel::ROLE_HOST };
        let header = Header {
            kind: KIND_EXIT,
            len: size_of::<Exit>() as u32,
            time_ns: 1,
            mark,
            start_ns: 20_000_001,
            pid: 2,
            thread: 3,
        };
        let record = Exit { header, status: 7 << 8, reserved: 0 };
        let good = decode(bytemuck::bytes_of(&record), 10_000_000).unwrap();
        assert_eq!(good.kind, ObservationKind::Exit { code: 7, signal: 0 });
        assert_eq!(good.process, ProcessId { pid: 2, start: 2 });
        assert!(decode(&bytemuck::bytes_of(&record)[..size_of::<Exit>() - 8], 10_000_000).is_none());
        let other = Exit { header: Header { mark: kernel::Mark { role_and_flags: 99, ..mark }, ..header }, ..record };
        assert!(decode(bytemuck::bytes_of(&other), 10_000_000).is_none());
    }
}
