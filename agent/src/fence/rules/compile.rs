//! A session's two rule sets: first what they speak of is found and opened, then, when the probe has said how the kernel
//! keys it, they are made.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use super::addresses::{self, Linear, TooManyRanges};
use super::brokers::{self, Brokers, BrokersError, Surroundings};
use super::draft::{Draft, Gathering};
use super::explained::Explained;
use super::files::Files;
use super::labels::Labels;
use super::names::NameError;
use super::protected::{ProtectedError, ProtectedNames, Side};
use crate::fence::compile::{ToolPlaces, temporary_directory};
use crate::fence::file::Fence;
use crate::fence::named::Named;
use crate::fence::tree::Tree;
use crate::host::HostKind;
use crate::probe::protocol::FileId;
use crate::probe::rules::RuleSet;

/// Most entries of one rule set.
pub const MOST_ENTRIES: usize = 1 << 15;

/// Where Ringfence's own things are.
#[derive(Clone, Debug)]
pub struct OwnPlaces {
    /// Holds `hook.sock` and `control.sock`.
    pub runtime_dir: PathBuf,
    /// History, plans, passphrase.
    pub state_dir: PathBuf,
    /// Directories of policy files.
    pub policies: Vec<PathBuf>,
    /// The installed programs.
    pub programs: PathBuf,
    /// The probe's socket.
    pub probe_socket: PathBuf,
}

/// What a session's rules are made for.
#[derive(Clone, Debug)]
pub struct RulesRequest {
    /// For what comes of a launch.
    pub launched: Fence,
    /// For the host and what it starts for itself.
    pub host: Fence,
    /// Which host.
    pub host_kind: HostKind,
    /// Our id of the session.
    pub session: String,
    /// The working tree.
    pub tree: Tree,
    /// The person's home.
    pub home: PathBuf,
    /// The person's uid.
    pub uid: u32,
    /// Tool caches and the like.
    pub tools: ToolPlaces,
    /// The host's configuration directories.
    pub host_directories: Vec<PathBuf>,
    /// Ringfence's own.
    pub own: OwnPlaces,
    /// The service's environment.
    pub environment: HashMap<OsString, OsString>,
    /// Addresses of domain names that the fences name.
    pub domains: HashMap<String, Vec<IpAddr>>,
}

