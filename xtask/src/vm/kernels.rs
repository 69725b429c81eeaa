//! The kernels that guests run: Debian's, fetched through apt and unpacked beside the system, never installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use nix::unistd::Uid;

use crate::setup::apt;
use crate::shell;

/// A kernel that guests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The oldest that Ringfence is for: Debian 12.
    V6_1,
    /// Debian 13.
    V6_12,
}

/// Package names end so; the kernel for virtual machines has the needed drivers built in and is small.
const FLAVOUR: &str = "-cloud-amd64";

impl Kernel {
    /// Oldest first.
    pub const ALL: [Kernel; 2] = [Kernel::V6_1, Kernel::V6_12];

    /// Its series.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::V6_1 => "6.1",
            Kernel::V6_12 => "6.12",
        }
    }

    /// The newest one that was fetched, or why there is none.
    pub fn image(self) -> Result<PathBuf, String> {
        let entries = std::fs::read_dir(directory()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let newest = names.filter(|name| self.has(name)).max_by_key(|name| numbers(name));
        let file = newest.map(|name| directory().join(name).join("vmlinuz")).filter(|file| file.is_file());
        file.ok_or_else(|| {
            format!("no Linux {} in {} (cargo xtask setup fetches it)", self.name(), directory().display())
        })
    }

    /// Fetches the newest that apt offers.
    pub fn fetch(self) -> anyhow::Result<()> {
        let pattern = format!("^linux-image-{}\\.[0-9].*{FLAVOUR}$", self.name().replace('.', "\\."));
        let mut search = Command::new("apt-cache");
        let found = shell::output(search.args(["search", "--names-only", &pattern])).unwrap_or_default();
        let names = found.lines().filter_map(|line| line.split(' ').next());
        let Some(package) = names.max_by_key(|name| numbers(name)) else {
            bail!("apt offers no package linux-image-{}.*{FLAVOUR}", self.name());
        };
        eprintln!("setup: fetching {package} (not installed: only guests run it)");
        let version = package.trim_start_matches("linux-image-").trim_end_matches(FLAVOUR);
        let room = tempfile::tempdir()?;
        apt::unpack(package, room.path())?;
        let target = directory().join(version);
        std::fs::create_dir_all(&target).with_context(|| format!("making {}", target.display()))?;
        for file in ["config", "vmlinuz"] {
            let from = room.path().join("boot").join(format!("{file}-{version}{FLAVOUR}"));
            copy_whole(&from, &target.join(file))?;
        }
        Ok(())
    }

    /// Whether a version, such as `6.12.117+deb12`, is of this series.
    fn has(self, version: &str) -> bool {
        version.strip_prefix(self.name()).is_some_and(|rest| rest.starts_with('.'))
    }
}

/// In one step, since the presence of the file says that it was fetched.
fn copy_whole(from: &Path, to: &Path) -> anyhow::Result<()> {
    let half = to.with_extension("part");
    std::fs::copy(from, &half).with_context(|| format!("copying {}", from.display()))?;
    std::fs::rename(&half, to).with_context(|| format!("writing {}", to.display()))
}

/// Where kernels are kept.
pub fn directory() -> PathBuf {
    if Uid::effective().is_root() {
        return "/var/cache/ringfence/kernels".into();
    }
    std::env::home_dir().unwrap_or_else(|| "/var/tmp".into()).join(".cache/ringfence/kernels")
}

/// What versions are ordered by: `6.1.0-57` is newer than `6.1.0-9`.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_found_by_its_numbers() {
        let newest = ["6.12.99+deb12", "6.12.117+deb12", "6.12.9+deb13"].into_iter().max_by_key(|name| numbers(name));
        assert_eq!(newest, Some("6.12.117+deb12"));
        assert!(Kernel::V6_1.has("6.1.0-57") && !Kernel::V6_1.has("6.12.117+deb12"));
    }
}
