//! TR-UNKNOWN-EGRESS: files go to an outside destination that the task does not name.
#![forbid(unsafe_code)]

use super::task::Task;
use super::{Hits, Subject, places, transfer};
use crate::policy::judge::Severity;
use crate::policy::shell::{Command, Options, SSH_VALUED, Source};

pub(super) fn judge(subject: &Subject<'_>, hits: &mut Hits<'_>) {
    let task = Task::read(subject.question.task);
    let named = |to: &str| {
        let host = places::host_of(to);
        let host = host.rsplit('@').next().unwrap_or(host);
        task.names(host)
            && task.asks(&[
                "upload", "copy", "send", "push", "sync", "deploy", "publish", "post", "transfer", "scp", "rsync",
                "share", "put",
            ])
    };
    for command in subject.local() {
        if let Some(sent) = transfer::of(command)
            && sent.bulk
            && !sent.local
            && !named(&sent.to)
        {
            let to = if sent.to.is_empty() { "another machine" } else { &sent.to };
            hits.add(
                Severity::Review,
                &format!("{} would send files to {to}, which the task does not name", command.program),
            );
        }
        if command.program == "ssh" && opens_tunnel(command) {
            hits.add(Severity::Review, "ssh would open something of this machine to another");
        }
        if command.program == "git" && command.has("push") {
            pushes(subject, command, &named, hits);
        }
    }
    for write in &subject.action.writes {
        let Some(peer) = write.path.strip_prefix("/dev/tcp/").or_else(|| write.path.strip_prefix("/dev/udp/")) else {
            continue;
        };
        let content = write.flow.sources.iter().any(|source| matches!(source, Source::File(_) | Source::Environment));
        if content && !places::is_local_host(peer) {
            hits.add(Severity::Review, &format!("files would be written to a connection to {peer}"));
        }
    }
}

fn opens_tunnel(command: &Command) -> bool {
    Options::read(command.args(), SSH_VALUED, true).has(&["-R"])
}

/// A push to an address, or to a remote that the action has just added.
fn pushes(subject: &Subject<'_>, command: &Command, named: &dyn Fn(&str) -> bool, hits: &mut Hits<'_>) {
    let to =
        command.texts().skip_while(|text| *text != "push").skip(1).find(|text| !text.starts_with('-')).unwrap_or("");
    let address = to.contains("://") || to.contains('@') && to.contains(':');
    let added = subject.local().any(|other| {
        other.program == "git"
            && other.has("remote")
            && (other.has("add") || other.has("set-url"))
            && other.has(to)
            && !to.is_empty()
    });
    if (address || added) && !named(to) {
        hits.add(Severity::Review, &format!("git would push to {to}, which the project did not know before"));
    }
}