/// Why there are no rules.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// Addresses.
    #[error(transparent)]
    Addresses(#[from] TooManyRanges),
    /// Protected names.
    #[error(transparent)]
    Protected(#[from] ProtectedError),
    /// Their form.
    #[error(transparent)]
    Names(#[from] NameError),
    /// Brokers.
    #[error(transparent)]
    Brokers(#[from] BrokersError),
    /// A fence grants a broker that is not known.
    #[error("fence {0}: no broker is called {1:?} (see policies/brokers.toml)")]
    UnknownBroker(String, String),
    /// A path names no place.
    #[error("fence {0}: {1} is neither absolute nor starts with ~/ or a known @place")]
    Path(String, String),
    /// Over [`MOST_ENTRIES`].
    #[error("fence {0} needs {1} entries in the kernel's maps, and a rule set takes {MOST_ENTRIES}")]
    TooMany(String, usize),
    /// The probe answered for another number of files.
    #[error("the probe identified {0} of {1} files")]
    NotIdentified(usize, usize),
}

/// What the rules speak of, found and held open.
#[derive(Debug)]
pub struct Gathered {
    files: Files,
    launched: Draft,
    host: Draft,
    labels: Labels,
    explained: Explained,
    linear: [Vec<Linear>; 2],
}

/// A session's rules.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// For what comes of a launch.
    pub launched: RuleSet,
    /// For the host and what it starts for itself.
    pub host: RuleSet,
    /// What refusals are called.
    pub labels: Labels,
    /// The rules for a person.
    pub explained: Explained,
    /// The rules about addresses as they were written, launched first: they say what a refused address is called.
    pub linear: [Vec<Linear>; 2],
}

/// Finds and opens what a session's rules speak of. Reads directories: not for a thread that must not wait.
pub fn gather(request: &RulesRequest) -> Result<Gathered, RulesError> {
    let brokers = Brokers::shipped()?;
    let protected = ProtectedNames::shipped()?;
    let others = others(request);
    let temporary = temporary_directory(request.uid, &request.session);
    let named = Named {
        home: &request.home,
        tree: &request.tree,
        temporary: &temporary,
        host_directories: &request.host_directories,
        tools: &request.tools,
        others: &others,
    };
    let bound = brokers::bound();
    let at = Surroundings { named, uid: request.uid, environment: &request.environment, bound: &bound };
    let mut files = Files::default();
    let present = brokers.present(&at, &mut files)?;
    let mut gathering = Gathering {
        request,
        named,
        brokers,
        protected,
        present: &present,
        bound: &bound,
        own_addresses: addresses::own(),
        files,
        labels: Labels::default(),
    };
    let (launched, launched_explained, of_launched) = gathering.draft(&request.launched, Side::Launched)?;
    let (host, host_explained, of_host) = gathering.draft(&request.host, Side::Host)?;
    let Gathering { files, labels, .. } = gathering;
    let mut remarks = Vec::new();
    if files.left_out() > 0 {
        remarks.push(format!("{} files are over the limit of a session and have no rule", files.left_out()));
    }
    let explained = Explained { launched: launched_explained, host: host_explained, remarks };
    Ok(Gathered { files, launched, host, labels, explained, linear: [of_launched, of_host] })
}

impl Gathered {
    /// The files to identify, in order.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.files.descriptors()
    }

    /// The same for the same rules about the same files.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        (&self.launched, &self.host, self.files.identities()).hash(&mut hash);
        hash.finish()
    }

    /// The rule sets, once the probe has said how the kernel keys each file.
    pub fn finish(self, identified: &[FileId]) -> Result<Compiled, RulesError> {
        let Gathered { files, launched, host, labels, explained, linear } = self;
        if identified.len() != files.len() {
            return Err(RulesError::NotIdentified(identified.len(), files.len()));
        }
        let launched = launched.finish(identified);
        let host = host.finish(identified);
        Ok(Compiled { launched, host, labels, explained, linear })
    }
}

/// The `@names` that only rules know.
fn others(request: &RulesRequest) -> Vec<(&'static str, PathBuf)> {
    let OwnPlaces { runtime_dir, state_dir, policies, programs, probe_socket: _ } = &request.own;
    let mut others = vec![
        ("runtime-ringfence", runtime_dir.clone()),
        ("state", state_dir.clone()),
        ("programs", programs.clone()),
        ("runtime", PathBuf::from(format!("/run/user/{}", request.uid))),
    ];
    let of = |name: &str| request.environment.get(std::ffi::OsStr::new(name));
    if let Some(runtime) = of("XDG_RUNTIME_DIR").map(PathBuf::from)
        && runtime.is_absolute()
        && runtime != others[3].1
    {
        others.push(("runtime", runtime));
    }
    others.extend(policies.iter().map(|path| ("policies", path.clone())));
    let in_home = |path: &PathBuf| path.starts_with(&request.home) && *path != request.home;
    let mut on_path: Vec<PathBuf> =
        of("PATH").map(|path| std::env::split_paths(path).filter(in_home).collect()).unwrap_or_default();
    on_path.extend([".local/bin", "bin", ".cargo/bin"].map(|dir| request.home.join(dir)));
    // Tools of the project itself (node_modules/.bin, a virtual environment) are the tree's.
    on_path.retain(|path| !path.starts_with(&request.tree.top));
    on_path.sort();
    on_path.dedup();
    on_path.truncate(32);
    others.extend(on_path.into_iter().map(|path| ("path", path)));
    others
}

/// Directories of policy files beside the shipped ones, for a person whose home is `home`.
pub fn policy_directories(home: &Path) -> Vec<PathBuf> {
    vec![home.join(".config/ringfence")]
}

#[cfg(test)]
mod tests;
