//! Rules hold while nobody of Ringfence's lives, and while it comes back.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::ensure;
use ringfence_tests::running::{Probe, Service};
use ringfence_tests::suite::CaseResult;

use crate::deeds::program;
use crate::stand::{DOCKER_PORT, Stand};

/// Longest wait for the command's next attempts: an emulated machine is slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command tries one refused address without a pause while probe and service are killed and started again.
pub fn hammered() -> CaseResult {
    let mut stand = Stand::start()?;
    let listener = TcpListener::bind(("127.0.0.1", DOCKER_PORT))?;
    listener.set_nonblocking(true)?;
    let deeds = format!(
        "open(my $tried, '>', 'tried') or die; open(my $reached, '>', 'reached') or die; \
         while (!-e 'stop') {{ connects(AF_INET, inet('127.0.0.1', {DOCKER_PORT})) and syswrite($reached, 'x'); \
           syswrite($tried, '.'); }}"
    );
    // Nothing but the kernel's rules refuses here.
    let words = ["run", "--fence", "host", "--", "/usr/bin/perl", "-e", &program(&deeds)];
    let mut command = stand.service.ringfence(&stand.person, &words);
    let mut run = command.current_dir(&stand.tree).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let tried = stand.tree.join("tried");
    goes_on(&tried)?;
    stand.probe.crash();
    stand.service.crash();
    goes_on(&tried)?;
    // Declared after the stand: ended first, so that the dead probe finds nothing to tidy up.
    let _probe = Probe::start(&stand.stage)?;
    goes_on(&tried)?;
    let service = Service::start(&stand.stage, &stand.person)?;
    goes_on(&tried)?;
    service.ask(&stand.person, &["status", "--json"])?;
    stand.person.file("project/stop", "")?;
    run.wait()?;
    ensure!(listener.accept().is_err(), "a connection came");
    let reached = fs::read(stand.tree.join("reached"))?;
    ensure!(reached.is_empty(), "{} connections were made", reached.len());
    println!("{} attempts, all refused", fs::metadata(tried)?.len());
    Ok(())
}

/// Waits until some more attempts were made.
fn goes_on(tried: &Path) -> CaseResult {
    const SOME: u64 = 20;
    let done = || fs::metadata(tried).map_or(0, |meta| meta.len());
    let (before, begun) = (done(), Instant::now());
    while done() < before + SOME {
        ensure!(begun.elapsed() < PATIENCE, "the command stands still after {before} attempts");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
