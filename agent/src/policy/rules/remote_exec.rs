//! TR-REMOTE-EXEC: what the network answers is executed.
#![forbid(unsafe_code)]

use super::{Hits, Subject, places};
use crate::policy::judge::Severity;
use crate::policy::shell::{self, Command, Options, Source};

/// An interpreter without a program of its own runs what comes down the pipe.
pub(super) fn runs_its_input(command: &Command) -> bool {
    let program = command.program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let interpreter = matches!(
        program,
        "python" | "pypy" | "perl" | "ruby" | "node" | "nodejs" | "php" | "lua" | "bun" | "deno" | "psql" | "osascript"
    );
    interpreter
        && program != "psql"
        && command.texts().all(|text| {
            text == "-" || text.starts_with('-') && !matches!(text, "-c" | "-e" | "-m" | "-r" | "-p" | "-E")
        })
}

pub(super) fn judge(subject: &Subject<'_>, hits: &mut Hits<'_>) {
    for command in subject.commands() {
        let input = runs_its_input(command).then_some(&command.stdin.sources);
        let run = command.runs.as_ref().map(|runs| &runs.sources).into_iter().chain(input);
        for source in run.flatten() {
            if let Source::Network(from) = source {
                hits.add(
                    Severity::Review,
                    &format!("{} would run what {} answers", command.program, places::host_of(from)),
                );
            }
        }
        if command.code.as_ref().is_some_and(|code| code.executes && code.network) {
            hits.add(Severity::Review, &format!("{} would run what it fetches", command.program));
        }
        if matches!(command.program.as_str(), "nc" | "ncat" | "netcat" | "socat") {
            let hands_over = command.texts().any(|text| {
                matches!(text, "-e" | "-c" | "--exec" | "--sh-exec")
                    || text.to_ascii_lowercase().starts_with("exec:")
                    || text.to_ascii_lowercase().starts_with("system:")
            });
            if hands_over {
                hits.add(
                    Severity::Review,
                    &format!("{} would give a program to whoever is at the other end", command.program),
                );
            }
        }
        if matches!(command.program.as_str(), "pip" | "pip3" | "uv" | "pipx") && command.has("install") {
            let options =
                Options::read(command.args(), "i index-url extra-index-url f find-links default-index index", false);
            let index = options
                .values(&["-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--index", "--default-index"])
                .map(|field| field.text.as_str());
            let direct = options.operands.iter().map(|field| field.text.as_str()).filter(|text| text.contains("://"));
            let foreign = |url: &&str| {
                url.contains("://")
                    && !["pypi.org", "files.pythonhosted.org", "test.pypi.org", "download.pytorch.org"]
                        .contains(&places::host_of(url))
                    && !places::is_local_host(places::host_of(url))
            };
            if let Some(url) = index.chain(direct).find(foreign) {
                hits.add(
                    Severity::Review,
                    &format!("packages of {} would be installed, and so run", places::host_of(url)),
                );
            }
        }
    }
    // A shell that talks to a connection: `bash -i >& /dev/tcp/…`.
    let connected = subject.action.writes.iter().find(|write| {
        (write.path.starts_with("/dev/tcp/") || write.path.starts_with("/dev/udp/")) && shell::is_shell(&write.program)
    });
    if let Some(write) = connected {
        hits.add(Severity::Review, &format!("{} would be given to whoever is at {}", write.program, &write.path[9..]));
    }
}
