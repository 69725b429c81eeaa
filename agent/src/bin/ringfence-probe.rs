//! `ringfence-probe`: the small privileged service. It loads the kernel programs, marks trees for their owners, publishes
//! plans and streams what was seen. It decides nothing and speaks to no network.
#![forbid(unsafe_code)]

use std::future::pending;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use nix::mount::umount;
use nix::sys::signal::Signal;
use ringfence::ipc::peer::{self, PeerError};
use ringfence::kernel::{self, Bpffs, Kernel, KernelError};
use ringfence::places;
use ringfence::probe::client::{Client, ClientError};
use ringfence::probe::privileges;
use ringfence::probe::protocol::ProgramState;
use ringfence::probe::server::{self, Claim, Lock, Options, ServerError};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};

/// How long a running probe may take to stop for `--unload`.
const STOPPING: Duration = Duration::from_secs(30);
/// How long `--status` waits.
const ASKING: Duration = Duration::from_secs(5);

/// Loads Ringfence's kernel programs and serves their observations to their owners.
#[derive(Debug, Parser)]
#[command(name = "ringfence-probe", version)]
struct Arguments {
    /// Socket to listen on
    #[arg(long, value_name = "PATH", default_value = places::PROBE_SOCKET)]
    socket: PathBuf,
    /// Where links and maps are pinned, on a bpffs (one is mounted there if need be)
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/bpf/ringfence")]
    pin_dir: PathBuf,
    /// Where plans are published, one directory per uid
    #[arg(long, value_name = "DIR", default_value = places::PUBLISHED_PLANS)]
    plans_dir: PathBuf,
    /// Below its `u/` are the runtime directories of users without /run/user/UID
    #[arg(long, value_name = "DIR", default_value = "/run/ringfence")]
    runtime_root: PathBuf,
    /// cgroup v2 directory to attach the socket programs to [default: the root of the first cgroup2 mount]
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// An installed ringfence-exec; may be given again for one of an earlier version
    #[arg(long, value_name = "PATH")]
    launcher: Vec<PathBuf>,
    /// An installed ringfence-hook; may be given again
    #[arg(long, value_name = "PATH")]
    hook: Vec<PathBuf>,
    /// An installed ringfenced: only such a program may open sessions and publish plans; without any, every unmarked one may
    #[arg(long, value_name = "PATH")]
    service: Vec<PathBuf>,
    /// Another program of ours: no marked process outside its tree signals or traces it; may be given again
    #[arg(long, value_name = "PATH")]
    own: Vec<PathBuf>,
    /// A program of the system's git, which may write what git must; may be given again [default: git and its helpers]
    #[arg(long, value_name = "PATH")]
    git: Vec<PathBuf>,
    /// Kernel programs to load instead of those in this program
    #[arg(long, value_name = "FILE")]
    object: Option<PathBuf>,
    /// Stop watching refused system calls when no launch has lived for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    refusals_idle: u64,
    /// Detach everything and remove the pins at the end, instead of leaving the programs in place
    #[arg(long)]
    unload_on_exit: bool,
    /// Stop, and unload, when this process ends
    #[arg(long, value_name = "PID")]
    exit_with: Option<u32>,
    /// Detach the programs of an earlier probe, remove its pins, and say what was removed
    #[arg(long, conflicts_with_all = ["status", "unload_on_exit", "exit_with"])]
    unload: bool,
    /// Ask a running probe what is loaded
    #[arg(long)]
    status: bool,
}

/// Why the probe does not run, or what it was asked for did not work.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(
        "no cgroup v2 hierarchy is mounted: mount one (mount -t cgroup2 none /sys/fs/cgroup/unified), or name it with --cgroup"
    )]
    NoCgroup,
    #[error("process {0}, with which this probe was to end, cannot be watched: {1}")]
    Watched(u32, PeerError),
    #[error("the probe that runs (pid {0}) did not stop: {1}")]
    DoesNotStop(u32, String),
    #[error("privileges cannot be dropped: {0}")]
    Privileges(std::io::Error),
    #[error("the runtime cannot be started: {0}")]
    Runtime(std::io::Error),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ProbeError::Runtime);
    let done = runtime.and_then(|runtime| {
        if arguments.status {
            runtime.block_on(status(&arguments.socket))
        } else if arguments.unload {
            runtime.block_on(unload(&arguments))
        } else {
            runtime.block_on(tokio::task::LocalSet::new().run_until(run(arguments)))
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringfence-probe: {error}");
            ExitCode::FAILURE
        }
    }
}

