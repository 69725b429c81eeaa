//! Prometheus and Grafana: what they are given is accepted by them, documented, and cannot be turned against them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use ringfence_tests::stage::workspace;
use ringfence_tests::suite::CaseResult;
use serde_json::Value;

use crate::{deploy, read, said, tool};

/// Where the scrape file looks for targets.
const TARGETS: &str = "/run/ringfence/prometheus/";
/// Metric names begin with it.
const PREFIX: &str = "ringfence_";
/// What Prometheus appends to a histogram's name.
const HISTOGRAM_PARTS: [&str; 3] = ["_bucket", "_sum", "_count"];

/// The scrape file with its targets in `directory`, as a whole configuration.
fn configuration(directory: &Path) -> anyhow::Result<String> {
    let text = read(deploy("prometheus/scrape.yml"))?;
    ensure!(text.contains(TARGETS), "the scrape file looks elsewhere than where services write");
    Ok(text.replace(TARGETS, &format!("{}/", directory.display())))
}

pub(crate) fn scrape_file() -> CaseResult {
    let room = tempfile::tempdir()?;
    std::fs::write(room.path().join("1000.json"), r#"[{"targets": ["127.0.0.1:9477"]}]"#)?;
    let file = room.path().join("prometheus.yml");
    std::fs::write(&file, configuration(room.path())?)?;
    let output = tool(Command::new("promtool").args(["check", "config"]).arg(&file), "prometheus")?;
    ensure!(output.status.success(), "{}", said(&output));
    ensure!(!said(&output).contains("WARNING"), "{}", said(&output));
    Ok(())
}

pub(crate) fn hostile_target() -> CaseResult {
    let room = tempfile::tempdir()?;
    let targets = room.path().join("targets");
    std::fs::create_dir(&targets)?;
    std::fs::write(targets.join("1000.json"), r#"[{"targets": ["127.0.0.1:9477"], "labels": {"job": "ringfence"}}]"#)?;
    std::fs::write(
        targets.join("1001.json"),
        r#"[{"targets": ["192.0.2.1:9477", "127.0.0.1:22", "127.0.0.1:9541", "127.0.0.1:9477/x", "localhost:9477"]},
            {"targets": ["127.0.0.1:9478"], "labels": {"__scheme__": "https", "__metrics_path__": "/admin",
             "__param_module": "x", "__scrape_interval__": "1s", "command": "rm", "uid": "0", "job": "node"}}]"#,
    )?;
    std::fs::write(targets.join("other.json"), r#"[{"targets": ["127.0.0.1:9479"]}]"#)?;
    let file = room.path().join("prometheus.yml");
    std::fs::write(&file, configuration(&targets)?)?;
    let mut command = Command::new("promtool");
    command.args(["check", "service-discovery", "--timeout=3s"]).arg(&file).arg("ringfence");
    let output = tool(&mut command, "prometheus")?;
    ensure!(output.status.success(), "{}", said(&output));
    let found: Vec<Value> = serde_json::from_slice(&output.stdout).with_context(|| said(&output))?;
    let kept: BTreeMap<&str, &serde_json::Map<String, Value>> = found
        .iter()
        .filter_map(|target| target["labels"].as_object())
        .filter_map(|labels| Some((labels.get("__address__")?.as_str()?, labels)))
        .collect();
    let addresses: Vec<&&str> = kept.keys().collect();
    ensure!(addresses == [&"127.0.0.1:9477", &"127.0.0.1:9478"], "scraped: {addresses:?} of {found:#?}");
    let is = |label: &str| kept["127.0.0.1:9478"].get(label).and_then(Value::as_str);
    ensure!(is("__scheme__") == Some("http") && is("__metrics_path__") == Some("/metrics"), "{kept:#?}");
    ensure!(is("__scrape_interval__") == Some("30s") && is("__param_module").is_none(), "{kept:#?}");
    ensure!(is("uid") == Some("1001") && is("job") == Some("ringfence") && is("command").is_none(), "{kept:#?}");
    Ok(())
}

/// One metric as docs/metrics.md describes it: a table row of name, type, labels, meaning.
pub(crate) struct Documented {
    pub(crate) kind: String,
    pub(crate) labels: BTreeSet<String>,
}

pub(crate) fn documented() -> anyhow::Result<BTreeMap<String, Documented>> {
    let text = read(workspace().join("docs/metrics.md"))?;
    let rows = text.lines().filter(|line| line.starts_with(&format!("| `{PREFIX}")));
    let words = |cell: &str| cell.split(',').map(|w| w.trim().trim_matches('`').to_owned()).collect::<BTreeSet<_>>();
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, _meaning] = cells[..] else { bail!("not four cells: {row}") };
        let labels = if labels == "none" { BTreeSet::new() } else { words(labels) };
        Ok((name.trim_matches('`').to_owned(), Documented { kind: kind.to_owned(), labels }))
    })
    .collect()
}

pub(crate) fn dashboard() -> CaseResult {
    let documented = documented()?;
    let dashboard: Value = serde_json::from_str(&read(deploy("grafana/ringfence.json"))?)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let mut shown = BTreeSet::new();
    for target in panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten()) {
        let expression = target["expr"].as_str().context("a target without an expression")?;
        let groups = expression.split("by (").skip(1).filter_map(|rest| rest.split_once(')')).map(|(group, _)| group);
        for label in groups.flat_map(|group| group.split(", ")) {
            let known = label == "le" || documented.values().any(|one| one.labels.contains(label));
            ensure!(known, "{expression}: no metric has the label {label}");
        }
        for name in names_in(expression) {
            let plain = HISTOGRAM_PARTS.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
            let known = documented.get(name).or_else(|| documented.get(plain).filter(|one| one.kind == "histogram"));
            ensure!(known.is_some(), "{name} is not in docs/metrics.md");
            shown.insert(plain.to_owned());
        }
    }
    let unseen: Vec<&String> = documented.keys().filter(|name| !shown.contains(*name)).collect();
    ensure!(unseen.is_empty(), "no panel shows {unseen:?}");
    Ok(())
}

fn names_in(expression: &str) -> impl Iterator<Item = &str> {
    expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with(PREFIX))
}
