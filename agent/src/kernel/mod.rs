//! The only door to the kernel programs: loading, maps, ring buffers, marks. Reached only from `probe/`.

use std::path::PathBuf;

/// What the loader needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory on a bpffs where links and maps are pinned (made 0700).
    pub pin_dir: PathBuf,
    /// The cgroup v2 directory to attach the socket programs to.
    pub cgroup: PathBuf,
    /// Executables that become `launched` when a marked task starts them.
    pub launchers: Vec<PathBuf>,
    /// Executables that become `hook` when a host starts them.
    pub hooks: Vec<PathBuf>,
    /// An object to load instead of the embedded one.
    pub object: Option<PathBuf>,
}
