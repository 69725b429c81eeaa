//! The two sockets: handed over by systemd or bound here; and the lock that makes a service the only one.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use tokio::net::UnixListener;

use super::ServiceError;
use super::options::ServicePlaces;
use crate::ipc::peer;

/// The listening sockets.
pub struct Listeners {
    /// The data plane.
    pub hook: UnixListener,
    /// The control plane.
    pub control: UnixListener,
    /// What is removed at a stop.
    pub bound: Bound,
}

/// Takes the lock of a state directory, for as long as the result lives.
pub fn lock(state_dir: &Path) -> Result<Flock<File>, ServiceError> {
    let path = state_dir.join("lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| ServiceError::AlreadyRunning(state_dir.to_owned()))
}

/// Takes both sockets from systemd, or binds them here, mode 0600, in place of what an ended service left there.
pub fn listen(places: &ServicePlaces) -> Result<Listeners, ServiceError> {
    let mut handed = peer::handed_over().map_err(|error| ServiceError::Socket(places.runtime_dir.clone(), error))?;
    let mut bound = Vec::new();
    let mut take = |name: &str| {
        let path = places.runtime_dir.join(name);
        let listener = match handed.remove(name) {
            Some(listener) => Ok(listener),
            None => bind(&path).inspect(|_| bound.push(path.clone())),
        };
        listener
            .and_then(|listener| {
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener)
            })
            .map_err(|error| ServiceError::Socket(path, error))
    };
    let (hook, control) = (take("hook.sock")?, take("control.sock")?);
    Ok(Listeners { hook, control, bound: Bound(bound) })
}

fn bind(path: &Path) -> std::io::Result<StdListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = StdListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// The sockets that were bound here; those of systemd stay, so that the next hook starts the service again.
pub struct Bound(Vec<PathBuf>);

impl Bound {
    /// Removes them at a stop, so that hooks see at once that nobody answers.
    pub fn remove(&self) {
        for path in &self.0 {
            if let Err(error) = std::fs::remove_file(path) {
                tracing::debug!("{}: {error}", path.display());
            }
        }
    }
}
