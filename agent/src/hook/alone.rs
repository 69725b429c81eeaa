//! Judging without the service, by the rules that are compiled in. Never weaker than the service: what it would hold for
//! a person is denied, and where the service is there but does not answer, nothing that executes or changes passes.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use super::work::{Absence, Call};
use crate::host::claude_code::tool_class;
use crate::host::{HostEvent, HostKind, ToolUse};
use crate::ipc::hook::GapCause;
use crate::places::{self, Places, is_private};
use crate::policy::Policy;
use crate::policy::judge::{Decision, DecisionSource, Outcome, Question, Reviews, World};

/// The decision of a tool call that the service did not make.
pub(super) fn decide(call: &Call<'_>, event: &HostEvent, tool: &ToolUse, absence: &Absence) -> Decision {
    let policy = Policy::builtin();
    let judged = by_rules(&policy, tool, &event.cwd);
    let class = tool_class(&tool.tool);
    let deny = |reason_code: &str, explanation: String| Decision {
        outcome: Outcome::Deny,
        reason_code: reason_code.to_owned(),
        explanation,
        rules: Vec::new(),
        source: DecisionSource::Fallback,
        policy: policy.hash().to_owned(),
        fence: policy.default_fence().to_owned(),
    };
    // What the rules themselves deny keeps their reason.
    if let Some(decision) = judged.as_ref().filter(|decision| decision.outcome == Outcome::Deny) {
        return Decision { source: DecisionSource::EmergencyFallback, ..decision.clone() };
    }
    if class.executes_or_mutates() {
        if let Some(reason_code) = refusal(absence.cause()) {
            return deny(reason_code, said(absence));
        }
        if call.invocation.strict_offline || policy.strict_offline() {
            let explanation =
                format!("{}, and the policy lets nothing execute or change until it is back", said(absence));
            return deny("strict_offline", explanation);
        }
    }
    match judged {
        Some(decision) => Decision { source: DecisionSource::EmergencyFallback, ..decision },
        None if class.executes_or_mutates() => deny("no_home", "this user's home is not known to the hook".to_owned()),
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

/// What the compiled-in rules say; `None` when this user's home is not known, without which they cannot be read.
pub(super) fn by_rules(policy: &Policy, tool: &ToolUse, cwd: &str) -> Option<Decision> {
    let person = places::person()?;
    let world = World {
        tree: working_tree(Path::new(cwd), &person.home),
        runtime_dir: runtime_dir(),
        home: person.home,
        user: person.name,
        file_system: true,
    };
    let question = Question { host: HostKind::ClaudeCode, call: tool, cwd, task: None, world: &world };
    let (decision, _judgement) = policy.judge(&question).decide(policy, Reviews::Unavailable);
    Some(decision)
}

fn runtime_dir() -> PathBuf {
    let uid = Uid::current().as_raw();
    let of_session = PathBuf::from(format!("/run/user/{uid}"));
    if is_private(&of_session, uid) {
        return of_session;
    }
    Places::of_this_user().map_or(of_session, |places| places.runtime_dir)
}

/// The working tree as far as one call tells: the git toplevel above its directory, else the directory itself; never
/// the root, the home or an ancestor of it.
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
