//! One guest: starting it, ending it, and what became of its tests.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ringfence_tests::suite::{Outcome, Record, print_line};

use super::{Asked, Kernel, SUITE, record};
use crate::shell;
use crate::test::unit;

const QEMU: &str = "qemu-system-x86_64";
/// How much of the console is shown when a guest came to a bad end.
const LAST_LINES: usize = 25;

/// Why no guest can run here.
pub fn obstacle() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the guests are x86_64 machines with this machine's programs".into());
    }
    let there = shell::succeeds(Command::new(QEMU).arg("--version"));
    (!there).then(|| format!("no {QEMU} (cargo xtask setup installs it)"))
}

fn qemu(image: &Path, initramfs: &Path, append: &str) -> Command {
    let mut command = Command::new(QEMU);
    // Emulated, since a nested machine rarely has another way; its two processors in one thread, since a kernel that rewrites
    // its own code (programs are attached that way) is not always seen whole by another thread.
    command.args(["-M", "q35", "-cpu", "max", "-accel", "tcg,thread=single", "-smp", "2", "-m", "2048"]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot"]);
    command.args(["-serial", "stdio"]);
    command.arg("-kernel").arg(image).arg("-initrd").arg(initramfs);
    // Warnings are shown, and a fault of the kernel's ends the guest.
    command.arg("-append").arg(format!("console=ttyS0 loglevel=5 oops=panic panic=-1 {append}"));
    command
}

/// A shell on this terminal.
pub fn shell(image: &Path, initramfs: &Path) -> anyhow::Result<()> {
    let mut command = qemu(image, initramfs, "guest_shell=1");
    command.status().context("starting the guest")?;
    Ok(())
}

/// Boots, waits for the end, and answers with one record per test. Its output stays in `room`.
pub fn run(
    kernel: Kernel,
    image: &Path,
    initramfs: &Path,
    room: &Path,
    asked: &Asked<'_>,
) -> anyhow::Result<Vec<Record>> {
    std::fs::create_dir_all(room)?;
    let (console, results) = (room.join("console.log"), room.join("results"));
    let begun = Instant::now();
    let mut command = qemu(image, initramfs, &format!("guest_limit={}", asked.limit.as_secs()));
    command.arg("-serial").arg(format!("file:{}", results.display()));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("starting the guest")?;
    let output = child.stdout.take().context("the guest's console")?;
    let (log, show) = (File::create(&console)?, asked.show);
    let copy = std::thread::spawn(move || copy(output, log, show));
    let end = wait(&mut child, asked.limit)?;
    copy.join().map_err(|_| anyhow::anyhow!("reading the guest's console"))??;

    let read = |path: &Path| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).replace('\r', ""));
    let said = read(&console)?;
    let mut records = outcomes(kernel, &read(&results).unwrap_or_default());
    let complaint = end.or_else(|| complaint(&said)).or_else(|| not_done(&records));
    records.retain(|record| record.name != DONE);
    if let Some(complaint) = complaint {
        let reason = format!("{complaint}; its last lines:\n{}", last_lines(&said));
        records.push(record(kernel, "the guest ends as it should", Outcome::Failed, Some(reason)));
    }
    tell(kernel, &records, &console, begun.elapsed());
    Ok(records)
}

/// Copies the console to the log, and to the terminal if wanted.
fn copy(output: impl Read, mut log: File, show: bool) -> std::io::Result<()> {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        log.write_all(&line)?;
        if show {
            std::io::stdout().write_all(&line)?;
        }
        line.clear();
    }
    Ok(())
}

