//! What a session's rules say, for a person.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use ringfence_common::rules::gate;
use serde::Serialize;

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
