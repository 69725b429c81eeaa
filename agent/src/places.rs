//! Where things are. Hook and launcher take none of it from the environment: a project's settings can set that.

use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};

/// Directories of one person's Ringfence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Holds `hook.sock` and `control.sock` (0700, owned by the person).
    pub runtime_dir: PathBuf,
    /// Holds this person's plans, each under `<host pid>.<host start>/`, best protected first.
    pub plan_directories: Vec<PathBuf>,
    /// Landlock ABI that is not exceeded: `Some` only in builds with `test-overrides`.
    pub landlock_abi_cap: Option<u32>,
}

/// Why a place cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// There is no passwd entry, so no home.
    #[error("uid {0} has no passwd entry and /run/user/{0} does not exist: start the probe, which makes /run/ringfence/u/{0}")]
    NoHome(u32),
    /// Somebody else owns it, or others may enter it.
    #[error("{0} is not a directory that only this user can enter (it must be owned by uid {1}, mode 0700)")]
    NotPrivate(PathBuf, u32),
    /// The overrides beside a test build cannot be read.
    #[error("{0}: {1}")]
    Overrides(PathBuf, String),
}

/// Where the probe publishes plans, root-owned, per uid.
pub const PUBLISHED_PLANS: &str = "/run/ringfence/plans";
/// The probe's socket.
pub const PROBE_SOCKET: &str = "/run/ringfence/probe.sock";

impl Places {
    /// The places of the user this process runs as.
    pub fn of_this_user() -> Result<Places, PlaceError> {
        #[cfg(feature = "test-overrides")]
        if let Some(places) = overrides::beside_this_program()? {
            return Ok(places);
        }
        let uid = Uid::current().as_raw();
        let mut plan_directories = vec![PathBuf::from(format!("{PUBLISHED_PLANS}/{uid}"))];
        let state = home().map(|home| home.join(".local/state/ringfence"));
        plan_directories.extend(state.iter().map(|state| state.join("plans")));
        let candidates = [PathBuf::from(format!("/run/user/{uid}")), PathBuf::from(format!("/run/ringfence/u/{uid}"))];
        let runtime_dir = match candidates.iter().position(|dir| is_private(dir, uid)) {
            Some(0) => candidates[0].join("ringfence"),
            Some(_) => candidates[1].clone(),
            None => state.ok_or(PlaceError::NoHome(uid))?.join("run"),
        };
        Ok(Places { runtime_dir, plan_directories, landlock_abi_cap: None })
    }

    /// The data plane's socket.
    pub fn hook_socket(&self) -> PathBuf {
        self.runtime_dir.join("hook.sock")
    }

    /// The control plane's socket.
    pub fn control_socket(&self) -> PathBuf {
        self.runtime_dir.join("control.sock")
    }
}

/// The home of this user by the passwd entry, never by `HOME`.
pub fn home() -> Option<PathBuf> {
    User::from_uid(Uid::current()).ok().flatten().map(|user| user.dir)
}

/// Whether `dir` is a real directory, owned by `uid`, that nobody else may enter.
pub fn is_private(dir: &Path, uid: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid && meta.mode() & 0o077 == 0)
}

#[cfg(feature = "test-overrides")]
mod overrides {
    //! Test builds read `ringfence-overrides.json` beside the program: a file, since the environment is the project's.

    use std::path::PathBuf;

    use serde::Deserialize;

    use super::{PlaceError, Places};

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Overrides {
        runtime_dir: PathBuf,
        plan_directories: Vec<PathBuf>,
        #[serde(default)]
        landlock_abi_cap: Option<u32>,
    }

    pub(super) fn beside_this_program() -> Result<Option<Places>, PlaceError> {
        let Ok(program) = std::env::current_exe() else { return Ok(None) };
        let file = program.with_file_name("ringfence-overrides.json");
        let Ok(text) = std::fs::read(&file) else { return Ok(None) };
        let Overrides { runtime_dir, plan_directories, landlock_abi_cap } =
            serde_json::from_slice(&text).map_err(|e| PlaceError::Overrides(file, e.to_string()))?;
        Ok(Some(Places { runtime_dir, plan_directories, landlock_abi_cap }))
    }
}
