//! TR-POLICY-TAMPER: switching off hooks, Ringfence, its service, pins, policy or wrapper.
#![forbid(unsafe_code)]

use super::destruct_outside;
use super::files::Verb;
use super::{Hits, Subject, places};
use crate::policy::judge::Severity;
use crate::policy::shell::{Command, Options, Source};

pub(super) fn judge(subject: &Subject<'_>, hits: &mut Hits<'_>) {
    let world = subject.question.world;
    for command in subject.local() {
        service(command, hits);
        signals(command, hits);
        own_programs(command, hits);
        inner_hosts(subject, command, hits);
        for (_, text, target) in destruct_outside::targets(command) {
            if places::is_guard(&target, world) || places::host_settings(&target, world) == Some(true) {
                hits.add(Severity::Deny, &format!("{} would take away {text}, which the guard needs", command.program));
            }
        }
        let changes = matches!(command.program.as_str(), "chmod" | "chown" | "chattr" | "mount" | "umount" | "setfacl");
        if changes
            && command.texts().any(|text| {
                places::is_guard(&command.path(text), world)
                    || command.program == "umount" && text.starts_with("/sys/fs/bpf")
            })
        {
            hits.add(Severity::Deny, &format!("{} would change files of the guard", command.program));
        }
    }
    for write in &subject.action.writes {
        if places::is_guard(&write.path, world) {
            hits.add(Severity::Deny, &format!("{} belongs to the guard and would be written", write.path));
            continue;
        }
        match (places::host_settings(&write.path, world), &write.flow.text) {
            (None, _) => {}
            (Some(own), Some(text)) => settings(own && !write.append, &write.path, "", text, hits),
            // What is written is computed: by something that speaks of hooks it is a removal.
            (Some(own), None) => {
                let about_hooks = subject
                    .commands()
                    .iter()
                    .any(|command| command.texts().any(|text| text.to_ascii_lowercase().contains("hook")));
                if about_hooks {
                    hits.add(Severity::Deny, &format!("the hooks in {} would be rewritten", write.path));
                } else if own {
                    hits.add(Severity::Review, &format!("{} holds the hooks and would be rewritten", write.path));
                }
            }
        }
    }
    for file in subject.files.iter().filter(|file| file.verb != Verb::Read) {
        if places::is_guard(&file.path, world) {
            hits.add(Severity::Deny, &format!("{} belongs to the guard and would be changed", file.path));
        } else if let Some(own) = places::host_settings(&file.path, world) {
            if file.verb == Verb::Delete && own {
                hits.add(Severity::Deny, &format!("{} holds the hooks and would be deleted", file.path));
            } else {
                settings(own && file.verb == Verb::Write, &file.path, &file.removed, &file.added, hits);
            }
        }
    }
}

/// A host's settings change: `whole` when the text replaces a file that our hooks are in.
fn settings(whole: bool, path: &str, removed: &str, added: &str, hits: &mut Hits<'_>) {
    let squeezed: String = added.chars().filter(|c| !c.is_whitespace()).collect();
    if squeezed.contains("\"disableAllHooks\":true") {
        hits.add(Severity::Deny, &format!("{path} would switch every hook off"));
    }
    let lost = removed.contains("ringfence") && !added.contains("ringfence");
    if lost
        || whole
            && !added.contains("ringfence-hook")
            && !path.ends_with(".local.json")
            && !path.ends_with(".claude.json")
    {
        hits.add(Severity::Deny, &format!("the hook entries would be gone from {path}"));
    }
    if squeezed.contains("CLAUDE_CODE_SHELL_PREFIX") && !squeezed.contains("ringfence-exec") {
        hits.add(Severity::Deny, &format!("{path} would replace the wrapper that fences commands"));
    }
}

fn is_own_unit(text: &str) -> bool {
    text.starts_with("ringfence")
}

fn service(command: &Command, hits: &mut Hits<'_>) {
    if !matches!(command.program.as_str(), "systemctl" | "service" | "rc-service" | "initctl" | "launchctl") {
        return;
    }
    let Some(unit) = command.texts().find(|text| is_own_unit(text) || text.contains("*") && glob_of_own(text)) else {
        return;
    };
    let stops = [
        "stop",
        "disable",
        "mask",
        "kill",
        "revert",
        "edit",
        "set-property",
        "reset-failed",
        "freeze",
        "clean",
        "isolate",
    ];
    if command.texts().any(|text| stops.contains(&text)) {
        hits.add(Severity::Deny, &format!("{unit} is the guard's service and would be stopped or changed"));
    } else if command.texts().any(|text| matches!(text, "restart" | "try-restart" | "reload" | "daemon-reexec")) {
        hits.add(Severity::Review, &format!("{unit} is the guard's service and would be restarted"));
    }
}

fn glob_of_own(text: &str) -> bool {
    ["ringfenced", "ringfenced.service", "ringfence-probe", "ringfence-probe.service"]
        .iter()
        .any(|unit| crate::policy::shell::path::matches(text, unit, true))
}

