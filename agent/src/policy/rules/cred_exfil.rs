//! TR-CRED-EXFIL: a credential reaches an outbound transfer in the same effective action.
#![forbid(unsafe_code)]

use serde_json::Value;

use super::{Hits, Subject, credentials, places, transfer};
use crate::host::ToolClass;
use crate::policy::judge::Severity;
use crate::policy::shell::{Source, path};

pub(super) fn judge(subject: &Subject<'_>, hits: &mut Hits<'_>) {
    let world = subject.question.world;
    for command in subject.commands() {
        if let Some(code) = &command.code
            && code.network
        {
            let opened = code.opens.iter().map(|file| command.path(&at_home(subject, file)));
            for file in opened.filter(|file| credentials::is_credential(file, world)) {
                hits.add(Severity::Review, &format!("{} reads {file} and speaks to the network", command.program));
            }
        }
        let Some(sent) = transfer::of(command) else { continue };
        // A secret in a request to this machine is what local development looks like; a key file is not.
        for source in sent.data.iter().chain(&sent.login) {
            let in_login = !sent.data.contains(source);
            let to = if sent.to.is_empty() { "another machine" } else { &sent.to };
            match (credentials::named(source, world), source) {
                (Some(name), Source::File(_)) if !sent.local => {
                    hits.add(Severity::Deny, &format!("{name} would be sent to {to} by {}", command.program))
                }
                (Some(name), Source::File(_)) => {
                    hits.add(Severity::Review, &format!("{name} would be sent to {to} by {}", command.program))
                }
                (Some(name), _) if !sent.local && !in_login => {
                    hits.add(Severity::Deny, &format!("{name} would be sent to {to} by {}", command.program))
                }
                (None, Source::Environment) if !sent.local => hits.add(
                    Severity::Review,
                    &format!("the whole environment would be sent to {to} by {}", command.program),
                ),
                (None, Source::File(file)) if !sent.local && credentials::is_dotenv(file) => {
                    hits.add(Severity::Review, &format!("{file} would be sent to {to} by {}", command.program))
                }
                (None, Source::File(file))
                    if !sent.local && sent.bulk && credentials::contains_credentials(file, world) =>
                {
                    hits.add(
                        Severity::Deny,
                        &format!("{file}, with the credentials in it, would be sent to {to} by {}", command.program),
                    );
                }
                _ => {}
            }
        }
    }
    for write in &subject.action.writes {
        let Some(peer) = write.path.strip_prefix("/dev/tcp/").or_else(|| write.path.strip_prefix("/dev/udp/")) else {
            continue;
        };
        if places::is_local_host(peer) {
            continue;
        }
        for name in write.flow.sources.iter().filter_map(|source| credentials::named(source, world)) {
            hits.add(
                Severity::Deny,
                &format!("{name} would be written to the connection {}", path::name(&write.path.replace('/', ":"))),
            );
        }
        if write.flow.sources.contains(&Source::Environment) {
            hits.add(Severity::Review, "the whole environment would be written to a connection");
        }
    }
    if matches!(subject.class, ToolClass::Mcp | ToolClass::Fetch | ToolClass::Unknown) {
        structured(subject, hits);
    }
}

fn at_home(subject: &Subject<'_>, file: &str) -> String {
    match file.strip_prefix("~/") {
        Some(rest) => format!("{}/{rest}", places::home(subject.question.world)),
        None => file.to_owned(),
    }
}

/// A private key among the words of a request.
fn structured(subject: &Subject<'_>, hits: &mut Hits<'_>) {
    let input = &subject.question.call.input;
    let url = ["url", "uri", "endpoint", "webhook"].iter().find_map(|key| input.get(key).and_then(Value::as_str));
    let Some(url) = url.filter(|url| !places::is_local_host(places::host_of(url))) else { return };
    let mut waiting = vec![input];
    while let Some(value) = waiting.pop() {
        match value {
            Value::String(text) if text.contains("-----BEGIN ") && text.contains("PRIVATE KEY-----") => {
                hits.add(Severity::Deny, &format!("a private key would be sent to {}", places::host_of(url)));
            }
            Value::Array(items) => waiting.extend(items),
            Value::Object(map) => waiting.extend(map.values()),
            _ => {}
        }
    }
}
