//! From a fence as written and this machine as it is, to a plan.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use landlock::AccessFs;

use super::file::{Environment, Fence, FenceFileError, Network, NetworkMode, Read, Unix, UnixMode, Write};
use super::filter::{self, FilterError, Group};
use super::line;
use super::named::Named;
use super::plan::{
    EnvironmentPlan, LandlockPlan, LineKind, MAX_RULES, PathRule, Plan, PlanError, PortsPlan, hex, rights,
};
use super::reading::{self, Excluded, Reading};
use super::tree::Tree;
use crate::process::ProcessId;

/// What a plan is made for.
#[derive(Clone, Debug)]
pub struct FenceRequest<'a> {
    /// The fence.
    pub fence: &'a Fence,
    /// The working tree and its git directories.
    pub tree: &'a Tree,
    /// Whether the tree can be written. Not so for a host that was started in the home or above.
    pub tree_writable: bool,
    /// The person's home, by the passwd entry.
    pub home: &'a Path,
    /// The person's uid.
    pub uid: u32,
    /// Our id of the session.
    pub session: &'a str,
    /// The host's process; `None` for a plan that is named on the command line.
    pub host: Option<ProcessId>,
    /// For a plan of one call: SHA-256 of its command.
    pub call: Option<[u8; 32]>,
    /// `sha256:…` over the whole policy.
    pub policy: &'a str,
    /// Tool caches and the like, from the service's own environment.
    pub places: &'a ToolPlaces,
    /// The host's configuration directories (`~/.claude`).
    pub host_directories: &'a [PathBuf],
    /// Whether the kernel's own layer keeps credentials from being read, so that one rule on `/` is enough.
    pub credentials_by_lsm: bool,
    /// Where launches are told.
    pub notice_socket: Option<&'a Path>,
    /// Lines that are not a tool's command.
    pub lines: &'a [(LineKind, [u8; 32])],
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The fence.
    #[error(transparent)]
    Fence(#[from] FenceFileError),
    /// The filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// A path that names no place.
    #[error("fence {0}: {1} is neither absolute nor starts with ~/ or a known @place")]
    Path(String, String),
    /// The working tree cannot be granted.
    #[error("the working tree {0} cannot be opened: {1}")]
    Tree(PathBuf, std::io::Error),
    /// The working tree is a credential's place.
    #[error("the working tree {0} holds {1}, which no command may read: start in a project's directory")]
    TreeHoldsCredential(PathBuf, PathBuf),
    /// The private TMPDIR.
    #[error("{0} cannot be the private TMPDIR: {1}")]
    Temporary(PathBuf, String),
    /// More rules than a plan takes.
    #[error("fence {0} needs {1} path rules, and a plan takes {MAX_RULES}")]
    TooManyRules(String, usize),
    /// A value is over its bound.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The file cannot be written.
    #[error("{0}: {1}")]
    Write(PathBuf, std::io::Error),
}

/// Where tools keep what they fetch, by name (`cargo`, `npm`, `cache`, …). Taken from the service's environment, never
/// from a tool's: a project sets that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolPlaces(BTreeMap<&'static str, PathBuf>);

impl ToolPlaces {
    /// One of them.
    pub fn get(&self, name: &str) -> Option<&Path> {
        self.0.get(name).map(PathBuf::as_path)
    }

    /// From a look-up of variables, `std::env::var_os` for the service itself. Relative ones count as not set.
    pub fn from_environment(home: &Path, variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> ToolPlaces {
        let of = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute() && *path != *home);
        let or = |name: &str, default: &Path| of(name).unwrap_or_else(|| default.to_owned());
        let cache = or("XDG_CACHE_HOME", &home.join(".cache"));
        let go = or("GOPATH", &home.join("go"));
        ToolPlaces(BTreeMap::from([
            ("cargo", or("CARGO_HOME", &home.join(".cargo"))),
            ("npm", or("npm_config_cache", &home.join(".npm"))),
            ("pip", or("PIP_CACHE_DIR", &cache.join("pip"))),
            ("uv", or("UV_CACHE_DIR", &cache.join("uv"))),
            ("go-modules", or("GOMODCACHE", &go.join("pkg/mod"))),
            ("go-build", or("GOCACHE", &cache.join("go-build"))),
            ("config", or("XDG_CONFIG_HOME", &home.join(".config"))),
            ("data", or("XDG_DATA_HOME", &home.join(".local/share"))),
            ("cache", cache),
        ]))
    }
}

/// The private TMPDIR of a session. Whoever ends the session removes it.
pub fn temporary_directory(uid: u32, session: &str) -> PathBuf {
    PathBuf::from(format!("/tmp/ringfence-{uid}/{}", &hex(&line::digest(session.as_bytes()))[..16]))
}

