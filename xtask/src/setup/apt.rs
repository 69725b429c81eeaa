//! Debian packages, through apt as root or with sudo.

use std::io::IsTerminal as _;
use std::process::Command;

use anyhow::{Context as _, bail};
use nix::unistd::Uid;

use super::Need;
use crate::shell;

/// To compile: the C parts of dependencies, and for the kernel programs a compiler whose sources and LLVM match (Debian's
/// `rustc-web` set; what `bpf-linker` links with besides LLVM itself).
const BUILD: [&str; 12] = [
    "gcc",
    "libc6-dev",
    "pkg-config",
    "libseccomp-dev",
    "rustc-web",
    "cargo-web",
    "rust-web-src",
    "llvm-22-dev",
    "libclang-22-dev",
    "libpolly-22-dev",
    "zlib1g-dev",
    "libzstd-dev",
];
/// What tests drive or compare with, by the program they look for. A package is wanted only where its program is missing.
const TEST: [(&str, &str); 9] = [
    ("make", "make"),
    ("git", "git"),
    ("readelf", "binutils"),
    ("python3", "python3"),
    ("setpriv", "util-linux"),
    ("bwrap", "bubblewrap"),
    ("busybox", "busybox-static"),
    ("systemd-analyze", "systemd"),
    ("ip", "iproute2"),
];

/// What measurements are compared with, and what reads the kernel's statistics.
const BENCH: [(&str, &str); 2] = [("bpftrace", "bpftrace"), ("bpftool", "bpftool")];

/// What guests are run with and made of.
const VM: [(&str, &str); 3] =
    [("qemu-system-x86_64", "qemu-system-x86"), ("busybox", "busybox-static"), ("strip", "binutils")];

/// The packages of a group that are not installed.
pub(super) fn missing(need: Need) -> Vec<&'static str> {
    match need {
        Need::Build => not_installed(&BUILD),
        Need::Test => without_program(&TEST),
        Need::Vm => without_program(&VM),
        Need::Bench => without_program(&BENCH),
        Need::Check | Need::Hosts => Vec::new(),
    }
}

fn without_program(wanted: &[(&str, &'static str)]) -> Vec<&'static str> {
    wanted.iter().filter(|(program, _)| !on_path(program)).map(|(_, package)| *package).collect()
}

fn not_installed(packages: &[&'static str]) -> Vec<&'static str> {
    let query = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Package} ${db:Status-Status}\n"])
        .args(packages)
        .output();
    // dpkg-query fails when one is unknown and still lists the others. Without dpkg nothing is known to be there.
    let listed = query.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let installed = |package: &str| listed.lines().any(|line| line == format!("{package} installed"));
    packages.iter().copied().filter(|package| !installed(package)).collect()
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(system).any(|directory| directory.join(program).is_file())
}

/// Installs the missing packages of a group.
pub(super) fn install(need: Need) -> anyhow::Result<()> {
    let packages = missing(need);
    if packages.is_empty() {
        return Ok(());
    }
    if !on_path("apt-get") {
        let words = packages.join(" ");
        if need == Need::Build {
            // Another distribution names its packages differently; what is really missing, the build will say.
            eprintln!("setup: no apt-get here. On Debian this would be: apt-get install {words}");
            return Ok(());
        }
        bail!("no apt-get here to install {words}");
    }
    eprintln!("setup: installing Debian packages: {}", packages.join(" "));
    shell::run(apt_get(&["update", "-q"], &packages)?.env("DEBIAN_FRONTEND", "noninteractive"))?;
    let mut install = apt_get(&["install", "-q", "-y", "--no-install-recommends"], &packages)?;
    shell::run(install.args(&packages).env("DEBIAN_FRONTEND", "noninteractive"))
        .with_context(|| format!("apt-get install {}", packages.join(" ")))
}

fn apt_get(words: &[&str], packages: &[&str]) -> anyhow::Result<Command> {
    let mut command = if Uid::effective().is_root() {
        Command::new("apt-get")
    } else if std::io::stdin().is_terminal() && on_path("sudo") {
        let mut sudo = Command::new("sudo");
        sudo.arg("apt-get");
        sudo
    } else if shell::succeeds(Command::new("sudo").args(["-n", "true"])) {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "apt-get"]);
        sudo
    } else {
        bail!("installing Debian packages needs root or sudo; missing are: {}", packages.join(" "));
    };
    command.args(words);
    Ok(command)
}

/// Fetches one package without installing it, and unpacks it: for a program from a package that would start a daemon.
pub(crate) fn unpack(package: &str, into: &std::path::Path) -> anyhow::Result<()> {
    let room = tempfile::tempdir()?;
    // apt's own sandbox user must be able to write there.
    std::fs::set_permissions(room.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    let mut download = Command::new("apt-get");
    shell::run(download.args(["download", "-q", package]).current_dir(room.path()))?;
    let deb = std::fs::read_dir(room.path())?.flatten().map(|entry| entry.path()).next();
    let deb = deb.with_context(|| format!("apt-get downloaded nothing for {package}"))?;
    shell::run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(into))
}
