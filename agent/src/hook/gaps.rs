//! What a hook leaves for the service when it decided without it: a small record, in a bounded file that only the user
//! can read. Digests and features, nothing of the input itself.
#![forbid(unsafe_code)]

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, getppid};
use sha2::{Digest, Sha256};

use super::work::{Call, name_of, tell_gap};
use crate::clock::{boottime_ns, realtime_ms};
use crate::host::claude_code::{Claim, EventName, tool_class};
use crate::host::{HostEvent, ToolClass, ToolUse};
use crate::ipc::hook::{Gap, GapCause};
use crate::places::Places;
use crate::policy::judge::{Decision, Outcome};
use crate::process;

/// The file in the runtime directory, one JSON object a line.
const FILE: &str = "gaps.jsonl";
/// Largest file. A full one is itself a sign of loss: see [`Taken::full`].
const FILE_BYTES: u64 = 256 << 10;
/// Longest record, its line end included.
const RECORD_BYTES: usize = 4 << 10;

/// Records that the service took over.
#[derive(Debug, Default)]
pub struct Taken {
    /// Oldest first.
    pub gaps: Vec<Gap>,
    /// Lines that are no record: somebody else wrote them, or a write was cut off.
    pub unreadable: usize,
    /// The file had reached its limit, so later ones may be missing.
    pub full: bool,
}

/// Takes the records that hooks left; the file is gone afterwards. For the service, when it starts and now and then.
pub fn take(places: &Places) -> io::Result<Taken> {
    let file = path(places);
    let aside = file.with_extension("taken");
    match std::fs::rename(&file, &aside) {
        Ok(()) => {}
        // One that was set aside by a service that ended before it had read it is taken now.
        Err(error) if error.kind() == io::ErrorKind::NotFound && aside.exists() => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Taken::default()),
        Err(error) => return Err(error),
    }
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&aside)?;
    is_ours(&opened)?;
    let mut bytes = Vec::new();
    // A hook that had it open may still append one record: a little over the limit is read too.
    let limit = FILE_BYTES + 16 * RECORD_BYTES as u64;
    opened.take(limit).read_to_end(&mut bytes)?;
    std::fs::remove_file(&aside)?;
    let mut taken = Taken { full: bytes.len() as u64 + RECORD_BYTES as u64 > FILE_BYTES, ..Taken::default() };
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line) {
            Ok(gap) if line.len() <= RECORD_BYTES => taken.gaps.push(gap),
            _ => taken.unreadable += 1,
        }
    }
    Ok(taken)
}

/// A tool call that was decided here.
pub(super) fn of_call(cause: GapCause, event: &HostEvent, tool: &ToolUse, decision: &Decision) -> Gap {
    let class = tool_class(&tool.tool);
    let command = tool.input.get("command").and_then(|command| command.as_str());
    let digest = command
        .filter(|_| class == ToolClass::ShellExec)
        .map(|command| Sha256::digest(command.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect());
    Gap {
        call_id: Some(tool.call_id.clone()),
        class: Some(class),
        command_digest: digest,
        rules: decision.rules.clone(),
        ..of_event(cause, event, decision.outcome, &decision.reason_code)
    }
}

/// An event that the service was not told of.
pub(super) fn of_event(cause: GapCause, event: &HostEvent, outcome: Outcome, reason_code: &str) -> Gap {
    Gap {
        event: Some(name_of(&event.kind).as_str().to_owned()),
        session: Some(event.session.clone()),
        subagent: event.subagent.clone(),
        ..bare(cause, outcome, reason_code)
    }
}

/// Input that was not read.
pub(super) fn of_unreadable(installed: Option<EventName>, claim: Claim, outcome: Outcome) -> Gap {
    let (event, class) = match claim {
        Claim::ToolCall(class) => (Some(EventName::PreToolUse), class),
        Claim::Event(event) => (Some(event), None),
        Claim::Nothing | Claim::OtherEvent { .. } => (installed, None),
    };
    let event = event.map(|event| event.as_str().to_owned());
    Gap { event, class, ..bare(GapCause::InputUnreadable, outcome, "inspection_incomplete") }
}

fn bare(cause: GapCause, outcome: Outcome, reason_code: &str) -> Gap {
    // The parent of this process is its guard; the guard's is the host.
    let guard = u32::try_from(getppid().as_raw()).ok().and_then(|pid| process::stat(pid).ok());
    Gap {
        time_ms: realtime_ms(),
        boottime_ns: boottime_ns(),
        cause,
        host: guard.and_then(|guard| process::stat(guard.parent).ok()).map(|host| host.id),
        event: None,
        session: None,
        subagent: None,
        call_id: None,
        class: None,
        command_digest: None,
        outcome,
        reason_code: reason_code.to_owned(),
        rules: Vec::new(),
    }
}

/// Tells the service at once where it is there, else leaves the record. Never changes the answer: a call that was let
/// through by the built-in rules is not stopped because a disk is full.
pub(super) fn leave(call: &Call<'_>, gap: Gap) {
    let there = matches!(gap.cause, GapCause::InputUnreadable | GapCause::SettingsChange);
    if there && serde_json::to_value(&gap).is_ok_and(|gap| tell_gap(call, gap)) {
        return;
    }
    if let Ok(places) = &call.places {
        // Where it cannot be left, it is lost; the service sees the call without a decision.
        let _ = append(places, &gap);
    }
}

fn path(places: &Places) -> PathBuf {
    places.runtime_dir.join(FILE)
}

fn append(places: &Places, gap: &Gap) -> io::Result<()> {
    let mut line = serde_json::to_vec(gap)?;
    line.push(b'\n');
    if line.len() > RECORD_BYTES {
        return Err(io::Error::other("a record over its limit"));
    }
    make_private(&places.runtime_dir)?;
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path(places))?;
    let length = is_ours(&file)?;
    if length + line.len() as u64 > FILE_BYTES {
        return Err(io::Error::other("the file is full"));
    }
    // One write of an appended line: records of hooks that run at once do not mix.
    (&file).write_all(&line)
}

