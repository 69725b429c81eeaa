//! One case as a process of its own: its time limit, its output, and what it leaves running.
//!
//! Three processes: the suite starts a supervisor per case, which adopts every orphan of the case (subreaper) and starts the
//! body. So a background process that called setsid is still found, and killed, when the case is over.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

use super::{Case, Outcome};

/// Starts the supervisor of a case.
pub(super) const SUPERVISE: &str = "--supervise-case";
/// Starts the body of a case.
pub(super) const BODY: &str = "--case-body";
/// How long a case's processes may take to end by themselves after it.
const GRACE: Duration = Duration::from_secs(2);
/// How long they then have to tidy up after SIGTERM (a probe unloads its programs) before SIGKILL.
const TIDYING: Duration = Duration::from_secs(3);
/// How much of a failed case's output is shown.
const SHOWN_BYTES: usize = 16 << 10;

type Verdict = (Outcome, Option<String>);

/// Runs a case under a supervisor and prints its output if it failed.
pub(super) fn in_own_process(case: &Case) -> Verdict {
    let failed = |reason: String| (Outcome::Failed, Some(reason));
    let (program, room) = match (std::env::current_exe(), tempfile::tempdir()) {
        (Ok(program), Ok(room)) => (program, room),
        (Err(error), _) | (_, Err(error)) => return failed(error.to_string()),
    };
    let result = room.path().join("verdict");
    let run = crate::stage::run_name();
    let mut supervisor = Command::new(program);
    supervisor.arg(SUPERVISE).arg(&case.name).arg(&result).env(crate::stage::RUN_VARIABLE, &run);
    let output = supervisor.stdin(Stdio::null()).output();
    // A case that was killed could not remove its stage.
    crate::stage::remove_rooms_of(&run);
    let output = match output {
        Ok(output) => output,
        Err(error) => return failed(error.to_string()),
    };
    let verdict = std::fs::read(&result).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let verdict: Verdict =
        verdict.unwrap_or_else(|| failed(format!("the case ended without a verdict: {}", output.status)));
    if verdict.0 == Outcome::Failed {
        for part in [&output.stdout, &output.stderr] {
            eprint!("{}", String::from_utf8_lossy(&part[part.len().saturating_sub(SHOWN_BYTES)..]));
        }
    }
    verdict
}

/// The supervisor: starts the body, ends it at its limit, and ends what it left.
pub(super) fn supervise(case: &Case, result: &Path) -> ExitCode {
    let verdict = match watch(case, result) {
        Ok(verdict) => verdict,
        Err(error) => (Outcome::Failed, Some(format!("the case could not be supervised: {error}"))),
    };
    write_verdict(result, &verdict);
    ExitCode::SUCCESS
}

fn watch(case: &Case, result: &Path) -> std::io::Result<Verdict> {
    nix::sys::prctl::set_child_subreaper(true)?;
    let body = Command::new(std::env::current_exe()?).arg(BODY).arg(&case.name).arg(result).spawn()?;
    let body = Pid::from_raw(body.id() as i32);
    let deadline = Instant::now() + case.limit;
    let status = loop {
        match reap(Some(body))? {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => break None,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let left = if status.is_some() { end_what_is_left(GRACE)? } else { end_what_is_left(Duration::ZERO)? };
    let verdict = std::fs::read(result).ok().and_then(|text| serde_json::from_slice::<Verdict>(&text).ok());
    Ok(match (status, verdict) {
        (None, _) => (Outcome::Failed, Some(format!("took longer than {:?}", case.limit))),
        (Some(status), None) => (Outcome::Failed, Some(format!("the case's process ended early: {status:?}"))),
        (Some(_), Some((Outcome::Passed, _))) if !left.is_empty() => {
            let names: Vec<String> = left.into_iter().collect();
            (Outcome::Failed, Some(format!("left processes running: {}", names.join(", "))))
        }
        (Some(_), Some(verdict)) => verdict,
    })
}

/// Reaps zombies; answers with the status of `wanted` once it ended.
fn reap(wanted: Option<Pid>) -> nix::Result<Option<WaitStatus>> {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(None),
            Ok(status) if wanted.is_some() && status.pid() == wanted => return Ok(Some(status)),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits for adopted children to end, then ends them, generation by generation, since each death hands us its children.
fn end_what_is_left(grace: Duration) -> nix::Result<BTreeSet<String>> {
    let begun = Instant::now();
    let (mut ended, mut told) = (BTreeSet::new(), BTreeSet::new());
    loop {
        reap(None)?;
        let children = children();
        if children.is_empty() {
            return Ok(ended);
        }
        let waited = begun.elapsed();
        for (pid, name) in children {
            let signal = match waited {
                waited if waited >= grace + TIDYING => Signal::SIGKILL,
                waited if waited >= grace && told.insert(pid) => Signal::SIGTERM,
                _ => continue,
            };
            // A child of ours is not reaped by anybody else, so its pid cannot have been reused.
            if kill(Pid::from_raw(pid), signal).is_ok() {
                ended.insert(name);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// This process's living children, by pid and name.
fn children() -> Vec<(i32, String)> {
    let me = getpid().as_raw().to_string();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((head, rest)) = stat.rsplit_once(')') else { continue };
        let mut fields = rest.split_ascii_whitespace();
        let (state, parent) = (fields.next(), fields.next());
        if parent == Some(me.as_str()) && state != Some("Z") {
            found.push((pid, head.split_once('(').map_or_else(String::new, |(_, name)| name.to_owned())));
        }
    }
    found
}

/// Leaves the verdict for whoever started this process.
pub(super) fn write_verdict(result: &Path, verdict: &Verdict) {
    let text = serde_json::to_vec(verdict).expect("a verdict is plain data");
    if let Err(error) = std::fs::write(result, text) {
        eprintln!("{}: {error}", result.display());
    }
}
