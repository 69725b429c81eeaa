//! TR-SENSITIVE-READ: ssh, cloud, token and password files read without need.
#![forbid(unsafe_code)]

use super::files::Verb;
use super::task::Task;
use super::{Hits, Subject, credentials, places};
use crate::policy::judge::Severity;
use crate::policy::shell::Source;

pub(super) fn judge(subject: &Subject<'_>, hits: &mut Hits<'_>) {
    let world = subject.question.world;
    let task = Task::read(subject.question.task);
    let mut found = |file: &str, who: &str| {
        if !credentials::is_credential(file, world) {
            return;
        }
        // The person named this very file.
        let asked =
            places::below_home(file, world).is_some_and(|below| task.names(&format!("~/{below}")) || task.names(below));
        hits.add(if asked { Severity::Warn } else { Severity::Review }, &format!("{who} would read {file}"));
    };
    for command in subject.local() {
        for source in command.reads.iter().chain(&command.stdin.sources) {
            if let Source::File(file) = source {
                found(file, &command.program);
            }
        }
        for file in command.code.iter().flat_map(|code| &code.opens) {
            let file = file.strip_prefix("~/").map_or(file.clone(), |rest| format!("{}/{rest}", places::home(world)));
            found(&command.path(&file), &command.program);
        }
    }
    for file in subject.files.iter().filter(|file| file.verb == Verb::Read) {
        found(&file.path, &subject.question.call.tool);
    }
}
