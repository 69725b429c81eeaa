//! What a path is to the person: their project, their data, a cache, the system, the guard itself.
#![forbid(unsafe_code)]

use crate::policy::judge::World;
use crate::policy::shell::{self, path};

/// What would be lost with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zone {
    /// In the working tree.
    Tree,
    /// In a directory for temporary files.
    Temporary,
    /// A cache that its program fills again.
    Cache,
    /// A disk or other device.
    Device,
    /// A null-like device, a terminal, a descriptor: nothing is lost.
    Harmless,
    /// The person's or the system's.
    Outside,
    /// It is not known where it leads.
    Unknown,
}

/// Home as text.
pub(super) fn home(world: &World) -> std::borrow::Cow<'_, str> {
    world.home.to_string_lossy()
}

/// A path below somebody's home, without the home: `.ssh/id_rsa`.
pub(super) fn below_home<'p>(path: &'p str, world: &World) -> Option<&'p str> {
    let own = home(world);
    if let Some(rest) = path.strip_prefix(own.as_ref())
        && own.len() > 1
        && let Some(rest) = rest.strip_prefix('/')
    {
        return Some(rest);
    }
    if let Some(rest) = path.strip_prefix("/root/") {
        return Some(rest);
    }
    let rest = path.strip_prefix("/home/")?;
    rest.split_once('/').map(|(_, rest)| rest)
}

/// The directory that a call may change freely: the working tree, else where it runs unless that is a home or the root.
pub(super) fn tree(world: &World, cwd: &str) -> Option<String> {
    if let Some(tree) = &world.tree {
        return Some(tree.to_string_lossy().into_owned());
    }
    let cwd = path::absolute(Some("/"), cwd);
    let is_too_much = path::is_within(&home(world), &cwd);
    (!is_too_much).then_some(cwd)
}

const CACHES: [&str; 16] = [
    ".cache",
    ".npm/_cacache",
    ".npm/_npx",
    ".npm/_logs",
    ".cargo/registry",
    ".cargo/git",
    ".gradle/caches",
    ".m2/repository",
    "go/pkg",
    ".yarn/cache",
    ".local/share/Trash",
    ".local/share/pnpm/store",
    ".pnpm-store",
    ".ccache",
    ".nuget/packages",
    ".bun/install/cache",
];

/// What a path is. `text` is how it was written, `path` its absolute form.
pub(super) fn zone(text: &str, path: &str, world: &World, cwd: &str) -> Zone {
    if text.starts_with(shell::UNKNOWN) || path.starts_with(shell::UNKNOWN) || path.is_empty() {
        return Zone::Unknown;
    }
    if path.starts_with("/dev/") {
        let harmless = [
            "/dev/null",
            "/dev/stdout",
            "/dev/stderr",
            "/dev/tty",
            "/dev/zero",
            "/dev/full",
            "/dev/fd/",
            "/dev/pts/",
            "/dev/tcp/",
            "/dev/udp/",
        ];
        if harmless.iter().any(|name| path.starts_with(name)) {
            return Zone::Harmless;
        }
        return if path.starts_with("/dev/shm/") { Zone::Temporary } else { Zone::Device };
    }
    let prefix = path::known_prefix(path);
    let rest = &path[prefix.len()..];
    if rest.contains("/..") && rest.contains(shell::UNKNOWN) {
        return Zone::Unknown;
    }
    if tree(world, cwd).is_some_and(|tree| path::is_within(prefix, &tree)) {
        return Zone::Tree;
    }
    for temporary in ["/tmp", "/var/tmp"] {
        if path::is_within(prefix, temporary) {
            return Zone::Temporary;
        }
    }
    let below = below_home(prefix, world);
    if below.is_some_and(|below| CACHES.iter().any(|cache| path::is_within(below, cache))) {
        return Zone::Cache;
    }
    if prefix == "/" && path[1..].starts_with(shell::UNKNOWN) {
        return Zone::Unknown;
    }
    Zone::Outside
}

/// Directories of the system.
pub(super) fn is_system(path: &str) -> bool {
    ["/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/boot", "/opt", "/var/lib", "/sys", "/proc"]
        .iter()
        .any(|directory| path::is_within(path, directory))
}

/// Files and directories of Ringfence itself.
pub(super) fn is_guard(path: &str, world: &World) -> bool {
    let runtime = world.runtime_dir.to_string_lossy();
    if [
        "/etc/ringfence",
        "/usr/share/ringfence",
        "/run/ringfence",
        "/sys/fs/bpf/ringfence",
        "/var/lib/ringfence",
        "/usr/lib/ringfence",
    ]
    .iter()
    .any(|own| path::is_within(path, own))
    {
        return true;
    }
    if path::is_within(path, &format!("{runtime}/ringfence")) {
        return true;
    }
    let program = path::name(path).starts_with("ringfence");
    let places =
        ["/usr/bin/", "/usr/local/bin/", "/usr/sbin/", "/bin/", "/etc/systemd/", "/usr/lib/systemd/", "/lib/systemd/"];
    if program && places.iter().any(|place| path.starts_with(place)) {
        return true;
    }
    below_home(path, world).is_some_and(|below| {
        [".config/ringfence", ".local/state/ringfence", ".local/share/ringfence", ".cache/ringfence"]
            .iter()
            .any(|own| path::is_within(below, own))
            || program
                && [".local/bin/", ".cargo/bin/", "bin/", ".config/systemd/"]
                    .iter()
                    .any(|place| below.starts_with(place))
    })
}

/// Where the hosts keep their hooks: `true` for the person's own, `false` for a project's.
pub(super) fn host_settings(path: &str, world: &World) -> Option<bool> {
    let file = |below: &str| {
        matches!(
            below,
            ".claude/settings.json"
                | ".claude/settings.local.json"
                | ".codex/hooks.json"
                | ".codex/config.toml"
                | ".claude.json"
                | ".claude"
                | ".codex"
        ) || path::is_within(below, ".claude/hooks")
    };
    if below_home(path, world).is_some_and(file)
        || path.starts_with("/etc/claude-code/")
        || path.starts_with("/etc/codex/")
    {
        return Some(true);
    }
    let tree = world.tree.as_ref().map(|tree| tree.to_string_lossy().into_owned())?;
    let below = path.strip_prefix(tree.as_str())?.strip_prefix('/')?;
    file(below).then_some(false)
}

/// Whether a host name is this machine.
pub(super) fn is_local_host(host: &str) -> bool {
    let host = host.trim_start_matches('[');
    let name = host.split(['/', ']']).next().unwrap_or("");
    let name = if name.matches(':').count() == 1 { name.split(':').next().unwrap_or("") } else { name };
    let name = name.rsplit('@').next().unwrap_or("");
    matches!(name, "localhost" | "0.0.0.0" | "::1" | "ip6-localhost" | "host.docker.internal")
        || name.ends_with(".localhost")
        || name.starts_with("127.")
}

/// The host of a URL, or of a name with a port or path.
pub(super) fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or("");
    let host = authority.rsplit('@').next().unwrap_or("");
    if host.starts_with('[') { host } else { host.split(':').next().unwrap_or("") }
}