/// The directory, made if it is not there (its parent is the user's runtime directory or home).
fn make_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    if crate::places::is_private(dir, Uid::current().as_raw()) {
        Ok(())
    } else {
        Err(io::Error::other("the runtime directory is not private"))
    }
}

/// A regular file of this user that nobody else can read; gives its length.
fn is_ours(file: &File) -> io::Result<u64> {
    let meta = file.metadata()?;
    if meta.is_file() && meta.uid() == Uid::current().as_raw() && meta.mode() & 0o077 == 0 && meta.nlink() <= 1 {
        Ok(meta.len())
    } else {
        Err(io::Error::other("the file of gaps is not this user's alone"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn rig() -> (tempfile::TempDir, Places) {
        let dir = tempfile::tempdir().unwrap();
        let runtime_dir = dir.path().join("run");
        (dir, Places { runtime_dir, plan_directories: vec![], landlock_abi_cap: None })
    }

    fn gap(n: u64) -> Gap {
        Gap { time_ms: n, ..bare(GapCause::ServiceDown, Outcome::Deny, "x") }
    }

    #[test]
    fn what_is_left_is_taken_once_and_in_order() {
        let (_dir, places) = rig();
        assert!(take(&places).unwrap().gaps.is_empty());
        for n in 0..5 {
            append(&places, &gap(n)).unwrap();
        }
        let meta = std::fs::metadata(path(&places)).unwrap();
        assert_eq!(meta.mode() & 0o7777, 0o600);
        let taken = take(&places).unwrap();
        assert_eq!(taken.gaps.iter().map(|gap| gap.time_ms).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert!(!taken.full && taken.unreadable == 0);
        assert!(take(&places).unwrap().gaps.is_empty());
        assert_eq!(std::fs::read_dir(&places.runtime_dir).unwrap().count(), 0);
    }

    #[test]
    fn the_file_stops_growing_and_says_so() {
        let (_dir, places) = rig();
        let mut left = 0u64;
        while append(&places, &gap(left)).is_ok() {
            left += 1;
            assert!(left < 10_000);
        }
        assert!(std::fs::metadata(path(&places)).unwrap().len() <= FILE_BYTES);
        let taken = take(&places).unwrap();
        assert_eq!(taken.gaps.len() as u64, left);
        assert!(taken.full);
        append(&places, &gap(1)).unwrap();
    }

    #[test]
    fn what_is_not_ours_is_not_written_to() {
        let (dir, places) = rig();
        append(&places, &gap(1)).unwrap();
        std::fs::set_permissions(path(&places), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(append(&places, &gap(2)).is_err());
        std::fs::remove_file(path(&places)).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        std::fs::write(&elsewhere, "").unwrap();
        std::os::unix::fs::symlink(&elsewhere, path(&places)).unwrap();
        assert!(append(&places, &gap(3)).is_err());
        std::fs::remove_file(path(&places)).unwrap();
        std::fs::set_permissions(&places.runtime_dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(append(&places, &gap(4)).is_err());
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"");
    }

    #[test]
    fn lines_that_are_no_records_are_counted() {
        let (_dir, places) = rig();
        append(&places, &gap(1)).unwrap();
        let mut file = OpenOptions::new().append(true).open(path(&places)).unwrap();
        file.write_all(b"{\"time_ms\": 1}\nnot json\n\xff\n").unwrap();
        append(&places, &gap(2)).unwrap();
        let taken = take(&places).unwrap();
        assert_eq!((taken.gaps.len(), taken.unreadable), (2, 3));
    }
}
