//! The receipt: what was really in force for one launch.

use serde::{Deserialize, Serialize};

use crate::process::ProcessId;

/// How much of what a layer should enforce it enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// Everything the fence asks of this layer.
    Full,
    /// Part of it; `missing` says what is not.
    Partial,
    /// Nothing.
    None,
}

/// One layer of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerReceipt {
    /// `landlock`, `seccomp`, `bpf_lsm`, `cgroup`.
    pub layer: String,
    /// How much of it holds.
    pub grade: Grade,
    /// Landlock's ABI as used.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub abi: Option<u32>,
    /// Rights and groups that are not enforced, with the reason.
    pub missing: Vec<String>,
    /// Grants that were left out (path gone, replaced, or over the limit) or resolved through a link.
    #[serde(default)]
    pub grants: Vec<String>,
}

/// What was in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// Layer by layer.
    pub layers: Vec<LayerReceipt>,
}

/// What the launcher tells the service, over a socket it connected before the fence was on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchNotice {
    /// The launcher itself, which becomes the command.
    pub process: ProcessId,
    /// Its parent: the host.
    pub parent: ProcessId,
    /// Lowercase hex SHA-256 of the command as the host's tool call had it.
    pub command_digest: String,
    /// The plan that was used, by its id, and whether it was one of a single call.
    pub plan: String,
    /// See `plan`.
    pub per_call: bool,
    /// The fence's name.
    pub fence: String,
    /// The launcher's working directory.
    pub cwd: String,
    /// What is in force.
    pub receipt: Receipt,
}
