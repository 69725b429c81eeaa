//! The harness itself: what it must notice, and the people it makes.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ringfence_tests::person::{Person, needs_root};
use ringfence_tests::running::{PINS, Probe};
use ringfence_tests::stage::{self, Stage};
use ringfence_tests::suite::{CaseResult, Record, Suite, skip};

fn main() -> ExitCode {
    // The cases that must not pass are run by the case below, as a suite of their own.
    if std::env::var_os("RINGFENCE_HARNESS_INNER").is_some() {
        return Suite::new("inner")
            .case("panics", || panic!("as it should"))
            .case("errs", || anyhow::bail!("with a reason"))
            .case("skips", || skip("not on a Tuesday"))
            .case("leaves a process", leave_a_process)
            .together(
                || Ok(7),
                vec![("shares", shares), ("panics among others", |_| panic!("alone")), ("goes on", shares)],
            )
            .together(|| skip("not shared").map(|()| 7), vec![("has nothing", shares)])
            .limit(Duration::from_millis(300))
            .case("hangs", hang)
            .run();
    }
    Suite::new("harness")
        .case("failures, skips, leftovers and limits are told apart", outcomes_are_told_apart)
        .case("a person is an ordinary user with a home and a passwd entry", a_person_is_ordinary)
        .case("two people cannot read each other's homes", two_people_are_apart)
        .limit(Duration::from_secs(900)) // Builds the programs when run by itself.
        .case("a stage's hook and launcher are static and root's", a_stage_is_as_installed)
        .case("a private probe loads, and leaves nothing pinned, even when it crashed", a_probe_comes_and_goes)
        .run()
}

fn shares(number: &i32) -> CaseResult {
    ensure!(*number == 7, "{number}");
    Ok(())
}

fn hang() -> CaseResult {
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

fn leave_a_process() -> CaseResult {
    Command::new("setsid").args(["--fork", "sleep", "61"]).status()?;
    Ok(())
}

fn outcomes_are_told_apart() -> CaseResult {
    let room = tempfile::tempdir()?;
    let record = room.path().join("record");
    let begun = Instant::now();
    let inner = Command::new(std::env::current_exe()?)
        .env("RINGFENCE_HARNESS_INNER", "1")
        .env("RINGFENCE_TEST_RECORD", &record)
        .output()?;
    ensure!(!inner.status.success(), "a suite with failures ends with an error");
    ensure!(begun.elapsed() < Duration::from_secs(30), "the hanging case was ended at its limit");
    let lines = std::fs::read_to_string(&record)?;
    let lines: Vec<Record> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let told: Vec<String> = lines
        .iter()
        .map(|line| format!("{} {:?} {}", line.name, line.outcome, line.reason.as_deref().unwrap_or("-")))
        .collect();
    ensure!(
        told == [
            "panics Failed as it should",
            "errs Failed with a reason",
            "skips Skipped not on a Tuesday",
            "leaves a process Failed left processes running: sleep",
            "shares Passed -",
            "panics among others Failed alone",
            "goes on Passed -",
            "has nothing Skipped not shared",
            "hangs Failed took longer than 300ms",
        ],
        "{told:#?}"
    );
    let last = String::from_utf8_lossy(&inner.stdout);
    ensure!(last.lines().last() == Some("inner: 2 passed, 5 failed, 2 skipped"), "{last}");
    Ok(())
}

fn a_person_is_ordinary() -> CaseResult {
    needs_root("a user of its own")?;
    let person = Person::new()?;
    person.file("a/b.txt", "x")?;
    let out = person
        .command("sh")
        .args(["-c", "id -u; id -un; id -G; echo ~; pwd; env | wc -l; touch /etc/x 2>&1; cat a/b.txt"])
        .output()?;
    let text = String::from_utf8(out.stdout)?;
    let lines: Vec<&str> = text.lines().collect();
    let (uid, home) = (person.uid().to_string(), person.home().to_str().context("a plain path")?);
    ensure!(lines[..5] == [uid.as_str(), person.name(), uid.as_str(), home, home], "{text}");
    ensure!(text.contains("Permission denied") && text.ends_with('x'), "{text}");
    ensure!(!std::path::Path::new("/etc/x").exists(), "an ordinary user wrote to /etc");
    Ok(())
}

fn two_people_are_apart() -> CaseResult {
    let (one, other) = Person::two()?;
    let secret = one.file("secret", "mine")?;
    let out = other.command("cat").arg(&secret).output()?;
    ensure!(!out.status.success() && out.stdout.is_empty(), "{out:?}");
    Ok(())
}

fn a_stage_is_as_installed() -> CaseResult {
    let stage = Stage::new()?;
    for program in [stage.hook(), stage.launcher()] {
        let headers = Command::new("readelf").arg("--program-headers").arg(&program).output()?;
        let text = String::from_utf8_lossy(&headers.stdout);
        ensure!(
            headers.status.success() && text.contains("LOAD") && !text.contains("INTERP"),
            "{}: {text}",
            program.display()
        );
    }
    if needs_root("people").is_ok() {
        let person = Person::new()?;
        let write = person.command("touch").arg(stage.hook()).output()?;
        ensure!(!write.status.success(), "an ordinary user may write the hook");
        let enter = person.command("ls").arg(stage.runtime_directory(&person)?).output()?;
        ensure!(enter.status.success(), "{enter:?}");
    }
    Ok(())
}

fn a_probe_comes_and_goes() -> CaseResult {
    let pinned = || {
        std::fs::read_dir(PINS)
            .map_or(0, |entries| entries.flatten().filter(|e| name_of(e).starts_with(&stage::prefix())).count())
    };
    for crash in [false, true] {
        let stage = Stage::new()?;
        let mut probe = Probe::start(&stage)?;
        ensure!(pinned() == 1, "the probe pinned {} directories: {}", pinned(), probe.log());
        if crash {
            probe.crash();
            ensure!(pinned() == 1, "what was pinned does not outlive the probe");
        }
        drop(probe);
        ensure!(pinned() == 0, "pins are left (crashed: {crash})");
    }
    Ok(())
}

fn name_of(entry: &std::fs::DirEntry) -> String {
    entry.file_name().to_string_lossy().into_owned()
}