/// From start to end of the service.
async fn run(arguments: Arguments) -> Result<(), ProbeError> {
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let unload_at_end = arguments.unload_on_exit || arguments.exit_with.is_some();
    // Before anything is loaded: if it has ended already, nothing is to be.
    let watched = match arguments.exit_with {
        None => None,
        Some(pid) => {
            let failed = |error| ProbeError::Watched(pid, error);
            let pidfd = peer::open_pidfd(pid).map_err(failed)?;
            Some(peer::awaitable(pidfd).map_err(|error| failed(PeerError::Credentials(error)))?)
        }
    };
    let terminate = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (mut terminate, mut interrupt) =
        (terminate.0.map_err(ProbeError::Runtime)?, terminate.1.map_err(ProbeError::Runtime)?);

    let pin_dir = arguments.pin_dir.clone();
    let services = arguments.service;
    let claim = Claim::take(Options {
        socket: arguments.socket.clone(),
        plans_dir: arguments.plans_dir,
        runtime_root: arguments.runtime_root,
        pin_dir: pin_dir.clone(),
        services: services.clone(),
        refusals_idle: Duration::from_secs(arguments.refusals_idle),
        peer_patience: Duration::from_secs(5),
        subscriber_patience: Duration::from_secs(10),
    })?;
    let cgroup = arguments.cgroup.or_else(kernel::find_cgroup2).ok_or(ProbeError::NoCgroup)?;
    let mounted = match kernel::ensure_bpffs(&pin_dir)? {
        Bpffs::Present => None,
        Bpffs::Mounted(target) => Some(target),
    };
    let options = kernel::Options {
        pin_dir: pin_dir.clone(),
        cgroup,
        launchers: arguments.launcher,
        hooks: arguments.hook,
        own: own_programs(arguments.own, &services),
        git: if arguments.git.is_empty() { system_git() } else { arguments.git },
        object: arguments.object,
    };
    let served = async {
        let kernel = Kernel::start(&options)?;
        let programs = kernel.programs();
        for line in describe(&programs) {
            eprintln!("ringfence-probe: {line}");
        }
        let server = claim.bind(kernel)?;
        raise_descriptor_limit();
        let unmounts = mounted.is_some() || is_mounted_bpffs(&pin_dir);
        privileges::drop_the_rest(unload_at_end && unmounts).map_err(ProbeError::Privileges)?;
        // As root of a uid that others have too, nobody else's debugger has a business here.
        let _ = peer::protect_self();
        let attached = programs.iter().filter(|program| program.attached).count();
        let state = format!("{attached} of {} kernel programs attached", programs.len());
        let _ = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&state)]);
        let lock = server
            .serve(async {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    () = ended(watched) => {}
                }
            })
            .await;
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
        Ok(lock)
    };
    // Its lock is held until the pins are gone.
    let served: Result<Lock, ProbeError> = served.await;
    if unload_at_end {
        for line in remove_pins(&pin_dir, mounted.as_deref())? {
            eprintln!("ringfence-probe: {line}");
        }
    }
    served.map(drop)
}

/// Done when the watched process ends; never, if there is none.
async fn ended(watched: Option<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>>) {
    match watched {
        Some(pidfd) => drop(pidfd.readable().await),
        None => pending().await,
    }
}

/// Each connection takes up to a handful of descriptors, each user's rings some more.
fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// This program and the services are ours, named or not.
fn own_programs(mut named: Vec<PathBuf>, services: &[PathBuf]) -> Vec<PathBuf> {
    named.extend(services.iter().cloned());
    named.extend(std::env::current_exe());
    named
}

/// Git where distributions put it: the program, and the one that its commands are links to.
fn system_git() -> Vec<PathBuf> {
    ["/usr/bin/git", "/usr/lib/git-core/git", "/usr/libexec/git-core/git"]
        .map(PathBuf::from)
        .into_iter()
        .filter(|path| path.exists())
        .collect()
}

