//! What the kernel programs cost: exec and connect of a process without programs, unmarked beside them, and marked.
//!
//! Refused system calls are watched only while a launch may live, so their cost to every process is measured by itself.

use std::net::TcpListener;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use nix::unistd::Uid;
use ringfence_tests::running::{Probe, Service};
use serde_json::Value;

use super::Ground;
use super::results::Results;

/// Rounds in which the contenders alternate, so that a machine that slows down slows all of them.
const ROUNDS: usize = 5;

/// Microseconds of a fork, exec and wait, and of a connect to a listening loopback port.
pub fn run(ground: &Ground, results: &mut Results) -> anyhow::Result<()> {
    if !Uid::effective().is_root() {
        results.note("kernel: not root, so no programs can be loaded: not measured");
        return Ok(());
    }
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let each = ground.n.div_ceil(ROUNDS);
    let mut exec = [const { Vec::new() }; 3];
    let mut connect = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        measure(ground, each, port, false, (&mut exec[0], &mut connect[0]))?;
        let probe = Probe::start(&ground.stage)?;
        let service = Service::start_with(&ground.stage, &ground.person, &["--metrics-port", "0"])?;
        measure(ground, each, port, false, (&mut exec[1], &mut connect[1]))?;
        measure(ground, each, port, true, (&mut exec[2], &mut connect[2]))?;
        drop(service);
        drop(probe);
    }
    let named = |[bare, unmarked, marked]: [Vec<f64>; 3]| {
        vec![("no programs", bare), ("unmarked", unmarked), ("marked", marked)]
    };
    results.add("kernel-exec", "us", named(exec));
    results.add("kernel-connect", "us", named(connect));
    Ok(())
}

fn measure(
    ground: &Ground,
    n: usize,
    port: u16,
    marked: bool,
    (exec, connect): (&mut Vec<f64>, &mut Vec<f64>),
) -> anyhow::Result<()> {
    let directory = ground.person.directory("bench-kernel")?;
    let mut actor = ground.person.command(&ground.actor);
    actor.arg(n.to_string()).arg(port.to_string()).current_dir(directory).stdin(Stdio::null());
    if marked {
        actor.arg(ground.stage.hook());
    }
    let output = actor.output().context("starting the actor")?;
    ensure!(output.status.success(), "the actor failed: {}", String::from_utf8_lossy(&output.stderr));
    for line in String::from_utf8(output.stdout)?.lines() {
        let line: Value = serde_json::from_str(line)?;
        exec.push(line["exec_us"].as_f64().context("exec_us")?);
        connect.push(line["connect_us"].as_f64().context("connect_us")?);
    }
    Ok(())
}
