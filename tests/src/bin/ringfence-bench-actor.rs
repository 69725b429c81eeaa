//! What `cargo xtask bench kernel` measures: a process that starts `/bin/true` and connects to a loopback port, many times.
//!
//! `ringfence-bench-actor N PORT [HOOK]`: with `HOOK` it first presents itself to the service as a host's session begins, so
//! that it, and all that it starts, is marked. One JSON line a round: `{"exec_us", "connect_us"}`, microseconds.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde_json::json;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench actor: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> anyhow::Result<()> {
    let [rounds, port, hook @ ..] = words else { anyhow::bail!("usage: ringfence-bench-actor N PORT [HOOK]") };
    let (rounds, port): (usize, u16) = (rounds.parse()?, port.parse()?);
    if let [hook] = hook {
        present_as_host(hook)?;
    }
    let mut out = std::io::stdout().lock();
    for _ in 0..rounds {
        let begun = Instant::now();
        let status = Command::new("/bin/true").stdin(Stdio::null()).status()?;
        let exec_us = begun.elapsed().as_nanos() as f64 / 1e3;
        ensure!(status.success(), "/bin/true failed");
        let begun = Instant::now();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        let connect_us = begun.elapsed().as_nanos() as f64 / 1e3;
        drop(stream);
        writeln!(out, "{}", json!({ "exec_us": exec_us, "connect_us": connect_us }))?;
    }
    Ok(())
}

fn present_as_host(hook: &str) -> anyhow::Result<()> {
    let session = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let input = json!({
        "session_id": session.trim(), "transcript_path": "/nonexistent", "cwd": std::env::current_dir()?,
        "hook_event_name": "SessionStart", "source": "startup",
    });
    let mut child = Command::new(hook).args(["claude-code", "SessionStart"]).stdin(Stdio::piped()).spawn()?;
    child.stdin.take().context("the hook's input")?.write_all(input.to_string().as_bytes())?;
    ensure!(child.wait()?.success(), "the hook did not take the session's start");
    Ok(())
}
