//! `ringfenced`: start-up on one page, and the order in which it stops.
#![forbid(unsafe_code)]

pub mod attribution;
pub mod callers;
pub mod canary;
pub mod control_server;
pub mod detach;
pub mod files;
pub mod grade;
pub mod health;
pub mod hook_server;
pub mod metrics;
pub mod options;
pub mod person;
pub mod plans;
pub mod probe_link;
pub mod records;
pub mod rules;
pub mod runs;
pub mod sessions;
pub mod sockets;
pub mod watch;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use self::options::Options;
use crate::fence::Fences;
use crate::pipeline::Pipeline;
use crate::policy::Policy;
use crate::review::presence::Presence;

/// How long the calls that are being answered at a stop may still take.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Why the service does not run. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A directory of it cannot be used.
    #[error("{0}: {1}")]
    Directory(PathBuf, String),
    /// Another service of this user runs.
    #[error("another ringfenced already uses {0}")]
    AlreadyRunning(PathBuf),
    /// A socket cannot be bound.
    #[error("{0} cannot be bound: {1}")]
    Socket(PathBuf, std::io::Error),
    /// The policy is wrong. Nothing is served by a policy that was not understood.
    #[error("the policy was not loaded, so nothing is served: {0}")]
    Policy(String),
    /// The fences are wrong.
    #[error("the fences were not loaded, so nothing is served: {0}")]
    Fences(String),
    /// The database cannot be used at all.
    #[error("the history cannot be kept: {0}")]
    Store(String),
    /// The runtime failed.
    #[error("{0}")]
    Runtime(#[from] std::io::Error),
}

/// Runs the service until it is told to stop.
pub fn run(options: Options) -> Result<(), ServiceError> {
    if options.session_leader {
        nix::unistd::setsid().map_err(std::io::Error::from)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = tokio::task::LocalSet::new().block_on(&runtime, serve(options));
    // A thread that still reads a file on a dead file system must not hold the stop.
    runtime.shutdown_background();
    done
}

async fn serve(options: Options) -> Result<(), ServiceError> {
    harden();
    let places = options.places()?;
    let _lock = sockets::lock(&places.state_dir)?;
    let policy = Policy::load(&options.policy_paths()).map_err(|error| ServiceError::Policy(error.to_string()))?;
    let fences = Fences::load().map_err(|error| ServiceError::Fences(error.to_string()))?;
    let listeners = sockets::listen(&places)?;
    let pipeline = Rc::new(Pipeline::new(policy, fences, &places)?);

    let metrics = options.serve_metrics(&pipeline.metrics).await;
    let person = Rc::new(person::Person {
        pipeline: Rc::clone(&pipeline),
        presence: Presence::new(&places.state_dir),
        ringfence: places.ringfence.clone(),
        launcher: places.launcher.clone(),
        metrics_address: metrics.as_ref().map(|endpoint| endpoint.address.to_string()),
        runs: RefCell::default(),
    });
    let sockets::Listeners { hook, control, bound } = listeners;
    let hooks = hook_server::HookServer::new(Rc::clone(&pipeline));
    let tasks = [
        tokio::task::spawn_local(hooks.serve(hook)),
        tokio::task::spawn_local(control_server::serve(control, Rc::clone(&person))),
        tokio::task::spawn_local(watch::observations(Rc::clone(&pipeline))),
        tokio::task::spawn_local(watch::time(Rc::clone(&pipeline))),
        tokio::task::spawn_local(watch::age(Rc::clone(&pipeline))),
        tokio::task::spawn_local(watch::rules(Rc::clone(&pipeline))),
        tokio::task::spawn_local(watch::proof(Rc::clone(&person), places.canary_ground())),
    ];
    if let Some(endpoint) = metrics {
        let metrics = pipeline.metrics.clone();
        tokio::task::spawn_local(async move { endpoint.serve(&metrics).await });
    }
    tracing::info!("serving {}", places.runtime_dir.display());
    notify(&[sd_notify::NotifyState::Ready]);

    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    notify(&[sd_notify::NotifyState::Stopping]);
    // No new peers; those that are being answered get their answer; then what is queued is written.
    bound.remove();
    tasks.iter().take(2).for_each(tokio::task::JoinHandle::abort);
    pipeline.idle(LAST_ANSWERS).await;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    pipeline.records.flush();
    Ok(())
}

/// A fenced command of the same user must not read this process's memory or fds through /proc.
fn harden() {
    if let Err(error) = crate::ipc::peer::protect_self() {
        tracing::warn!("this process stays dumpable: {error}");
    }
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
}

fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("systemd was not told: {error}");
    }
}
