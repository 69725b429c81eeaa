//! What `cargo xtask bench kernel` measures: a process that starts `/bin/true` and connects to a loopback port, many times.
//!
//! `ringfence-bench-actor N PORT [HOOK | --wait]`: with `HOOK` it first presents itself to the service as a host's session
//! begins, so that it, and all that it starts, is marked; with `--wait` it says `ready` and waits for a line. One JSON line
//! a round: `{"exec_us", "connect_us"}`, microseconds.
//!
//! `ringfence-bench-actor --flood RATE SECONDS PORT HOOK`: marked likewise, it sends so many datagrams a second to a
//! loopback port from as many processes as there are processors, then prints `{"sent", "seconds"}`.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

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
    match words {
        [flag, rate, seconds, port, hook] if flag == "--flood" => {
            present_as_host(hook)?;
            flood(rate.parse()?, seconds.parse()?, port.parse()?)
        }
        [flag, rate, seconds, port] if flag == "--send" => {
            println!("{}", send(rate.parse()?, Duration::from_secs(seconds.parse()?), port.parse()?)?);
            Ok(())
        }
        [rounds, port, how @ ..] => {
            match how {
                [flag] if flag == "--wait" => {
                    println!("ready");
                    std::io::stdin().read_line(&mut String::new())?;
                }
                [hook] => present_as_host(hook)?,
                _ => {}
            }
            rounds_of_exec_and_connect(rounds.parse()?, port.parse()?)
        }
        _ => anyhow::bail!("usage: ringfence-bench-actor N PORT [HOOK | --wait]"),
    }
}

/// Starts one sender for each processor and adds up what they sent.
fn flood(rate: u32, seconds: u64, port: u16) -> anyhow::Result<()> {
    let senders = std::thread::available_parallelism()?.get() as u32;
    let begun = Instant::now();
    let (rate, seconds, port) = ((rate / senders).to_string(), seconds.to_string(), port.to_string());
    let mut children = Vec::new();
    for _ in 0..senders {
        let mut child = Command::new(std::env::current_exe()?);
        child.args(["--send", &rate, &seconds, &port]).stdin(Stdio::null()).stdout(Stdio::piped());
        children.push(child.spawn()?);
    }
    let mut sent = 0;
    for child in children {
        sent += String::from_utf8(child.wait_with_output()?.stdout)?.trim().parse::<u64>()?;
    }
    println!("{}", json!({ "sent": sent, "seconds": begun.elapsed().as_secs_f64() }));
    Ok(())
}

/// Sends at a steady rate, in bursts of a hundredth of a second; answers how many.
fn send(rate: u32, lasts: Duration, port: u16) -> anyhow::Result<u64> {
    const BURST: Duration = Duration::from_millis(10);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let begun = Instant::now();
    let mut sent = 0;
    let mut next = begun;
    while begun.elapsed() < lasts {
        for _ in 0..rate / 100 {
            // A full receiver is no matter: the attempt is what is counted.
            let _ = socket.send_to(b"x", (Ipv4Addr::LOCALHOST, port));
            sent += 1;
        }
        next += BURST;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(sent)
}

fn rounds_of_exec_and_connect(rounds: usize, port: u16) -> anyhow::Result<()> {
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
