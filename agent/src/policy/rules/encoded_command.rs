//! TR-ENCODED-COMMAND: decoded text that is executed.
#![forbid(unsafe_code)]

use super::{Hits, Subject};
use crate::policy::judge::Severity;
use crate::policy::shell::Source;

pub(super) fn judge(subject: &Subject<'_>, hits: &mut Hits<'_>) {
    for command in subject.commands() {
        if command.runs.as_ref().is_some_and(|runs| runs.sources.contains(&Source::Decoded)) {
            hits.add(Severity::Review, &format!("{} would run text that was decoded", command.program));
        }
        let interpreter = command.runs.is_none() && super::remote_exec::runs_its_input(command);
        if interpreter && command.stdin.sources.contains(&Source::Decoded) {
            hits.add(Severity::Review, &format!("{} would run text that was decoded", command.program));
        }
        if command.code.as_ref().is_some_and(|code| code.decodes && (code.executes || !code.shell.is_empty())) {
            hits.add(Severity::Review, &format!("{} would run text that it decodes", command.program));
        }
    }
}
