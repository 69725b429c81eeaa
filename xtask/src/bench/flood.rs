//! A flood: how many events a second are told, whether the accounting is exact, and what probe and service hold meanwhile.

use std::net::UdpSocket;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::unistd::Uid;
use ringfence_tests::running::{Probe, Service};
use serde_json::Value;

use super::Ground;
use super::results::Results;

/// How long each flood lasts.
const LASTS: Duration = Duration::from_secs(60);
/// Datagrams a second, all from marked processes.
const RATES: [u32; 2] = [50_000, 200_000];

/// Events a second as attempted, reported and lost; megabytes resident.
pub fn run(ground: &Ground, results: &mut Results) -> anyhow::Result<()> {
    if !Uid::effective().is_root() {
        results.note("flood: not root, so no programs can be loaded: not measured");
        return Ok(());
    }
    let sink = UdpSocket::bind(("127.0.0.1", 0))?;
    let port = sink.local_addr()?.port();
    for rate in RATES {
        let probe = Probe::start(&ground.stage)?;
        let service = Service::start_with(&ground.stage, &ground.person, &["--metrics-port", "0"])?;
        let directory = ground.person.directory("bench-flood")?;
        let mut actor = ground.person.command(&ground.actor);
        actor.args(["--flood", &rate.to_string(), &LASTS.as_secs().to_string(), &port.to_string()]);
        actor.arg(ground.stage.hook()).current_dir(directory).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = actor.spawn().context("starting the actor")?;
        let mut resident = [Vec::new(), Vec::new()];
        while child.try_wait()?.is_none() {
            for (samples, pid) in resident.iter_mut().zip([probe.pid(), service.pid()]) {
                samples.extend(resident_megabytes(pid));
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "the actor failed");
        let told: Value = serde_json::from_slice(&output.stdout)?;
        let sent = told["sent"].as_u64().context("sent")?;
        let seconds = told["seconds"].as_f64().context("seconds")?;
        let counters = settled(ground, &service)?;
        let [attempted, reported, lost] =
            ["attempted", "reported", "lost"].map(|key| counters[key].as_u64().unwrap_or(0));
        ensure!(attempted == reported + lost, "{attempted} attempted, {reported} reported, {lost} lost");
        results.note(format!(
            "flood of {rate}/s: {sent} datagrams in {seconds:.1} s ({:.0}/s); {attempted} attempted = {reported} reported \
             + {lost} lost ({:.2} % reported)",
            sent as f64 / seconds,
            100.0 * reported as f64 / attempted.max(1) as f64,
        ));
        let [of_probe, of_service] = resident;
        results.add(&format!("flood-{rate}"), "MB", vec![("probe", of_probe), ("service", of_service)]);
    }
    Ok(())
}

/// The counters of the newest session, once they stand still.
fn settled(ground: &Ground, service: &Service) -> anyhow::Result<Value> {
    let begun = Instant::now();
    let mut before = Value::Null;
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let report: Value = serde_json::from_str(&service.ask(&ground.person, &["report", "--last", "--json"])?)?;
        let now = report["losses"].clone();
        if now == before || begun.elapsed() > Duration::from_secs(60) {
            return Ok(now);
        }
        before = now;
    }
}

fn resident_megabytes(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<f64>().ok()? / 1024.0)
}
