//! Where things are. Hook and launcher take none of it from the environment: a project's settings can set that.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use nix::unistd::Uid;

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
    #[error(
        "uid {0} has no passwd entry and /run/user/{0} does not exist: start the probe, which makes /run/ringfence/u/{0}"
    )]
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

/// A person, by their line in `/etc/passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// Login name.
    pub name: String,
    /// Home directory.
    pub home: PathBuf,
}

/// This user by `/etc/passwd`, never by `HOME` or `USER`.
///
/// The C library's lookup is not used: in a static program it loads the name service's modules as shared objects, and
/// finds them by `LD_LIBRARY_PATH`, which a project can set. A user that only a directory service knows is `None` here.
pub fn person() -> Option<Person> {
    person_in(&std::fs::read_to_string("/etc/passwd").ok()?, Uid::current().as_raw())
}

fn person_in(passwd: &str, uid: u32) -> Option<Person> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, id, _, _, home, _] = fields[..] else { return None };
        let found = id.parse() == Ok(uid) && !name.starts_with(['+', '-', '#']) && home.starts_with('/');
        found.then(|| Person { name: name.to_owned(), home: PathBuf::from(home) })
    })
}

/// The home of this user by the passwd entry, never by `HOME`.
pub fn home() -> Option<PathBuf> {
    person().map(|person| person.home)
}

/// Whether `dir` is a real directory, owned by `uid`, that nobody else may enter.
pub fn is_private(dir: &Path, uid: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid && meta.mode() & 0o077 == 0)
}

#[cfg(feature = "test-overrides")]
mod overrides {
    //! Test builds read `ringfence-overrides.json` beside the program: a file, since the environment is the project's.
    //! `{uid}` in its paths stands for the user, so that one set of programs serves several people.

    use std::path::PathBuf;

    use serde::Deserialize;

    use super::{PlaceError, Places};

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Overrides {
        runtime_dir: String,
        plan_directories: Vec<String>,
        #[serde(default)]
        landlock_abi_cap: Option<u32>,
    }

    pub(super) fn beside_this_program() -> Result<Option<Places>, PlaceError> {
        let Ok(program) = std::env::current_exe() else { return Ok(None) };
        let file = program.with_file_name("ringfence-overrides.json");
        let Ok(text) = std::fs::read(&file) else { return Ok(None) };
        let Overrides { runtime_dir, plan_directories, landlock_abi_cap } =
            serde_json::from_slice(&text).map_err(|e| PlaceError::Overrides(file, e.to_string()))?;
        let uid = super::Uid::current().to_string();
        let of_this_user = |path: String| PathBuf::from(path.replace("{uid}", &uid));
        Ok(Some(Places {
            runtime_dir: of_this_user(runtime_dir),
            plan_directories: plan_directories.into_iter().map(of_this_user).collect(),
            landlock_abi_cap,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_found_by_uid_alone() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\n+@staff::1000:::/evil:\nodd line\n#a:x:1000:1::/b:/c\n\
                      ada:x:1000:1000:Ada,,,:/home/ada:/bin/zsh\nbob:x:1001:1001::relative:/bin/sh\n";
        let ada = person_in(passwd, 1000).unwrap();
        assert_eq!((ada.name.as_str(), ada.home.as_path()), ("ada", Path::new("/home/ada")));
        assert_eq!(person_in(passwd, 1001), None, "a home that is not absolute is none");
        assert_eq!(person_in(passwd, 7), None);
    }
}
