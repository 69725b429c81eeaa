//! TR-DOTENV-ACCESS: a project's environment files, which hold secrets; `.env.example` does not.
#![forbid(unsafe_code)]

use super::files::Verb;
use super::{Hits, Subject, credentials};
use crate::policy::judge::Severity;
use crate::policy::shell::Source;

pub(super) fn judge(subject: &Subject<'_>, hits: &mut Hits<'_>) {
    for command in subject.local() {
        for source in command.reads.iter().chain(&command.stdin.sources) {
            if let Source::File(file) = source
                && credentials::is_dotenv(file)
            {
                hits.add(Severity::Warn, &format!("{} would read {file}", command.program));
            }
        }
    }
    for file in subject.files.iter().filter(|file| file.verb == Verb::Read && credentials::is_dotenv(&file.path)) {
        hits.add(Severity::Warn, &format!("{} would read {}", subject.question.call.tool, file.path));
    }
}