/// Compiles a fence. Makes the session's private TMPDIR; touches nothing else.
pub fn compile(request: &FenceRequest<'_>) -> Result<Plan, CompileError> {
    let fence = request.fence;
    let temporary = temporary_directory(request.uid, request.session);
    make_private(&temporary, request.uid)?;
    let mut remarks = Vec::new();
    let landlock = if fence.read.everything_but_credentials {
        Some(landlock_plan(request, &temporary, &mut remarks)?)
    } else {
        None
    };
    let groups = groups(fence);
    let Environment { watched, drop, set } = &fence.environment;
    let what = match &request.call {
        Some(digest) => format!("call-{}", &hex(digest)[..16]),
        None => fence.name.clone(),
    };
    let plan = Plan {
        id: format!("{}/{what}", request.session),
        host: request.host,
        session: request.session.to_owned(),
        fence: fence.name.clone(),
        policy: request.policy.to_owned(),
        call: request.call,
        strictness: fence.strictness,
        strict: fence.strict,
        require_landlock: fence.require_landlock,
        tree: bytes(&request.tree.top),
        landlock,
        seccomp: filter::compile(&groups)?,
        refuses: filter::describe(&groups),
        environment: EnvironmentPlan {
            watched: watched.clone(),
            drop_watched: *drop,
            set: set.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        },
        temporary: Some(bytes(&temporary)),
        limits: Vec::new(),
        lines: request.lines.to_vec(),
        keep: fence.keep.clone(),
        shell: bytes(&fence.shell),
        notice_socket: request.notice_socket.map(bytes),
        remarks,
    };
    plan.encode()?;
    Ok(plan)
}

/// Compiles a fence into a file that only its owner can change, in one step.
pub fn to_file(request: &FenceRequest<'_>, file: &Path) -> Result<Plan, CompileError> {
    let plan = compile(request)?;
    let bytes = plan.encode()?;
    let failed = |error| CompileError::Write(file.to_owned(), error);
    let mut name = file.file_name().ok_or_else(|| failed(std::io::ErrorKind::InvalidFilename.into()))?.to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = file.with_file_name(name);
    let write = || {
        let mut opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        opened.write_all(&bytes)?;
        fs::rename(&new, file)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&new);
        failed(error)
    })?;
    Ok(plan)
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// The groups of the filter: those written, and those that the network and unix modes stand for.
fn groups(fence: &Fence) -> Vec<Group> {
    let mut groups = fence.seccomp.groups.clone();
    match fence.network.mode {
        NetworkMode::Off => groups.push(Group::Internet),
        NetworkMode::Ports => groups.push(Group::Datagrams),
        NetworkMode::Loopback | NetworkMode::Open => {}
    }
    if fence.unix.mode == UnixMode::None {
        groups.push(Group::Unix);
    }
    groups
}

fn landlock_plan(
    request: &FenceRequest<'_>,
    temporary: &Path,
    remarks: &mut Vec<String>,
) -> Result<LandlockPlan, CompileError> {
    let fence = request.fence;
    let mut rules = Rules { request, temporary, by_path: BTreeMap::new(), absent: Vec::new(), remarks: Vec::new() };
    let Write { trees, files, devices, terminals } = &fence.write;
    for name in trees {
        let writes_tree = !(name == "@tree" || name == "@gitdir") || request.tree_writable;
        if writes_tree {
            rules.add(name, rights::READ | rights::WRITE, name == "@tree")?;
        }
    }
    for name in files {
        rules.add(name, AccessFs::ReadFile as u64 | AccessFs::WriteFile as u64 | AccessFs::Truncate as u64, false)?;
    }
    for name in devices {
        rules.add(name, rights::DEVICE, false)?;
    }
    for name in terminals {
        rules.add(name, rights::TERMINAL | AccessFs::ReadDir as u64, false)?;
    }
    let Unix { mode: unix, allow, brokers: _, abstract_names: _ } = &fence.unix;
    if *unix == UnixMode::Outside {
        for name in allow {
            rules.add(name, rights::SOCKET, false)?;
        }
    }
    let mut later = Vec::new();
    let Read { everything_but_credentials: _, most_rules, later: names } = &fence.read;
    for name in names {
        later.extend(rules.expand(name)?);
    }
    let budget = most_rules.saturating_sub(rules.by_path.len() + later.len());
    let read = read(request, &rules, budget)?;
    let Reading { grants, left_out, excluded } = &read;
    check_tree(&request.tree.top, excluded)?;
    for (path, access) in grants {
        rules.grant(path, *access, false);
    }
    if !left_out.is_empty() {
        let shown: Vec<String> = left_out.iter().take(20).map(|path| path.display().to_string()).collect();
        rules.remarks.push(format!("not readable, over {most_rules} rules ({}): {}", left_out.len(), shown.join(", ")));
    }
    if !rules.absent.is_empty() {
        rules.remarks.push(format!("not there, so not granted: {}", rules.absent.join(", ")));
    }
    if fence.network.mode == NetworkMode::Loopback {
        rules.remarks.push("loopback only: needs the kernel layer, Landlock knows ports and no addresses".into());
    }
    remarks.append(&mut rules.remarks);
    let mut paths: Vec<PathRule> = rules.by_path.into_values().collect();
    for path in later {
        if !paths.iter().any(|rule| rule.path() == path) {
            paths.push(PathRule { path: bytes(&path), identity: None, access: rights::READ, required: false });
        }
    }
    if paths.len() > MAX_RULES {
        return Err(CompileError::TooManyRules(fence.name.clone(), paths.len()));
    }
    let Network { mode, connect, bind, refuse: _, allow: _ } = &fence.network;
    let ports = match mode {
        NetworkMode::Off => Some(PortsPlan::default()),
        NetworkMode::Ports => Some(PortsPlan { connect: connect.clone(), bind: bind.clone() }),
        NetworkMode::Loopback | NetworkMode::Open => None,
    };
    Ok(LandlockPlan {
        paths,
        ports,
        filter_covers_tcp: *mode == NetworkMode::Off,
        filter_covers_udp: matches!(mode, NetworkMode::Off | NetworkMode::Ports),
        outside_sockets: *unix == UnixMode::Outside,
        scope_signals: fence.scope.signals,
        scope_abstract_unix: fence.scope.abstract_unix,
        reads: if request.credentials_by_lsm {
            "one rule on /, credentials refused by bpf_lsm".into()
        } else {
            format!("what lies beside {} excluded paths", excluded.len())
        },
    })
}

