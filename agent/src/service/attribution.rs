//! Which layer refused a system call: asked of the plan that the launch used.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_common::rules::gate;

use super::metrics::Metrics;
use super::plans::Known;
use super::rules::SharedLabels;
use crate::fence::attribution as fence;
use crate::ledger::entry::Layer;
use crate::ledger::gate::Named;
use crate::ledger::refusal::{Attributed, Attribution, LaunchContext, RefusedCall};
use crate::probe::protocol::{GateEvent, Mark, Peer};

/// Attributes by the published plans.
pub struct ByPlan {
    /// The plans.
    pub known: Known,
    /// Where refusals are counted.
    pub metrics: Metrics,
    /// What is Ringfence's own.
    pub own: Own,
    /// What refusals are called.
    pub labels: SharedLabels,
}

/// What an agent may not touch since it is Ringfence's.
pub struct Own {
    /// Directories of state and sockets.
    pub directories: Vec<PathBuf>,
    /// Sockets elsewhere.
    pub sockets: Vec<PathBuf>,
}

/// Our programs, as the kernel names processes (fifteen characters).
const PROGRAMS: [&str; 5] = ["ringfenced", "ringfence-probe", "ringfence-hook", "ringfence-exec", "ringfence"];

impl Attribution for ByPlan {
    fn layer(&self, session: &str, launch: &LaunchContext, call: RefusedCall<'_>) -> Attributed {
        let attributed = self.attribute(session, launch, call);
        let label = match attributed.layer {
            Layer::Landlock => "landlock",
            Layer::Seccomp => "seccomp",
            _ => "other",
        };
        self.metrics.refusals.with_label_values(&[label]).inc();
        attributed
    }

    fn gate(&self, _: &str, _: &Mark, event: &GateEvent) -> Named {
        let label = match event {
            GateEvent { errno: 0, .. } => None,
            GateEvent { killed: true, .. } => Some("signal"),
            GateEvent { fallback: true, .. } => Some("cgroup"),
            _ => Some("bpf_lsm"),
        };
        label.inspect(|label| self.metrics.refusals.with_label_values(&[label]).inc());
        // A process may call itself what it likes: this names a finding, and decides nothing.
        let named = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        let other =
            Some(event.other_pid).filter(|pid| *pid != 0).and_then(named).map(|comm| comm.trim_end().to_owned());
        let own_process = matches!(event.gate, gate::SIGNAL | gate::TRACE)
            && other.as_deref().is_some_and(|comm| PROGRAMS.contains(&comm));
        let path = match &event.peer {
            Some(Peer::UnixPath(path)) => path,
            _ => &event.path,
        };
        let own = own_process || self.own.holds(&path.bytes, event.path_in_file_system);
        let labels = self.labels.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Named { rule: labels.name(event.label).map(str::to_owned), other, own }
    }
}

impl Own {
    /// Whether a path is one of these or below one; in a file system of its own it may lack its beginning.
    fn holds(&self, path: &[u8], in_file_system: bool) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        let is = |own: &Path| match in_file_system {
            false => path.starts_with(own),
            true => {
                let mut rest = own.components();
                // Two components at least: one name alone is anybody's.
                std::iter::from_fn(|| rest.next().map(|_| Path::new("/").join(rest.as_path())))
                    .take_while(|rest| rest.components().count() > 2)
                    .any(|rest| path.starts_with(rest))
            }
        };
        !path.as_os_str().is_empty() && self.directories.iter().chain(&self.sockets).any(|own| is(own))
    }
}

impl ByPlan {
    fn attribute(&self, session: &str, launch: &LaunchContext, call: RefusedCall<'_>) -> Attributed {
        let unknown = Attributed { layer: Layer::Other, inferred: true, rule: None };
        let known = self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let plan = match &launch.plan {
            Some(id) => known.get(id),
            None => known.of_session(session),
        };
        drop(known);
        let Some(plan) = plan else { return unknown };
        let RefusedCall { syscall, compat, arguments, errno, path } = call;
        if compat {
            // The fence refuses the 32-bit ABI as a whole; its numbers are not the native ones.
            return Attributed { layer: Layer::Seccomp, inferred: false, rule: Some("32-bit ABI".to_owned()) };
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(&path.bytes));
        let told = fence::attribute(&plan, syscall, arguments, errno, path, None);
        let layer = match told.layer {
            fence::Layer::Seccomp => Layer::Seccomp,
            fence::Layer::Landlock => Layer::Landlock,
            fence::Layer::Other => Layer::Other,
        };
        // A layer of the plan is named by what the plan says and what ordinary permissions would have allowed; only where
        // none of them explains the refusal is there nothing but the errno.
        Attributed { layer, inferred: layer == Layer::Other, rule: told.missing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_is_known_by_its_place() {
        let own = Own {
            directories: vec!["/home/u/.local/state/ringfence".into(), "/run/user/1/ringfence".into()],
            sockets: vec!["/run/ringfence/probe.sock".into()],
        };
        assert!(own.holds(b"/home/u/.local/state/ringfence/ringfence.db", false));
        assert!(own.holds(b"/run/user/1/ringfence/control.sock", false));
        assert!(own.holds(b"/run/ringfence/probe.sock", false));
        assert!(own.holds(b"/u/.local/state/ringfence/x", true), "/home is a mount of its own");
        assert!(own.holds(b"/1/ringfence/control.sock", true));
        assert!(!own.holds(b"/home/u/.local/state/ringfencer", false));
        assert!(!own.holds(b"/ringfence/x", true), "one name alone is anybody's");
        assert!(!own.holds(b"", false));
    }
}
