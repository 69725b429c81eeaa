//! Proof that the fence holds: the same attempts, bare and behind a fence, must end differently. The kernel's own gates
//! are tried apart, in [`gates`].
#![forbid(unsafe_code)]

pub mod gates;
pub mod trials;

use std::fs::OpenOptions;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::personality::{self, Persona};
use serde::{Deserialize, Serialize};

use super::health::Proof;
use crate::gate::{Gate, Order};
use crate::pipeline::Pipeline;
use crate::probe::protocol::{GateEvent, ObservationKind};
use crate::process;

/// How long a canary may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest answer of a canary.
const ANSWER_BYTES: u64 = 4 << 10;

/// What a canary tried, each with the errno it got, 0 for success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    /// Making a file outside the fence.
    pub write_outside: i32,
    /// `personality(ADDR_COMPAT_LAYOUT)`, which needs no privilege and which every fence's filter refuses.
    pub personality: i32,
}

/// A port of loopback that nothing listens on by custom (discard): connecting ends at once, and must be observed.
const CLOSED_PORT: u16 = 9;

/// `ringfence canary FILE`: tries, and prints what happened.
pub fn attempt(outside: &Path) -> Attempts {
    drop(TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, CLOSED_PORT)), Duration::from_millis(200)));
    let errno = |result: std::io::Result<()>| result.err().map_or(0, |error| error.raw_os_error().unwrap_or(-1));
    Attempts {
        write_outside: errno(OpenOptions::new().write(true).create_new(true).open(outside).map(drop)),
        personality: errno(personality::set(Persona::ADDR_COMPAT_LAYOUT).map(drop).map_err(std::io::Error::from)),
    }
}

/// What the kernel showed of a canary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its exec.
    pub exec: bool,
    /// Its connect.
    pub connect: bool,
    /// Its refused write.
    pub refusal: bool,
    /// What gates refused it, at most [`MOST_REFUSALS`].
    pub refusals: Vec<GateEvent>,
}

/// Far more than a canary tries.
const MOST_REFUSALS: usize = 256;

impl Seen {
    /// Takes one observation of it.
    pub fn note(&mut self, kind: &ObservationKind) {
        match kind {
            ObservationKind::Exec { .. } => self.exec = true,
            ObservationKind::Connect { .. } => self.connect = true,
            ObservationKind::SyscallRefused { .. } => self.refusal = true,
            ObservationKind::Gate(event) if event.errno != 0 && self.refusals.len() < MOST_REFUSALS => {
                self.refusals.push(event.clone());
            }
            ObservationKind::Gate(_)
            | ObservationKind::Fork { .. }
            | ObservationKind::Exit { .. }
            | ObservationKind::ConnectResult { .. } => {}
        }
    }

    /// Whether all was seen that a fenced canary shows.
    pub fn is_whole(&self) -> bool {
        self.exec && self.connect && self.refusal
    }

    /// Whether the kernel said that it refused this.
    pub fn tells_of(&self, trial: trials::Trial) -> bool {
        self.refusals.iter().any(|event| trial.is_told_by(event))
    }
}

/// Why a canary could not be run.
#[derive(Debug, thiserror::Error)]
pub enum CanaryError {
    /// A file or process of it failed.
    #[error("the canary could not be run: {0}")]
    Io(#[from] std::io::Error),
    /// It did not answer.
    #[error("the canary did not answer in time, or not with what it should")]
    NoAnswer,
}

/// What a canary run needs.
pub struct Canary {
    /// The installed `ringfence`.
    pub ringfence: PathBuf,
    /// The installed launcher.
    pub launcher: PathBuf,
    /// A directory of the service's own state, which no fence lets a command write.
    pub ground: PathBuf,
}

impl Canary {
    /// Where the canary's working tree is: its plan grants this and not the rest of the ground.
    pub fn tree(&self) -> PathBuf {
        self.ground.join("tree")
    }