/// Waits for the guest's end; says why if it had to be ended.
fn wait(child: &mut Child, limit: Duration) -> anyhow::Result<Option<String>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((!status.success()).then(|| format!("qemu ended with {status}")));
        }
        if begun.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(Some(format!("it was still running after {} s and was ended", limit.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What the kernel says when something is broken in it.
fn complaint(console: &str) -> Option<String> {
    let broken = |line: &&str| {
        let Some((_, text)) = line.strip_prefix('[').and_then(|line| line.split_once("] ")) else { return false };
        ["BUG:", "Oops", "Kernel panic"].iter().any(|word| text.contains(word))
            || (text.starts_with("WARNING:") && text.contains("bpf"))
    };
    console.lines().find(broken).map(|line| format!("its kernel says: {line}"))
}

/// Stands among the records for init's last line.
const DONE: &str = "done";

fn not_done(records: &[Record]) -> Option<String> {
    let done = records.iter().any(|record| record.name == DONE);
    (!done).then(|| "it ended before its tests were through".to_owned())
}

/// Reads the second serial line; see `init.sh`.
fn outcomes(kernel: Kernel, results: &str) -> Vec<Record> {
    let mut records = Vec::new();
    let mut lines = results.lines();
    while let Some(line) = lines.next() {
        let (kind, name) = match line.strip_prefix("# ").map(|words| words.split_once(' ').unwrap_or((words, ""))) {
            Some((kind @ ("unit" | "suite"), name)) => (kind, name),
            Some((DONE, _)) => {
                records.push(Record { name: DONE.into(), ..record(kernel, DONE, Outcome::Passed, None) });
                continue;
            }
            _ => continue,
        };
        let (mut part, mut status) = (Vec::new(), None);
        for line in lines.by_ref() {
            if let Some(word) = line.strip_prefix("# end ") {
                status = Some(word);
                break;
            }
            part.push(line);
        }
        let mut found = match kind {
            "unit" => unit::read(name, &part.join("\n")),
            _ => part.iter().filter_map(|line| serde_json::from_str(line).ok()).collect::<Vec<Record>>(),
        };
        let failures = found.iter().any(|record| record.outcome == Outcome::Failed);
        for one in &mut found {
            let of = if kind == "suite" && name != SUITE { format!("{name}: ") } else { String::new() };
            one.name = format!("{}: {of}{}", kernel.name(), one.name);
            one.suite = SUITE.into();
        }
        records.append(&mut found);
        match status {
            Some("0") => {}
            Some(_) if failures => {}
            Some(status) => {
                let reason = format!("{name} ended early, with status {status}");
                records.push(record(kernel, &format!("{kind} {name} runs"), Outcome::Failed, Some(reason)));
            }
            None => {
                let reason = "the guest ended first".to_owned();
                records.push(record(kernel, &format!("{kind} {name} runs"), Outcome::Failed, Some(reason)));
            }
        }
    }
    records
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

fn tell(kernel: Kernel, records: &[Record], console: &Path, took: Duration) {
    let count = |outcome| records.iter().filter(|record| record.outcome == outcome).count();
    let failed = count(Outcome::Failed);
    records.iter().for_each(print_line);
    println!(
        "{SUITE}: Linux {}: {} passed, {failed} failed, {} skipped, in {:.0} s",
        kernel.name(),
        count(Outcome::Passed),
        count(Outcome::Skipped),
        took.as_secs_f64()
    );
    if failed > 0 {
        println!("{SUITE}: what the guest printed: {}", console.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_come_from_the_second_line_and_an_early_end_is_a_failure() {
        let results = "# unit ringfence\nrunning 1 test\ntest kernel::a ... ok\n\n# end 0\n# suite probe\n\
                       {\"suite\":\"probe\",\"name\":\"b\",\"outcome\":\"skipped\",\"reason\":\"r\",\"seconds\":1.0}\n# end 0\n\
                       # suite vm\n{\"suite\":\"vm\",\"name\":\"c\",\"outcome\":\"passed\",\"reason\":null,\"seconds\":1.0}\n{\"sui";
        let told = outcomes(Kernel::V6_1, results);
        let told: Vec<_> = told.iter().map(|record| (record.name.as_str(), record.outcome)).collect();
        let expect = [
            ("6.1: ringfence kernel::a", Outcome::Passed),
            ("6.1: probe: b", Outcome::Skipped),
            ("6.1: c", Outcome::Passed),
            ("6.1: suite vm runs", Outcome::Failed),
        ];
        assert_eq!(told, expect);
    }

    #[test]
    fn only_the_kernel_s_own_lines_are_complaints() {
        assert!(complaint("a test prints BUG: and Oops\n[    3.1] a line\n").is_none());
        assert!(complaint("[   12.3] WARNING: CPU: 0 PID: 1 at kernel/bpf/verifier.c:1 x\n").is_some());
        assert!(complaint("[   12.3] Kernel panic - not syncing\n").is_some());
    }
}