fn read(request: &FenceRequest<'_>, rules: &Rules<'_>, budget: usize) -> Result<Reading, CompileError> {
    if request.credentials_by_lsm {
        return Ok(Reading { grants: vec![(PathBuf::from("/"), rights::READ)], ..Reading::default() });
    }
    let mut excluded = Vec::new();
    for credential in &request.fence.credentials {
        for path in rules.expand(&credential.path)? {
            excluded.push(Excluded {
                path,
                readable: credential.readable.clone(),
                only_if_contains: credential.only_if_contains.clone(),
            });
        }
    }
    Ok(reading::everything_but(&excluded, request.home, budget))
}

/// A tree that holds a credential, or lies in one, would make it readable.
fn check_tree(top: &Path, excluded: &std::collections::BTreeSet<PathBuf>) -> Result<(), CompileError> {
    let held = excluded.iter().find(|path| (path.starts_with(top) && path.exists()) || top.starts_with(path));
    match held {
        Some(path) => Err(CompileError::TreeHoldsCredential(top.to_owned(), path.clone())),
        None => Ok(()),
    }
}

/// Path rules as they are collected.
struct Rules<'a> {
    request: &'a FenceRequest<'a>,
    temporary: &'a Path,
    by_path: BTreeMap<PathBuf, PathRule>,
    absent: Vec<String>,
    remarks: Vec<String>,
}

impl Rules<'_> {
    /// The paths that a name in a fence file stands for: none for a place that this session does not have.
    fn expand(&self, name: &str) -> Result<Vec<PathBuf>, CompileError> {
        let FenceRequest { fence, tree, home, places, host_directories, .. } = *self.request;
        let named = Named { home, tree, temporary: self.temporary, host_directories, tools: places, others: &[] };
        named.expand(name).ok_or_else(|| CompileError::Path(fence.name.clone(), name.to_owned()))
    }

    fn add(&mut self, name: &str, access: u64, required: bool) -> Result<(), CompileError> {
        for path in self.expand(name)? {
            match fs::canonicalize(&path) {
                Ok(real) => {
                    if real != path {
                        self.remarks.push(format!("{} is {}", path.display(), real.display()));
                    }
                    self.grant(&real, access, required);
                }
                Err(error) if required => return Err(CompileError::Tree(path, error)),
                Err(_) => self.absent.push(path.display().to_string()),
            }
        }
        Ok(())
    }

    /// Records a path without links as it is now.
    fn grant(&mut self, path: &Path, access: u64, required: bool) {
        let Ok(meta) = fs::symlink_metadata(path) else { return };
        let identity = Some((meta.dev(), meta.ino()));
        let new = || PathRule { path: bytes(path), identity, access: 0, required: false };
        let rule = self.by_path.entry(path.to_owned()).or_insert_with(new);
        rule.access |= access;
        rule.required |= required;
    }
}

/// Makes the private TMPDIR, each part owned by this user and closed to others.
fn make_private(path: &Path, uid: u32) -> Result<(), CompileError> {
    let failed = |why: String| CompileError::Temporary(path.to_owned(), why);
    let parts = [path.parent().unwrap_or(path), path];
    for part in parts {
        if part.symlink_metadata().is_err() {
            let made = fs::DirBuilder::new().mode(0o700).create(part);
            made.map_err(|error| failed(format!("{}: {error}", part.display())))?;
            if nix::unistd::geteuid().is_root() && uid != 0 {
                let owner = Some(nix::unistd::Uid::from_raw(uid));
                nix::unistd::chown(part, owner, None).map_err(|error| failed(error.to_string()))?;
            }
        }
        let meta = part.symlink_metadata().map_err(|error| failed(error.to_string()))?;
        if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o077 != 0 {
            return Err(failed(format!("{} is somebody else's", part.display())));
        }
    }
    Ok(())
}
