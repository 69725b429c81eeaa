//! Cases as a process of their own: its time limit, its output, and what it leaves running.
//!
//! Three processes: the suite starts a supervisor, which adopts every orphan of the case (subreaper) and starts the body. So a background process that called setsid is still found, and killed, when the case is over.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

use super::{Job, Outcome, Record};

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

/// Runs these cases under a supervisor and prints their output if one failed.
pub(super) fn in_own_process(job: &Job, cases: &[String]) -> Vec<Record> {
    let begun = Instant::now();
    let failed = |reason: String| all_failed(job, cases, &reason);
    let (program, room) = match (std::env::current_exe(), tempfile::tempdir()) {
        (Ok(program), Ok(room)) => (program, room),
        (Err(error), _) | (_, Err(error)) => return failed(error.to_string()),
    };
    let result = room.path().join("verdict");
    let run = crate::stage::run_name();
    let mut supervisor = Command::new(program);
    supervisor.arg(SUPERVISE).arg(&result).args(cases).env(crate::stage::RUN_VARIABLE, &run);
    let output = supervisor.stdin(Stdio::null()).output();
    // A case that was killed could not remove its stage.
    crate::stage::remove_rooms_of(&run);
    let output = match output {
        Ok(output) => output,
        Err(error) => return failed(error.to_string()),
    };
    let mut told = read(&result);
    if told.is_empty() {
        told = failed(format!("the case ended without a verdict: {}", output.status));
    }
    if let [only] = &mut told[..] {
        only.seconds = begun.elapsed().as_secs_f64();
    }
    if told.iter().any(|one| one.outcome == Outcome::Failed) {
        for part in [&output.stdout, &output.stderr] {
            eprint!("{}", String::from_utf8_lossy(&part[part.len().saturating_sub(SHOWN_BYTES)..]));
        }
    }
    told
}

fn all_failed(job: &Job, cases: &[String], reason: &str) -> Vec<Record> {
    cases.iter().map(|name| job.record(name, (Outcome::Failed, Some(reason.to_owned())), 0.0)).collect()
}

/// The supervisor: starts the body, ends it at its limit, and ends what it left.
pub(super) fn supervise(job: &Job, cases: &[String], result: &Path) -> ExitCode {
    let told = watch(job, cases, result);
    let told =
        told.unwrap_or_else(|error| all_failed(job, cases, &format!("the case could not be supervised: {error}")));
    let _ = std::fs::remove_file(result);
    told.iter().for_each(|one| tell(result, one));
    ExitCode::SUCCESS
}

fn watch(job: &Job, cases: &[String], result: &Path) -> std::io::Result<Vec<Record>> {
    nix::sys::prctl::set_child_subreaper(true)?;
    let body = Command::new(std::env::current_exe()?).arg(BODY).arg(result).args(cases).spawn()?;
    let body = Pid::from_raw(body.id() as i32);
    let limit = job.limit * cases.len() as u32;
    let deadline = Instant::now() + limit;
    let status = loop {
        match reap(Some(body))? {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => break None,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let left = if status.is_some() { end_what_is_left(GRACE)? } else { end_what_is_left(Duration::ZERO)? };
    let mut told = read(result);
    let missing = match status {
        None => format!("took longer than {limit:?}"),
        Some(status) => format!("the case's process ended early: {status:?}"),
    };
    told.extend(all_failed(job, &cases[told.len().min(cases.len())..], &missing));
    let Some(last) = told.last_mut() else { return Ok(told) };
    if status.is_none() {
        (last.outcome, last.reason) = (Outcome::Failed, Some(missing));
    } else if last.outcome == Outcome::Passed && !left.is_empty() {
        let names: Vec<String> = left.into_iter().collect();
        (last.outcome, last.reason) = (Outcome::Failed, Some(format!("left processes running: {}", names.join(", "))));
    }
    Ok(told)
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

/// What was told so far.
fn read(result: &Path) -> Vec<Record> {
    let text = std::fs::read_to_string(result).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Leaves how a case ended for whoever started this process.
pub(super) fn tell(result: &Path, record: &Record) {
    if let Err(error) = super::append(result, record) {
        eprintln!("{}: {error}", result.display());
    }
}
