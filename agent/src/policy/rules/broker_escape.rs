//! TR-BROKER-ESCAPE: asking somebody outside the tree to run something.
#![forbid(unsafe_code)]

use super::places::{self, Zone};
use super::{Hits, Subject};
use crate::policy::judge::Severity;
use crate::policy::shell::{Command, Options, SSH_VALUED};

const SOCKETS: [&str; 9] = [
    "docker.sock",
    "podman.sock",
    "containerd.sock",
    "crio.sock",
    "systemd/private",
    "/bus",
    "dbus/system_bus_socket",
    "incus/unix.socket",
    "lxd/unix.socket",
];

pub(super) fn judge(subject: &Subject<'_>, hits: &mut Hits<'_>) {
    for command in subject.local() {
        if let Some(what) = asks(subject, command) {
            hits.add(Severity::Review, &what);
        }
    }
}

fn asks(subject: &Subject<'_>, command: &Command) -> Option<String> {
    let program = command.program.as_str();
    let first = || command.texts().find(|text| !text.starts_with('-')).unwrap_or("");
    let reads_only = command.texts().any(|text| matches!(text, "--version" | "--help" | "-V"));
    if reads_only {
        return None;
    }
    let outside = match program {
        "systemd-run"
        | "at"
        | "batch"
        | "nsenter"
        | "machinectl"
        | "flatpak-spawn"
        | "distrobox-host-exec"
        | "xdotool"
        | "ydotool"
        | "wtype"
        | "gnome-terminal"
        | "xterm"
        | "konsole" => true,
        "systemctl" => {
            command.has("--user")
                && matches!(first(), "start" | "restart" | "enable" | "set-environment" | "import-environment")
        }
        "tmux" => matches!(
            first(),
            "send-keys"
                | "send"
                | "new-session"
                | "new"
                | "new-window"
                | "neww"
                | "run-shell"
                | "run"
                | "split-window"
                | "splitw"
                | "respawn-pane"
                | "pipe-pane"
                | "paste-buffer"
                | "load-buffer"
        ),
        "screen" => command.has("-X") || command.texts().any(|text| text.starts_with("-d") || text == "-S"),
        "dbus-send" | "gdbus" => true,
        "busctl" => matches!(first(), "call" | "set-property"),
        "kubectl" | "oc" => matches!(first(), "exec" | "attach" | "debug" | "run" | "cp"),
        "lxc" | "incus" => first() == "exec",
        "ssh" | "mosh" => {
            let options = Options::read(command.args(), SSH_VALUED, true);
            options.operands.first().is_some_and(|host| places::is_local_host(&host.text))
        }
        "docker" | "podman" | "nerdctl" => return container(subject, command),
        _ => false,
    };
    if outside {
        return Some(format!("{program} has something run outside this session's tree"));
    }
    let socket = |text: &str| {
        SOCKETS.iter().any(|socket| text.trim_end_matches(['/', '"']).ends_with(socket))
            && (text.contains("/run/") || text.contains("docker.sock"))
    };
    let speaks = matches!(program, "curl" | "socat" | "nc" | "ncat" | "python3" | "python" | "wget");
    let socket =
        command.texts().find(|text| socket(text.rsplit([':', ',']).find(|part| part.contains('/')).unwrap_or(text)));
    socket
        .filter(|_| speaks)
        .map(|socket| format!("{program} speaks to {socket}, which runs things outside this session's tree"))
}

/// A container with the project alone is a tool; one with the host in it is a way out.
fn container(subject: &Subject<'_>, command: &Command) -> Option<String> {
    let verb = command.args().iter().position(|arg| matches!(arg.text.as_str(), "run" | "create"))?;
    let rest = &command.args()[verb + 1..];
    for (at, arg) in rest.iter().enumerate() {
        let text = arg.text.as_str();
        let next = rest.get(at + 1).map_or("", |next| next.text.as_str());
        let (name, value) = text.split_once('=').unwrap_or((text, next));
        let (name, value) = match name.strip_prefix("-v") {
            Some(attached) if !attached.is_empty() && !name.starts_with("--") => ("-v", &text[2..]),
            _ => (name, value),
        };
        match name {
            "--privileged" => return Some(format!("{} would run a container with all rights", command.program)),
            "--pid" | "--ipc" | "--userns" | "--uts" | "--cgroupns" if value == "host" => {
                return Some(format!("{} would run a container in the host's namespaces", command.program));
            }
            "--cap-add" | "--device" | "--security-opt" if !value.contains("no-new-privileges") => {
                return Some(format!("{} would run a container with more rights: {name}", command.program));
            }
            "-v" | "--volume" | "--mount" => {
                let source = match name {
                    "--mount" => text
                        .split(['=', ','])
                        .chain(next.split(['=', ',']))
                        .skip_while(|part| !matches!(*part, "source" | "src"))
                        .nth(1)
                        .unwrap_or(""),
                    _ => value.split(':').next().unwrap_or(""),
                };
                if !source.starts_with(['/', '.', '~', crate::policy::shell::UNKNOWN]) {
                    continue;
                }
                let path = command.path(source);
                let zone = places::zone(source, &path, subject.question.world, subject.question.cwd);
                if !matches!(zone, Zone::Tree | Zone::Temporary | Zone::Cache) {
                    return Some(format!("{} would give a container {source}, outside the project", command.program));
                }
            }
            _ => {}
        }
    }
    None
}
