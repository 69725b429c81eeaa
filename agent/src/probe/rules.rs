//! Rule sets as they go from the service, which compiles them, to the probe, which puts them into the kernel's maps.
//! See [`ringfence_common::rules`] for what each number means.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::protocol::FileId;

/// All that the kernel refuses to one kind of process of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSet {
    /// Bits `1 << gate`: refused unless a rule allows it.
    pub refuse: u64,
    /// Bits `1 << family`: sockets that may be made where the gate `FAMILY` refuses.
    pub families: u64,
    /// IPv4, each prefix once, with all that its shorter prefixes say.
    pub addresses4: Vec<AddressRule<[u8; 4]>>,
    /// IPv6, likewise.
    pub addresses6: Vec<AddressRule<[u8; 16]>>,
    /// Executables, sockets and directories, each once.
    pub objects: Vec<ObjectRule>,
    /// Steps from a directory's state to names in it.
    pub names: Vec<NameRule>,
    /// Abstract unix sockets.
    pub abstract_names: Vec<AbstractRule>,
}

/// What is said of a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRule<A> {
    /// The address; bits behind the prefix are 0.
    pub address: A,
    /// Length of the prefix.
    pub bits: u8,
    /// At most [`ringfence_common::rules::PORT_RANGES`].
    pub ports: Vec<PortRule>,
}

/// A range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortRule {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
    /// Bits `1 << gate`.
    pub gates: u16,
    /// Refused, which wins; else allowed.
    pub refused: bool,
}

/// What is said of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRule {
    /// As [`super::protocol::Request::Identify`] answered.
    pub file: FileId,
    /// `OBJECT_*` and `NAME_*`.
    pub bits: u32,
    /// What a refusal is called: an index of the service's own.
    pub label: u32,
    /// Where a directory's names go on; 0 for nowhere.
    pub state: u32,
}

/// What is said of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRule {
    /// The state of the directory that it is in.
    pub state: u32,
    /// At most [`ringfence_common::rules::NAME_BYTES`] - 1 bytes; empty stands for any that has no rule of its own.
    pub name: Vec<u8>,
    /// `NAME_*`.
    pub bits: u32,
    /// As [`ObjectRule::label`].
    pub label: u32,
    /// Where its own names go on; 0 for nowhere.
    pub next: u32,
}

/// What is said of an abstract unix name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbstractRule {
    /// The name without its leading NUL, at most 107 bytes.
    pub name: Vec<u8>,
    /// `OBJECT_SOCKET_*`.
    pub bits: u32,
    /// As [`ObjectRule::label`].
    pub label: u32,
}

impl RuleSet {
    /// How many entries it takes in the kernel's maps.
    pub fn len(&self) -> usize {
        self.addresses4.len()
            + self.addresses6.len()
            + self.objects.len()
            + self.names.len()
            + self.abstract_names.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