fn signals(command: &Command, hits: &mut Hits<'_>) {
    let named = match command.program.as_str() {
        "pkill" | "killall" | "skill" | "killall5" => command.args().iter().any(|arg| !arg.text.starts_with('-') && arg.text.contains("ringfence")),
        "kill" => command.args().iter().any(|arg| arg.sources.iter().any(|source| matches!(source, Source::File(file) if file.starts_with("/proc/") && file.contains("ringfence"))))
            || command.stdin.sources.iter().any(|source| matches!(source, Source::File(file) if file.starts_with("/proc/") && file.contains("ringfence"))),
        _ => false,
    };
    let everybody = match command.program.as_str() {
        "kill" => command.args().iter().skip(1).any(|arg| arg.text == "-1"),
        "pkill" | "killall" => {
            let options = Options::read(command.args(), "u U g G P s t signal", false);
            options.has(&["-u", "-U"]) && options.operands.is_empty()
        }
        "loginctl" => command.texts().any(|text| {
            matches!(text, "kill-user" | "terminate-user" | "kill-session" | "terminate-session" | "terminate-seat")
        }),
        _ => false,
    };
    if everybody {
        hits.add(
            Severity::Deny,
            &format!("{} would end every process of the person, the guard's too", command.program),
        );
    }
    if command.code.as_ref().is_some_and(|code| code.signals) && command.texts().any(|text| text.contains("ringfence"))
    {
        hits.add(Severity::Deny, &format!("{} would signal the guard", command.program));
    }
    // Asking whether it lives is no signal.
    if named && !command.has("-0") {
        hits.add(Severity::Deny, &format!("{} is aimed at the guard", command.program));
    }
}

fn own_programs(command: &Command, hits: &mut Hits<'_>) {
    let loaded =
        command.env.iter().find(|(name, _)| matches!(name.as_str(), "LD_PRELOAD" | "LD_AUDIT" | "LD_LIBRARY_PATH"));
    if let Some((name, _)) = loaded.filter(|_| command.program.starts_with("ringfence")) {
        hits.add(Severity::Deny, &format!("{name} would load other code into {}", command.program));
    }
    let words: Vec<&str> = command.texts().filter(|text| !text.starts_with('-')).collect();
    let verb = words.first().copied().unwrap_or("");
    let changes = match command.program.as_str() {
        "ringfence" => match verb {
            "allow" | "grant" | "level" | "mode" | "pause" | "uninstall" => true,
            "integrate" => words.contains(&"remove"),
            "policy" => words.contains(&"disable"),
            _ => false,
        },
        "ringfence-probe" => command.has("--unload"),
        "apt" | "apt-get" | "dpkg" | "dnf" | "yum" | "pacman" | "rpm" | "zypper" | "cargo" => {
            let removes = command.texts().any(|text| {
                matches!(
                    text,
                    "remove"
                        | "purge"
                        | "autoremove"
                        | "-r"
                        | "-P"
                        | "--purge"
                        | "-R"
                        | "-Rns"
                        | "-e"
                        | "erase"
                        | "uninstall"
                        | "--remove"
                )
            });
            removes && words.iter().any(|word| word.starts_with("ringfence"))
        }
        "bpftool" => {
            command.texts().any(|text| matches!(text, "detach" | "delete" | "unpin"))
                || command.texts().any(|text| text.contains("ringfence"))
                    && !command.texts().any(|text| matches!(text, "show" | "list" | "dump"))
        }
        _ => false,
    };
    if changes {
        hits.add(
            Severity::Deny,
            &format!("{} {verb}: what the guard enforces is not an agent's to change", command.program),
        );
    }
}

/// A host started by a command without its own checks or without ours.
fn inner_hosts(subject: &Subject<'_>, command: &Command, hits: &mut Hits<'_>) {
    let asks_only = command.texts().any(|text| matches!(text, "--version" | "--help" | "-v" | "-h"));
    if !matches!(command.program.as_str(), "claude" | "codex") || asks_only {
        return;
    }
    if command.texts().any(|text| {
        matches!(
            text,
            "--dangerously-skip-permissions"
                | "--dangerously-bypass-approvals-and-sandbox"
                | "--yolo"
                | "bypassPermissions"
                | "--dangerously-bypass-hook-trust"
                | "danger-full-access"
        )
    }) {
        hits.add(Severity::Review, &format!("{} would start with its own checks off", command.program));
    }
    if command.texts().any(|text| {
        text.contains("disableAllHooks")
            || text.contains("features.hooks=false")
            || text.contains("features.codex_hooks=false")
    }) {
        hits.add(Severity::Deny, &format!("{} would start with its hooks off", command.program));
    }
    const PREFIX: &str = "CLAUDE_CODE_SHELL_PREFIX";
    let unset = subject.commands().iter().any(|other| match other.program.as_str() {
        "unset" => other.has(PREFIX),
        "env" => {
            Options::read(other.args(), "u C S unset", true)
                .values(&["-u", "--unset"])
                .any(|field| field.text == PREFIX)
                || other.has("-i")
        }
        "export" => other.texts().any(|text| text.starts_with(PREFIX)),
        _ => false,
    });
    if unset || command.env.iter().any(|(name, value)| name == PREFIX && !value.text.contains("ringfence-exec")) {
        hits.add(
            Severity::Review,
            &format!("{} would start without the wrapper that fences its commands", command.program),
        );
    }
}