    /// Tries bare, then behind `plan`. Blocking: at most two of [`PATIENCE`].
    pub fn run(&self, plan: &Path, landlock_abi: u32) -> Proof {
        let at = Some(jiff::Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string());
        let made = Some(std::time::Instant::now());
        let outside = self.ground.join("outside");
        let both = (|| {
            remove(&outside)?;
            let bare = self.try_with(Command::new(&self.ringfence).arg("canary").arg(&outside))?;
            remove(&outside)?;
            let mut fenced = Command::new(&self.launcher);
            fenced.arg("--plan").arg(plan).arg("--").arg(&self.ringfence).arg("canary").arg(&outside);
            let fenced = self.try_with(&mut fenced)?;
            Ok::<_, CanaryError>((bare, fenced, outside.exists()))
        })();
        let _ = std::fs::remove_file(&outside);
        match both {
            Err(error) => Proof {
                at,
                made,
                landlock: Some(Err(error.to_string())),
                seccomp: Some(Err(error.to_string())),
                seen: None,
                gates: Vec::new(),
            },
            Ok((bare, fenced, left_a_file)) => {
                let landlock = match (bare.write_outside, fenced.write_outside, left_a_file) {
                    (0, libc::EACCES, false) => Ok(landlock_abi),
                    (0, other, _) => Err(format!("a canary's write outside its fence ended with errno {other}")),
                    (bare, ..) => Err(format!("the canary's ground cannot be written at all (errno {bare})")),
                };
                let seccomp = match (bare.personality, fenced.personality) {
                    (0, libc::EPERM) => Ok(()),
                    (0, other) => Err(format!("a canary's personality() ended with errno {other}")),
                    (bare, _) => {
                        Err(format!("personality() is refused to everybody here (errno {bare}), so nothing is proven"))
                    }
                };
                Proof { at, made, landlock: Some(landlock), seccomp: Some(seccomp), seen: None, gates: Vec::new() }
            }
        }
    }

    /// Runs it once more in a marked tree of its own. Answers with the session's number; what the kernel saw of it goes
    /// where the pipeline keeps what canaries show.
    pub async fn in_a_marked_tree(&self, plan: &Path, pipeline: &Pipeline) -> Result<u64, CanaryError> {
        let outside = self.ground.join("outside");
        let command = [self.ringfence.as_os_str(), "canary".as_ref(), outside.as_os_str()];
        let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let gate = Gate::spawn(&self.ringfence, &words, |gate| {
            gate.env_clear().current_dir(self.tree()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        })?;
        let child = process::stat(gate.child.id()).map_err(std::io::Error::other)?.id;
        let Some(mark) = pipeline.probe.new_session().await else {
            gate.shut();
            return Err(CanaryError::NoAnswer);
        };
        if pipeline.probe.enrol(mark, child).await.is_none() {
            gate.shut();
            return Err(CanaryError::NoAnswer);
        }
        pipeline.canaries.borrow_mut().insert(mark, Seen::default());
        pipeline.probe.expect_launch(mark).await;
        let ran = self.let_through(gate, plan).await;
        if ran.is_err() {
            pipeline.probe.close_session(mark).await;
            pipeline.canaries.borrow_mut().remove(&mark);
        }
        ran.map(|()| mark)
    }

    async fn let_through(&self, gate: Gate, plan: &Path) -> Result<(), CanaryError> {
        let child = gate.open(&Order { launcher: self.launcher.clone(), plan: plan.to_owned() })?;
        tokio::task::spawn_blocking(move || wait(child)).await.map_err(std::io::Error::other)?
    }

    fn try_with(&self, command: &mut Command) -> Result<Attempts, CanaryError> {
        let tree = self.tree();
        std::fs::create_dir_all(&tree)?;
        let mut child = command
            .env_clear()
            .current_dir(&tree)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut answer = Vec::new();
        let out = child.stdout.take().ok_or(CanaryError::NoAnswer)?;
        wait(child)?;
        out.take(ANSWER_BYTES).read_to_end(&mut answer)?;
        serde_json::from_slice(&answer).map_err(|_| CanaryError::NoAnswer)
    }
}

/// Waits for a canary, which is killed when it takes too long. Blocking.
fn wait(mut child: Child) -> Result<(), CanaryError> {
    let started = std::time::Instant::now();
    while child.try_wait()?.is_none() {
        if started.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Err(CanaryError::NoAnswer);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn remove(file: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