/// One line per program.
fn describe(programs: &[ProgramState]) -> Vec<String> {
    let line = |program: &ProgramState| match (program.attached, &program.reason) {
        (true, None) => format!("{}: attached", program.program),
        (true, Some(reason)) => format!("{}: attached, but {reason}", program.program),
        (false, Some(reason)) => format!("{}: not attached: {reason}", program.program),
        (false, None) => format!("{}: not attached", program.program),
    };
    programs.iter().map(line).collect()
}

async fn status(socket: &Path) -> Result<(), ProbeError> {
    let mut client = Client::connect(socket, ASKING).await?;
    let status = client.status().await?;
    println!("ringfence-probe {} at {}", client.version(), socket.display());
    for line in describe(&status.programs) {
        println!("{line}");
    }
    let watching =
        if status.syscall_refusals_observed { "observed now" } else { "not observed now (no launch expected)" };
    println!("refused system calls: {watching}");
    Ok(())
}

/// Stops the probe that holds these pins, if one runs, and removes them.
async fn unload(arguments: &Arguments) -> Result<(), ProbeError> {
    if let Some((process, pins)) = server::running(&arguments.socket)
        && pins == arguments.pin_dir
    {
        let failed = |reason: String| ProbeError::DoesNotStop(process.pid, reason);
        let pidfd = peer::open_pidfd_of(process).map_err(|error| failed(error.to_string()))?;
        peer::signal(pidfd.as_fd(), Signal::SIGTERM).map_err(|error| failed(error.to_string()))?;
        let gone = peer::awaitable(pidfd).map_err(|error| failed(error.to_string()))?;
        let waited = tokio::time::timeout(STOPPING, gone.readable()).await;
        waited.map_err(|_| failed(format!("it still runs after {} s", STOPPING.as_secs()))).map(drop)?;
        println!("stopped the probe with pid {}", process.pid);
    }
    for line in remove_pins(&arguments.pin_dir, None)? {
        println!("{line}");
    }
    Ok(())
}

/// Removes the pins, and the bpffs that was mounted for them: on their own directory, or `mounted` by this process for
/// all below it, if nobody else has pinned anything there since. Says what was removed.
fn remove_pins(pin_dir: &Path, mounted: Option<&Path>) -> Result<Vec<String>, ProbeError> {
    let mut pinned = Vec::new();
    list(pin_dir, &mut pinned);
    pinned.retain(|path| path.extension().is_none());
    pinned.sort();
    Kernel::unload(pin_dir)?;
    let mut lines: Vec<String> = pinned.iter().map(|path| format!("removed {}", path.display())).collect();
    let own = is_mounted_bpffs(pin_dir).then_some(pin_dir);
    // The kernel itself puts `maps.debug` and `progs.debug` into each bpffs; a pin's name has no dot.
    let is_pin = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.map_or(true, |entry| !entry.file_name().to_string_lossy().ends_with(".debug"))
    };
    let is_empty = |path: &&Path| std::fs::read_dir(path).is_ok_and(|mut entries| !entries.any(is_pin));
    if let Some(target) = own.or(mounted).filter(is_empty) {
        match umount(target) {
            Ok(()) => lines.push(format!("unmounted {}", target.display())),
            Err(errno) => lines.push(format!("{} could not be unmounted: {errno}", target.display())),
        }
        if own.is_some() {
            let _ = std::fs::remove_dir(pin_dir);
        }
    }
    if lines.is_empty() {
        lines.push(format!("nothing was pinned in {}", pin_dir.display()));
    }
    Ok(lines)
}

fn list(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => list(&entry.path(), into),
            _ => into.push(entry.path()),
        }
    }
}

/// Whether a bpffs is mounted on this very directory.
fn is_mounted_bpffs(directory: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| {
        let (mount, filesystem) = line.split_once(" - ").unwrap_or((line, ""));
        mount.split(' ').nth(4).is_some_and(|point| Path::new(point) == directory) && filesystem.starts_with("bpf ")
    })
}
