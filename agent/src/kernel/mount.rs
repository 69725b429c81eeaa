//! Mounts that the kernel side needs: a bpffs for the pins, and the cgroup v2 hierarchy.
#![forbid(unsafe_code)]

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{FsType, statfs};

use super::KernelError;

/// `BPF_FS_MAGIC` (include/uapi/linux/magic.h).
const BPF_FS_MAGIC: FsType = FsType(0xcafe_4a11);
/// Where a bpffs belongs.
const USUAL: &str = "/sys/fs/bpf";

/// What [`ensure_bpffs`] found or did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bpffs {
    /// The directory is on a bpffs already.
    Present,
    /// A bpffs was mounted here; whoever asked for it unmounts it.
    Mounted(PathBuf),
}

/// Makes sure that `pin_dir` is on a bpffs. When it is not, mounts one: on `/sys/fs/bpf` for a directory below it,
/// else on the directory itself. Needs CAP_SYS_ADMIN then.
pub fn ensure_bpffs(pin_dir: &Path) -> Result<Bpffs, KernelError> {
    if on_bpffs(pin_dir) {
        return Ok(Bpffs::Present);
    }
    let target = if pin_dir.starts_with(USUAL) { Path::new(USUAL) } else { pin_dir };
    let place = |e: io::Error| KernelError::Place(target.to_owned(), e);
    if target == pin_dir {
        make_private_directory(target).map_err(place)?;
    }
    if on_bpffs(target) {
        return Ok(Bpffs::Present);
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("bpf"), target, Some("bpf"), flags, Some("mode=0700")).map_err(|e| place(e.into()))?;
    Ok(Bpffs::Mounted(target.to_owned()))
}

/// Whether a directory, or the nearest of its parents that exists, is on a bpffs.
pub fn on_bpffs(directory: &Path) -> bool {
    let existing = directory.ancestors().find(|one| one.exists());
    existing.and_then(|one| statfs(one).ok()).is_some_and(|fs| fs.filesystem_type() == BPF_FS_MAGIC)
}

/// Makes a directory 0700 with its parents, or accepts one that only root may write.
pub fn make_private_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let meta = std::fs::symlink_metadata(path)?;
    if !meta.is_dir() || meta.uid() != 0 || meta.mode() & 0o022 != 0 {
        return Err(io::Error::other("not a directory that only root can write"));
    }
    Ok(())
}

/// The first cgroup v2 mount of this mount namespace, by `/proc/self/mountinfo` (on a hybrid hierarchy it is not
/// `/sys/fs/cgroup`).
pub fn find_cgroup2() -> Option<PathBuf> {
    cgroup2_in(&std::fs::read_to_string("/proc/self/mountinfo").ok()?)
}

fn cgroup2_in(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        // A mount of a part of the hierarchy (a container's) would miss processes outside of it.
        (filesystem.starts_with("cgroup2 ") && root == "/").then(|| PathBuf::from(unescape(at)))
    })
}

/// proc(5): space, tab, newline and backslash are written in octal.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_cgroup2_in_a_hybrid_hierarchy() {
        let mountinfo = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            40 31 0:37 /inner /sys/fs/cgroup/part rw - cgroup2 cgroup2 rw\n\
            41 31 0:38 / /sys/fs/cgroup/my\\040unified rw shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup2_in(mountinfo), Some(PathBuf::from("/sys/fs/cgroup/my unified")));
        assert_eq!(cgroup2_in("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"), None);
    }

    #[test]
    fn an_ordinary_directory_is_not_on_a_bpffs() {
        assert!(!on_bpffs(Path::new("/proc/self")));
    }
}
