//! Which layer refused a system call: asked of the plan that the launch used.
#![forbid(unsafe_code)]

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::metrics::Metrics;
use super::plans::Known;
use crate::fence::attribution as fence;
use crate::ledger::entry::Layer;
use crate::ledger::refusal::{Attributed, Attribution, LaunchContext, RefusedCall};

/// Attributes by the published plans.
pub struct ByPlan {
    /// The plans.
    pub known: Known,
    /// Where refusals are counted.
    pub metrics: Metrics,
}

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
