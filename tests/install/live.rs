//! A real service's metrics: served on loopback, announced to Prometheus, documented, accepted by promtool.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ringfence_tests::person::Person;
use ringfence_tests::running::Service;
use ringfence_tests::stage::Stage;
use ringfence_tests::suite::CaseResult;
use serde_json::Value;

use crate::monitoring::documented;
use crate::{read, said, tool};

pub(crate) fn metrics() -> CaseResult {
    let stage = Stage::new()?;
    let person = Person::new()?;
    let targets = person.directory("targets")?;
    let directory = targets.to_str().context("a plain path")?;
    let service = Service::start_with(&stage, &person, &["--metrics-port", "9477", "--metrics-targets", directory])?;
    let file = targets.join(format!("{}.json", person.uid()));
    let begun = Instant::now();
    while !file.exists() {
        ensure!(begun.elapsed() < Duration::from_secs(10), "no target file was written: {}", service.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    ensure!(
        std::fs::metadata(&file)?.mode() & 0o044 == 0o044,
        "Prometheus, another user, must be able to read {file:?}"
    );
    let target: Value = serde_json::from_str(&read(&file)?)?;
    let address: SocketAddr = target[0]["targets"][0].as_str().context("no address")?.parse()?;
    ensure!(address.ip().is_loopback() && (9477..=9540).contains(&address.port()), "{address}");

    // Layers are set once the canary has run.
    let text = loop {
        let text = get(address, "/metrics")?;
        if text.contains("ringfence_layer_state") {
            break text;
        }
        ensure!(begun.elapsed() < Duration::from_secs(60), "no layer state in:\n{text}");
        std::thread::sleep(Duration::from_millis(100));
    };
    is_documented(&text)?;
    accepted_by_promtool(&text)?;
    ensure!(get(address, "/").is_err(), "something else than /metrics is served");
    drop(service);
    ensure!(!file.exists(), "the target file outlived the service");
    Ok(())
}

fn is_documented(text: &str) -> CaseResult {
    let documented = documented()?;
    for (name, kind) in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')) {
        let described = documented.get(name).with_context(|| format!("{name} is not in docs/metrics.md"))?;
        ensure!(described.kind == kind, "{name} is a {kind}, and documented as a {}", described.kind);
        let samples = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        for sample in samples {
            let inside = sample.split_once('{').and_then(|(_, rest)| rest.split_once('}')).context("no labels")?.0;
            let labels: BTreeSet<String> =
                inside.split(',').filter_map(|pair| Some(pair.split_once('=')?.0.to_owned())).collect();
            ensure!(labels == described.labels, "labels of {sample}");
        }
    }
    Ok(())
}

fn accepted_by_promtool(text: &str) -> CaseResult {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // `tool` cannot feed a program, so its check for a missing one is done by asking for the version.
    tool(Command::new("promtool").arg("--version"), "prometheus")?;
    let mut child = command.spawn()?;
    child.stdin.take().context("its input")?.write_all(text.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    Ok(())
}

/// A plain HTTP request; anything but 200 is an error.
fn get(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no end of headers")?;
    ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
    Ok(body.to_owned())
}
