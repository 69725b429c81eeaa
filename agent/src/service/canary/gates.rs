//! Proof of the kernel's gates: the same attempts by one process, bare and with every gate shut, must end differently, and
//! the kernel must say that its program refused them.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use ringfence_common::rules::{NAME_READ_REFUSED, NAME_WRITE_REFUSED, OBJECT_EXEC_REFUSED, UNIX_ALL_OFF, gate};
use rustix::fs::{Mode, OFlags};

use super::trials::{DATAGRAM, End, Ends, STREAM, TRIALS, Targets, Trial};
use super::{CanaryError, PATIENCE, Seen, wait};
use crate::gate::Gate;
use crate::ledger::entry::{GateState, State};
use crate::pipeline::Pipeline;
use crate::probe::protocol::{FileId, GateEvent, ProgramState};
use crate::probe::rules::{ObjectRule, RuleSet};
use crate::process;

/// How often, and how long each time, the kernel's word is waited for.
const ARRIVALS: u32 = 40;
const ARRIVAL: Duration = Duration::from_millis(10);
/// The program by which it is told whether this kernel loads LSM programs.
const LSM_PROGRAM: &str = "rf_bprm";
/// What the probe calls the kernel's list of security modules.
pub const SECURITY_MODULES: &str = "security modules";

/// What was tried, and what the kernel said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rounds {
    /// Bare.
    pub bare: Ends,
    /// With every gate shut.
    pub shut: Ends,
    /// The kernel's word of what it refused.
    pub events: Vec<GateEvent>,
}

/// Everything that a canary aims at; gone when dropped.
struct Ground {
    targets: Targets,
    files: [OwnedFd; 3],
    other: Option<Gate>,
    _sockets: (UnixListener, UnixListener, UnixDatagram),
}

/// Tries everything once. `ground` is a directory of the service's own.
pub async fn rounds(pipeline: &Pipeline, ringfence: &Path, ground: &Path) -> Result<Rounds, CanaryError> {
    let (program, place) = (ringfence.to_owned(), ground.to_owned());
    let blocking = tokio::task::spawn_blocking(move || begin(&program, &place));
    let (ground, child, out, bare) = blocking.await.map_err(io::Error::other)??;
    let mut tried = Tried { child: Some(child), mark: None, pipeline };
    let done = tried.shut(&ground, out).await;
    let events = tried.end().await;
    Ok(Rounds { bare, shut: done?, events })
}

struct Tried<'a> {
    child: Option<Child>,
    mark: Option<u64>,
    pipeline: &'a Pipeline,
}

impl Tried<'_> {
    /// Marks the canary, shuts the gates, and lets it try again.
    async fn shut(&mut self, ground: &Ground, mut out: BufReader<ChildStdout>) -> Result<Ends, CanaryError> {
        let probe = &self.pipeline.probe;
        let refused = |reason: String| CanaryError::Io(io::Error::other(reason));
        let child = self.child.as_ref().ok_or(CanaryError::NoAnswer)?;
        let process = process::stat(child.id()).map_err(io::Error::other)?.id;
        let mark = probe.new_session().await.ok_or(CanaryError::NoAnswer)?;
        self.mark = Some(mark);
        self.pipeline.canaries.borrow_mut().insert(mark, Seen::default());
        let files: Vec<BorrowedFd<'_>> = ground.files.iter().map(AsFd::as_fd).collect();
        let identified = probe.identify(mark, &files).await.map_err(refused)?;
        let rules = every_gate_shut(&identified);
        probe.set_rules(mark, rules.clone(), rules).await.map_err(refused)?;
        probe.enrol(mark, process).await.ok_or(CanaryError::NoAnswer)?;
        let mut child = self.child.take().ok_or(CanaryError::NoAnswer)?;
        let again = tokio::task::spawn_blocking(move || {
            let told = child
                .stdin
                .take()
                .ok_or(CanaryError::NoAnswer)
                .and_then(|mut input| Ok(input.write_all(b"\n")?))
                .and_then(|()| read_ends(&mut out));
            let ended = wait(child);
            told.and_then(|told| ended.map(|()| told))
        });
        let told = tokio::time::timeout(PATIENCE, again).await.map_err(|_| CanaryError::NoAnswer)?;
        let told = told.map_err(io::Error::other)??;
        let is_told = |(trial, end): &(Trial, End)| {
            !trial.refused(*end) || self.pipeline.canaries.borrow().get(&mark).is_some_and(|seen| seen.tells_of(*trial))
        };
        for _ in 0..ARRIVALS {
            if told.iter().all(is_told) {
                break;
            }
            tokio::time::sleep(ARRIVAL).await;
        }
        Ok(told)
    }

    /// Nothing of it stays; what the kernel said comes back.
    async fn end(mut self) -> Vec<GateEvent> {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let Some(mark) = self.mark else { return Vec::new() };
        self.pipeline.probe.close_session(mark).await;
        self.pipeline.canaries.borrow_mut().remove(&mark).map(|seen| seen.refusals).unwrap_or_default()
    }
}

