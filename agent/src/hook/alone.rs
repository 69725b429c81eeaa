//! Judging without the service, by the rules that are compiled in. Never weaker than the service: what it would hold for
//! a person is denied, and where the service is there but does not answer, nothing that executes or changes passes.
#![forbid(unsafe_code)]

#[cfg(test)]
use std::path::{Path, PathBuf};

use super::work::{Absence, Call};
use crate::host::claude_code::tool_class;
use crate::host::{HostEvent, ToolUse};
use crate::ipc::hook::GapCause;
use crate::policy::judge::{Decision, DecisionSource, Outcome};

/// The decision of a tool call that the service did not make.
pub(super) fn decide(call: &Call<'_>, event: &HostEvent, tool: &ToolUse, absence: &Absence) -> Decision {
    let judged = builtin(tool, &event.cwd);
    let class = tool_class(&tool.tool);
    let policy = judged.as_ref().map_or_else(String::new, |decision| decision.policy.clone());
    let deny = |reason_code: &str, explanation: String| Decision {
        outcome: Outcome::Deny,
        reason_code: reason_code.to_owned(),
        explanation,
        rules: Vec::new(),
        source: DecisionSource::Fallback,
        policy: policy.clone(),
        fence: String::new(),
    };
    // What the rules themselves deny keeps their reason.
    if let Some(decision) = judged.as_ref().filter(|decision| decision.outcome == Outcome::Deny) {
        return Decision { source: DecisionSource::EmergencyFallback, ..decision.clone() };
    }
    if class.executes_or_mutates() {
        if let Some(reason_code) = refusal(absence.cause()) {
            return deny(reason_code, said(absence));
        }
        if call.invocation.strict_offline {
            let explanation =
                format!("{}, and the policy lets nothing execute or change until it is back", said(absence));
            return deny("strict_offline", explanation);
        }
    }
    match judged {
        Some(decision) => Decision { source: DecisionSource::EmergencyFallback, ..decision },
        None if class.executes_or_mutates() => {
            deny("no_builtin_rules", "no rules are compiled into the hook".to_owned())
        }
        None => Decision { outcome: Outcome::NoOverride, ..deny("none", String::new()) },
    }
}

/// Why a call that executes or changes is denied whatever the rules say. `None`: nobody is there, or nobody can be
/// reached from inside the host's sandbox.
fn refusal(cause: GapCause) -> Option<&'static str> {
    match cause {
        GapCause::ServiceDown | GapCause::BlockedByHostSandbox => None,
        GapCause::ServiceFull => Some("service_full"),
        GapCause::ServiceLate => Some("service_late"),
        GapCause::ServiceConfused => Some("service_confused"),
        GapCause::ServiceRefused => Some("service_refused"),
        GapCause::ServiceUntrusted => Some("service_untrusted"),
        GapCause::NoPlaces => Some("no_places"),
        GapCause::InputUnreadable | GapCause::SettingsChange => Some("inspection_incomplete"),
    }
}

fn said(absence: &Absence) -> String {
    match absence {
        Absence::Places => "the hook does not know where Ringfence's service is".to_owned(),
        Absence::Random => "the system gave the hook no random number".to_owned(),
        Absence::Ask(error) => error.to_string(),
    }
}

/// What the compiled-in rules say. Until there are any, nothing is: what executes or changes is then denied.
pub(super) fn builtin(_tool: &ToolUse, _cwd: &str) -> Option<Decision> {
    None
}

/// The working tree as far as one call tells: the git toplevel above its directory, else the directory itself; never
/// the root, the home or an ancestor of it.
#[cfg(test)]
fn working_tree(cwd: &Path, home: &Path) -> Option<PathBuf> {
    let here = std::fs::canonicalize(cwd).ok()?;
    let toplevel = here.ancestors().find(|dir| dir.join(".git").exists());
    let home = std::fs::canonicalize(home).unwrap_or_else(|_| home.to_owned());
    [toplevel, Some(here.as_path())].into_iter().flatten().find(|tree| !home.starts_with(tree)).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_the_toplevel_but_never_the_home() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let home = root.join("home/ada");
        let inside = home.join("work/project/src");
        std::fs::create_dir_all(&inside).unwrap();
        assert_eq!(working_tree(&inside, &home), Some(inside.clone()));
        std::fs::create_dir(home.join("work/project/.git")).unwrap();
        assert_eq!(working_tree(&inside, &home), Some(home.join("work/project")));
        assert_eq!(working_tree(&home, &home), None);
        assert_eq!(working_tree(&root, &home), None);
        assert_eq!(working_tree(Path::new("/"), &home), None);
        assert_eq!(working_tree(&root.join("gone"), &home), None);
        // A home under version control is still the home; the directory in it is what is left.
        std::fs::create_dir(home.join(".git")).unwrap();
        std::fs::create_dir(home.join("notes")).unwrap();
        assert_eq!(working_tree(&home.join("notes"), &home), Some(home.join("notes")));
    }

    #[test]
    fn only_nobody_there_leaves_it_to_the_rules() {
        use GapCause as C;
        let left = [C::ServiceDown, C::BlockedByHostSandbox, C::ServiceFull, C::ServiceLate, C::ServiceConfused]
            .into_iter()
            .chain([C::ServiceRefused, C::ServiceUntrusted, C::NoPlaces, C::InputUnreadable, C::SettingsChange])
            .filter(|cause| refusal(*cause).is_none());
        assert_eq!(left.collect::<Vec<_>>(), [C::ServiceDown, C::BlockedByHostSandbox]);
    }
}
