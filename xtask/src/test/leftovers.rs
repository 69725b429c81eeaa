//! After the tests: nothing of this run may be left on the machine.

use std::path::Path;

use ringfence_tests::running::PINS;
use ringfence_tests::stage;
use ringfence_tests::suite::{Outcome, Record};

/// Looks for pins, files and processes of the run, by the names that only it gives.
pub(super) fn look(run: &str) -> Record {
    let name = stage::prefix_of(run);
    let room = format!("ringfence-run-{run}-");
    let mut left: Vec<String> = Vec::new();
    for directory in [PINS, stage::ROOMS, "/tmp"] {
        left.extend(
            entries(Path::new(directory))
                .filter(|(entry, _)| entry.starts_with(&name) || entry.starts_with(&room))
                .map(|(_, path)| path),
        );
    }
    for (pid, path) in entries(Path::new("/proc")).filter(|(entry, _)| entry.bytes().all(|byte| byte.is_ascii_digit()))
    {
        if std::fs::read_link(Path::new(&path).join("exe")).is_ok_and(|exe| exe.to_string_lossy().contains(&name)) {
            left.push(format!("process {pid}"));
        }
    }
    let (outcome, reason) = match left.is_empty() {
        true => (Outcome::Passed, None),
        false => (Outcome::Failed, Some(format!("left behind: {}", left.join(", ")))),
    };
    Record { suite: "tidiness".into(), name: "nothing is left behind".into(), outcome, reason, seconds: 0.0 }
}

fn entries(directory: &Path) -> impl Iterator<Item = (String, String)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path().display().to_string()))
}