/// Lays out what is aimed at, starts the canary and takes its first round. Blocking.
fn begin(ringfence: &Path, place: &Path) -> Result<(Ground, Child, BufReader<ChildStdout>, Ends), CanaryError> {
    let ground = Ground::make(ringfence, place)?;
    let targets = serde_json::to_string(&ground.targets).map_err(io::Error::other)?;
    let mut child = Command::new(ringfence)
        .args(["gate-canary", &targets])
        .env_clear()
        .current_dir(place)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut out = BufReader::new(child.stdout.take().ok_or(CanaryError::NoAnswer)?);
    match read_ends(&mut out) {
        Ok(bare) => Ok((ground, child, out, bare)),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

fn read_ends(out: &mut BufReader<ChildStdout>) -> Result<Ends, CanaryError> {
    let mut line = String::new();
    out.read_line(&mut line)?;
    serde_json::from_str(&line).map_err(|_| CanaryError::NoAnswer)
}

impl Ground {
    fn make(ringfence: &Path, place: &Path) -> Result<Ground, CanaryError> {
        let at = |name: &str| place.join(name);
        let targets = Targets {
            executable: at("program"),
            protected: at("protected"),
            secret: at("secret"),
            outside: at("outside-file"),
            stream: at(STREAM),
            datagram: at(DATAGRAM),
            abstract_name: format!("ringfence-canary-{}", uuid::Uuid::now_v7()),
            process: 0,
        };
        std::fs::create_dir_all(&targets.protected)?;
        if !targets.executable.exists() {
            // Under another name first: a copy that was cut off is never run.
            let beside = at("program.new");
            let source = ["/bin/true", "/usr/bin/true"].into_iter().find(|path| Path::new(path).exists());
            std::fs::copy(source.unwrap_or("/bin/true"), &beside)?;
            std::fs::rename(beside, &targets.executable)?;
        }
        for file in [&targets.secret, &targets.outside] {
            drop(File::options().create(true).append(true).open(file)?);
        }
        for socket in [&targets.stream, &targets.datagram] {
            super::remove(socket)?;
        }
        let abstract_name = std::os::unix::net::SocketAddr::from_abstract_name(&targets.abstract_name)?;
        let sockets = (
            UnixListener::bind(&targets.stream)?,
            UnixListener::bind_addr(&abstract_name)?,
            UnixDatagram::bind(&targets.datagram)?,
        );
        let other = Gate::spawn(ringfence, &["true".to_owned()], |gate| {
            gate.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        })?;
        let open = |path: &PathBuf| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let file = |path: &PathBuf| open(path).map_err(io::Error::from);
        let files = [file(&targets.executable)?, file(&targets.protected)?, file(&targets.secret)?];
        let process = i32::try_from(other.child.id()).map_err(io::Error::other)?;
        Ok(Ground { targets: Targets { process, ..targets }, files, other: Some(other), _sockets: sockets })
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(other) = self.other.take() {
            other.shut();
        }
    }
}

/// Everything is refused that can be refused by a gate's default, and the three files by a rule each.
fn every_gate_shut(files: &[FileId]) -> RuleSet {
    let shut = [
        gate::EXEC_ANONYMOUS,
        gate::CONNECT,
        gate::DATAGRAM,
        gate::BIND,
        gate::LISTEN,
        gate::UNIX,
        gate::ABSTRACT,
        gate::FAMILY,
        gate::TRACE,
        gate::SIGNAL,
        gate::NAMESPACE,
        gate::BPF,
        gate::METADATA,
    ];
    let bits = [OBJECT_EXEC_REFUSED, NAME_WRITE_REFUSED, NAME_READ_REFUSED];
    let rule = |(file, bits): (&FileId, u32)| ObjectRule { file: *file, bits, label: 0, state: 0 };
    RuleSet {
        refuse: shut.iter().fold(UNIX_ALL_OFF, |all, gate| all | 1 << gate),
        families: [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6].iter().fold(0, |all, family| all | 1 << family),
        objects: files.iter().zip(bits).map(rule).collect(),
        ..RuleSet::default()
    }
}

/// What two rounds prove of each gate.
pub fn judge(rounds: &Rounds, programs: &[ProgramState], at: &str) -> Vec<GateState> {
    TRIALS.into_iter().filter_map(|trial| judge_one(trial, rounds, programs, at)).collect()
}

/// What is said of the gates when nothing could be tried.
pub fn untried(reason: &str) -> Vec<GateState> {
    let one = |trial: Trial| GateState {
        gate: trial.name().to_owned(),
        layer: trial.fallback().map_or("bpf_lsm", |(layer, _)| layer).to_owned(),
        state: State::Absent,
        reason: reason.to_owned(),
        proven_at: None,
    };
    TRIALS.into_iter().map(one).collect()
}

fn judge_one(trial: Trial, rounds: &Rounds, programs: &[ProgramState], at: &str) -> Option<GateState> {
    let end = |ends: &Ends| ends.iter().find(|(one, _)| *one == trial).map(|(_, end)| *end);
    let (bare, shut) = (end(&rounds.bare)?, end(&rounds.shut)?);
    if trial.impossible(bare) {
        return None;
    }
    let event = rounds.events.iter().find(|event| trial.is_told_by(event));
    let by = |event: &GateEvent| match event {
        GateEvent { killed: true, .. } => "signal",
        GateEvent { fallback: true, .. } => "cgroup",
        _ => "bpf_lsm",
    };
    let lsm_is_attached = programs.iter().any(|one| one.program == LSM_PROGRAM && one.attached);
    let expected = match trial.fallback() {
        Some((layer, _)) if !lsm_is_attached => layer,
        _ => "bpf_lsm",
    };
    let said = |layer: &str, state, reason: String| {
        let proven_at = (state == State::Enforced).then(|| at.to_owned());
        Some(GateState { gate: trial.name().to_owned(), layer: layer.to_owned(), state, reason, proven_at })
    };
    match (trial.works(bare), trial.refused(shut), event) {
        (true, true, Some(event)) => {
            let reason = match by(event) {
                "bpf_lsm" => "a canary was refused".to_owned(),
                "cgroup" if matches!(trial, Trial::UnixPath | Trial::UnixDatagram) => {
                    "a canary was refused; without LSM all such sockets or none, since only their names are known"
                        .to_owned()
                }
                "cgroup" => "a canary was refused, by a cgroup program".to_owned(),
                _ => "a canary was killed before its first instruction; scripts cannot be refused so".to_owned(),
            };
            said(by(event), State::Enforced, reason)
        }
        (true, true, None) => {
            let reason = "a canary was refused, but no kernel program of ours says that it did so".to_owned();
            said(expected, State::Degraded, reason)
        }
        (false, _, Some(event)) => {
            let reason = format!("the kernel says that it refused a canary, but a bare one fails too ({bare:?})");
            said(by(event), State::Degraded, reason)
        }
        (false, _, None) => said(expected, State::Degraded, format!("a bare canary fails here ({bare:?})")),
        (true, false, _) => {
            let (state, reason) = not_refused(trial, lsm_is_attached, programs);
            said(expected, state, format!("{reason} (a canary's attempt: {shut:?})"))
        }
    }
}

/// Why nothing refused it.
fn not_refused(trial: Trial, lsm_is_attached: bool, programs: &[ProgramState]) -> (State, String) {
    match trial.fallback() {
        _ if lsm_is_attached => {
            let why = why_no_lsm(programs).unwrap_or_else(|| "its LSM program did not refuse".to_owned());
            (State::Degraded, format!("attached, but it does not fire: {why}"))
        }
        None => (State::Absent, "only BPF LSM refuses this, and it is not active".to_owned()),
        Some((_, program)) => match programs.iter().find(|one| one.program == program) {
            Some(ProgramState { attached: true, .. }) => {
                (State::Degraded, format!("{program} is attached, but did not refuse"))
            }
            Some(ProgramState { reason: Some(reason), .. }) => (State::Absent, format!("{program}: {reason}")),
            _ => (State::Absent, format!("{program} is not loaded")),
        },
    }
}

/// Why LSM programs refuse nothing, and how that is changed; `None` where they should.
pub fn why_no_lsm(programs: &[ProgramState]) -> Option<String> {
    let reason = |name: &str| programs.iter().find(|one| one.program == name && !one.attached)?.reason.clone();
    let attaching = reason(LSM_PROGRAM).map(|reason| format!("LSM programs do not attach: {reason}"));
    let parts: Vec<String> = reason(SECURITY_MODULES).into_iter().chain(attaching).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests;
