//! TR-INSPECTION-INCOMPLETE: what could not be read is escalated, never waved through.
#![forbid(unsafe_code)]

use super::destruct_outside::{self, Harm};
use super::places::{self, Zone};
use super::{Hits, Subject};
use crate::host::ToolClass;
use crate::policy::judge::Severity;

pub(super) fn judge(subject: &Subject<'_>, hits: &mut Hits<'_>) {
    let question = subject.question;
    let input = &question.call.input;
    // A tool that executes or edits without the text or the file that makes it one.
    let missing = match (subject.class, question.call.tool.as_str()) {
        (ToolClass::ShellExec, "Bash") => {
            input.get("command").and_then(|command| command.as_str()).is_none().then_some("command")
        }
        (ToolClass::FileEdit, "Write" | "Edit" | "MultiEdit") => {
            input.get("file_path").and_then(|path| path.as_str()).is_none().then_some("file_path")
        }
        (ToolClass::FileEdit, "NotebookEdit") => {
            input.get("notebook_path").and_then(|path| path.as_str()).is_none().then_some("notebook_path")
        }
        _ => None,
    };
    if let Some(key) = missing {
        hits.add(Severity::Deny, &format!("the call has no readable {key}"));
    }
    for problem in &subject.action.problems {
        hits.add(Severity::Review, &problem.to_string());
    }
    for command in subject.local() {
        for (harm, text, target) in destruct_outside::targets(command) {
            let recursive = matches!(harm, Harm::Recursive | Harm::Modes);
            if recursive && places::zone(&text, &target, question.world, question.cwd) == Zone::Unknown {
                hits.add(Severity::Review, &format!("it is not known what {} would destroy", command.program));
            }
        }
        if command.program.contains("sed") && command.code.as_ref().is_some_and(|code| code.executes) {
            hits.add(Severity::Review, "sed would run the text that it makes");
        }
    }
}
