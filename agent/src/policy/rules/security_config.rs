//! TR-SECURITY-CONFIG: security settings, and what runs later in the person's name.
#![forbid(unsafe_code)]

use super::files::Verb;
use super::{Hits, Subject, places};
use crate::policy::judge::{Severity, World};
use crate::policy::shell::{Command, path};

const LOGIN_FILES: [&str; 22] = [
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".xprofile",
    ".xinitrc",
    ".xsessionrc",
    ".pam_environment",
    ".inputrc",
    ".gitconfig",
    ".ssh/authorized_keys",
    ".ssh/authorized_keys2",
    ".ssh/config",
    ".ssh/rc",
    ".ssh/environment",
    ".config/mimeapps.list",
];
const LOGIN_DIRECTORIES: [&str; 8] = [
    ".config/autostart",
    ".config/systemd",
    ".config/environment.d",
    ".config/git",
    ".config/fish",
    ".local/share/dbus-1",
    ".local/share/systemd",
    ".config/plasma-workspace",
];
const SYSTEM: [&str; 17] = [
    "/etc/cron.d",
    "/etc/cron.daily",
    "/etc/cron.hourly",
    "/etc/crontab",
    "/etc/profile",
    "/etc/profile.d",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ld.so.preload",
    "/etc/ld.so.conf.d",
    "/etc/pam.d",
    "/etc/ssh",
    "/etc/systemd",
    "/etc/environment",
    "/etc/apparmor.d",
    "/etc/selinux",
    "/var/spool/cron",
];

/// What a file does when it is changed; `None` for an ordinary one.
fn runs_later(file: &str, world: &World) -> Option<&'static str> {
    if SYSTEM.iter().any(|own| path::is_within(file, own)) {
        return Some("is a security setting of the system");
    }
    if let Some(below) = places::below_home(file, world)
        && (LOGIN_FILES.contains(&below) || LOGIN_DIRECTORIES.iter().any(|own| path::is_within(below, own)))
    {
        return Some("runs later in the person's name");
    }
    let hook =
        file.split("/.git/").nth(1).is_some_and(|inside| inside.starts_with("hooks/") || inside.contains("/hooks/"));
    hook.then_some("is a git hook, which runs later")
}

pub(super) fn judge(subject: &Subject<'_>, hits: &mut Hits<'_>) {
    let world = subject.question.world;
    for write in &subject.action.writes {
        if let Some(why) = runs_later(&write.path, world) {
            hits.add(Severity::Review, &format!("{} {why}", write.path));
        }
    }
    for file in subject.files.iter().filter(|file| file.verb != Verb::Read) {
        if let Some(why) = runs_later(&file.path, world) {
            hits.add(Severity::Review, &format!("{} {why}", file.path));
        }
    }
    for command in subject.local() {
        if let Some(what) = weakens(command) {
            hits.add(Severity::Review, &what);
        }
    }
}

fn weakens(command: &Command) -> Option<String> {
    let program = command.program.as_str();
    let has = |any: &[&str]| command.texts().any(|text| any.contains(&text));
    let hit = match program {
        "crontab" => !has(&["-l"]),
        "setenforce"
        | "aa-disable"
        | "aa-complain"
        | "aa-teardown"
        | "userdel"
        | "useradd"
        | "deluser"
        | "groupdel"
        | "passwd"
        | "chpasswd"
        | "chage"
        | "chsh"
        | "update-alternatives" => true,
        "iptables" | "ip6tables" | "nft" | "ebtables" => {
            !has(&["-L", "-S", "--list", "--list-rules", "list", "-nL", "-nvL", "-vnL"])
        }
        "ufw" | "firewall-cmd" => {
            !has(&["status", "--state", "--list-all", "--list-ports"]) && !command.args().is_empty()
        }
        "sysctl" => {
            command.texts().any(|text| matches!(text, "-w" | "-p" | "--write" | "--load") || text.contains('='))
        }
        "history" => has(&["-c", "-d", "-w"]),
        "systemctl" => has(&["enable", "disable", "mask", "link", "edit", "set-default"]),
        "loginctl" => has(&["enable-linger"]),
        "git" if has(&["config"]) => {
            let keys = [
                "core.hookspath",
                "core.sshcommand",
                "core.fsmonitor",
                "core.pager",
                "core.editor",
                "credential.helper",
                "gpg.program",
                "include.path",
                "http.sslverify",
                "protocol.ext.allow",
            ];
            let key = command.texts().find(|text| {
                keys.contains(&text.to_ascii_lowercase().as_str())
                    || text.starts_with("alias.")
                    || text.starts_with("filter.")
            });
            key.is_some_and(|key| command.texts().skip_while(|text| *text != key).nth(1).is_some())
                && !has(&["--get", "--get-all", "--unset", "-l", "--list", "get", "list"])
        }
        "ssh-copy-id" | "update-ca-certificates" | "update-ca-trust" | "certutil" => true,
        _ => false,
    };
    hit.then(|| format!("{program} would change a security setting or what runs later"))
}
