//! What `ringfenced` is told on its command line, and where things are by default.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use clap::Parser;

use super::ServiceError;
use super::metrics::{self, Endpoint, Metrics};
use crate::places::{self, PROBE_SOCKET};
use crate::policy::files::PolicyPaths;

/// Decides, confines, observes and joins: the service of one user. It holds no privilege.
#[derive(Parser, Clone, Debug)]
#[command(name = "ringfenced", version, max_term_width = 100)]
pub struct Options {
    /// Directory of the sockets [default: /run/user/UID/ringfence]
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Directory of history and state [default: ~/.local/state/ringfence]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// The probe's socket
    #[arg(long, value_name = "FILE", default_value = PROBE_SOCKET)]
    pub probe_socket: PathBuf,
    /// Read policy files from here alone, beside the built-in ones
    #[arg(long, value_name = "DIR")]
    pub policies: Option<PathBuf>,
    /// Directory of the installed programs [default: this program's]
    #[arg(long, value_name = "DIR")]
    pub programs: Option<PathBuf>,
    /// First loopback port that is tried for metrics; 0 serves none
    #[arg(long, value_name = "PORT", default_value_t = metrics::FIRST_PORT)]
    pub metrics_port: u16,
    /// Directory for the Prometheus target file [default: /run/ringfence/prometheus, when it is there]
    #[arg(long, value_name = "DIR")]
    pub metrics_targets: Option<PathBuf>,
    /// Go to the background once the sockets are there (where no service manager keeps the service)
    #[arg(long)]
    pub detach: bool,
    /// Set by --detach for the process it starts
    #[arg(long, hide = true)]
    pub session_leader: bool,
}

/// Where a service's things are.
#[derive(Clone, Debug)]
pub struct ServicePlaces {
    /// The sockets' directory.
    pub runtime_dir: PathBuf,
    /// History, plans, passphrase.
    pub state_dir: PathBuf,
    /// The person's home.
    pub home: PathBuf,
    /// The probe's socket.
    pub probe_socket: PathBuf,
    /// `ringfence-hook`.
    pub hook: PathBuf,
    /// `ringfence-exec`.
    pub launcher: PathBuf,
    /// `ringfence`.
    pub ringfence: PathBuf,
    /// Directories of policy files, and the person's own of everything of Ringfence.
    pub policies: Vec<PathBuf>,
}

impl ServicePlaces {
    /// Where the canary tries what must fail.
    pub fn canary_ground(&self) -> PathBuf {
        self.state_dir.join("canary")
    }

    /// The database.
    pub fn database(&self) -> PathBuf {
        self.state_dir.join("ringfence.db")
    }

    /// Plans, where no probe publishes them.
    pub fn plans(&self) -> PathBuf {
        self.state_dir.join("plans")
    }
}

impl Options {
    /// Where things are, with the directories made.
    pub fn places(&self) -> Result<ServicePlaces, ServiceError> {
        let home = places::home();
        let programs = match &self.programs {
            Some(dir) => dir.clone(),
            None => std::env::current_exe()?.parent().map(Path::to_owned).unwrap_or_default(),
        };
        let uid = nix::unistd::Uid::current().as_raw();
        let state_dir = match (&self.state_dir, &home) {
            (Some(dir), _) => dir.clone(),
            (None, Some(home)) => home.join(".local/state/ringfence"),
            (None, None) => {
                let reason = format!("uid {uid} has no passwd entry, so no home: give --state-dir");
                return Err(ServiceError::Directory("~/.local/state/ringfence".into(), reason));
            }
        };
        let runtime_dir = match &self.runtime_dir {
            Some(dir) => dir.clone(),
            None => {
                places::Places::of_this_user()
                    .map_err(|error| ServiceError::Directory("runtime directory".into(), error.to_string()))?
                    .runtime_dir
            }
        };
        for dir in [&state_dir, &runtime_dir] {
            private_directory(dir)?;
        }
        let mut policies = self.policy_paths().directories;
        policies.extend(home.as_ref().map(|home| home.join(".config/ringfence")));
        Ok(ServicePlaces {
            policies,
            home: home.unwrap_or_else(|| state_dir.clone()),
            runtime_dir,
            state_dir,
            probe_socket: self.probe_socket.clone(),
            hook: programs.join("ringfence-hook"),
            launcher: programs.join("ringfence-exec"),
            ringfence: programs.join("ringfence"),
        })
    }

    /// Which policy files are read.
    pub fn policy_paths(&self) -> PolicyPaths {
        let owner = nix::unistd::Uid::current().as_raw();
        let home = places::home().unwrap_or_default();
        match &self.policies {
            Some(dir) => PolicyPaths { directories: vec![dir.clone()], project: None, owner },
            None => PolicyPaths::installed(&home, owner),
        }
    }

    /// Serves metrics, or says why not: they are never a reason not to protect.
    pub async fn serve_metrics(&self, _metrics: &Metrics) -> Option<Endpoint> {
        if self.metrics_port == 0 {
            return None;
        }
        let shared = PathBuf::from("/run/ringfence/prometheus");
        let directory = self.metrics_targets.clone().or_else(|| shared.is_dir().then_some(shared));
        let target = directory.map(|dir| dir.join(format!("{}.json", nix::unistd::Uid::current())));
        match Endpoint::bind(self.metrics_port, target).await {
            Ok(endpoint) => Some(endpoint),
            Err(error) => {
                tracing::warn!("no metrics: {error}");
                None
            }
        }
    }
}

/// Makes a directory 0700, or checks that it is one.
fn private_directory(dir: &Path) -> Result<(), ServiceError> {
    use std::os::unix::fs::DirBuilderExt;
    let failed = |reason: String| ServiceError::Directory(dir.to_owned(), reason);
    match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error.to_string())),
        _ => {}
    }
    let uid = nix::unistd::Uid::current().as_raw();
    match places::is_private(dir, uid) {
        true => Ok(()),
        false => Err(failed(format!("must be a directory of uid {uid} alone, mode 0700"))),
    }
}
