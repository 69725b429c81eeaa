//! Which files and variables are credentials.
#![forbid(unsafe_code)]

use super::places;
use crate::policy::judge::World;
use crate::policy::shell::{Source, path};

const FILES: [&str; 26] = [
    ".aws/credentials",
    ".kube/config",
    ".docker/config.json",
    ".netrc",
    "_netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".vault-token",
    ".config/gh/hosts.yml",
    ".config/hub",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".claude/.credentials.json",
    ".codex/auth.json",
    ".terraform.d/credentials.tfrc.json",
    ".config/rclone/rclone.conf",
    ".s3cfg",
    ".boto",
    ".fly/config.yml",
    ".yarnrc.yml",
    ".config/containers/auth.json",
];
const DIRECTORIES: [&str; 16] = [
    ".gnupg",
    ".password-store",
    ".azure",
    ".config/gcloud",
    ".config/op",
    ".local/share/keyrings",
    ".mozilla/firefox",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/doctl",
    ".thunderbird",
    ".local/share/kwalletd",
    ".oci",
    ".local/state/ringfence",
];

/// Whether a file's content is a credential. A directory that holds some counts, a public key does not.
pub(super) fn is_credential(file: &str, world: &World) -> bool {
    if file.ends_with(".pub") {
        return false;
    }
    let system = ["/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/security/opasswd"];
    if system.contains(&file) || file.starts_with("/run/secrets/") || file.starts_with("/var/run/secrets/") {
        return true;
    }
    if file.starts_with("/etc/ssh/ssh_host_") || file.starts_with("/proc/") && file.ends_with("/environ") {
        return true;
    }
    let Some(below) = places::below_home(file, world) else { return false };
    // A pattern may match anything that starts like it.
    let known = path::known_prefix(below);
    let pattern = known.len() < below.len();
    if below == ".ssh" || path::is_within(below, ".ssh") {
        let name = path::name(below);
        return !matches!(
            name,
            "known_hosts" | "known_hosts.old" | "config" | "authorized_keys" | "environment" | "rc"
        ) || below == ".ssh";
    }
    if below == ".aws" || pattern && known == ".aws" {
        return true;
    }
    FILES.iter().any(|credential| below == *credential || pattern && path::matches(below, credential, false))
        || DIRECTORIES.iter().any(|directory| path::is_within(below, directory))
}

/// Whether a directory contains the person's credentials somewhere below: a home, or what holds one.
pub(super) fn contains_credentials(directory: &str, world: &World) -> bool {
    path::is_within(&places::home(world), directory)
}

/// Whether a variable's name speaks of a secret.
pub(super) fn is_secret_variable(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    [
        "SECRET",
        "TOKEN",
        "PASSWORD",
        "PASSWD",
        "API_KEY",
        "APIKEY",
        "ACCESS_KEY",
        "PRIVATE_KEY",
        "CREDENTIAL",
        "PASSPHRASE",
    ]
    .iter()
    .any(|part| name.contains(part))
}

/// How a credential is called in evidence; `None` when the source is none.
pub(super) fn named(source: &Source, world: &World) -> Option<String> {
    match source {
        Source::File(file) if is_credential(file, world) => Some(file.clone()),
        Source::Variable(name) if is_secret_variable(name) => Some(format!("the variable {name}")),
        _ => None,
    }
}

/// Whether the file is a project's secret environment: `.env`, `.env.local`, not `.env.example`.
pub(super) fn is_dotenv(file: &str) -> bool {
    let name = path::name(file);
    let Some(rest) = name.strip_prefix(".env") else { return false };
    let template = ["example", "sample", "template", "dist", "defaults", "schema", "tpl", "md", "ts", "js"];
    rest.is_empty() || rest.strip_prefix('.').is_some_and(|kind| !kind.split('.').any(|part| template.contains(&part)))
}
