//! Prometheus metrics, served as text on loopback. No label holds a path, a project or a command.
#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::health::word;
use crate::fence::receipt::{Grade, Receipt};
use crate::ledger::entry::{GateState, LayerState, State};
use crate::policy::judge::{Decision, DecisionSource, Outcome};

/// The port that is tried first; each further service of this machine takes the next free one.
pub const FIRST_PORT: u16 = 9477;
/// How many ports are tried.
const PORTS: u16 = 64;
/// Largest request that is read.
const REQUEST_BYTES: usize = 8 << 10;

/// Everything that is counted.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    decisions: IntCounterVec,
    launches: IntCounterVec,
    /// Kernel observations, by kind.
    pub observations: IntCounterVec,
    /// Refusals in launches, by layer.
    pub refusals: IntCounterVec,
    /// Observations that the kernel counted as lost.
    pub lost: IntCounter,
    findings: IntCounterVec,
    /// From a hook's first byte to its answer, in the service.
    pub hook_seconds: Histogram,
    /// Requests that were refused, by reason.
    pub requests_refused: IntCounterVec,
    /// Rows waiting for the database, and hook calls being answered.
    pub queue_depth: IntGaugeVec,
    /// Sessions with a living host.
    pub sessions: IntGauge,
    /// 1 for the state a layer is in.
    layer_state: IntGaugeVec,
}

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// All ports are taken.
    #[error("no free loopback port from {FIRST_PORT} on for metrics: set one with --metrics-port, or 0 to serve none")]
    NoPort,
    /// The target file for Prometheus could not be written.
    #[error("the scrape target {0} could not be written: {1}")]
    Target(PathBuf, std::io::Error),
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

impl Metrics {
    /// A registry of its own, so that two services in one process do not collide.
    pub fn new() -> Metrics {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, labels: &[&str]| {
            register(&registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let buckets = vec![0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 5.0, 45.0];
        let hook = HistogramOpts::new("ringfence_hook_seconds", "Time from a hook's connection to its answer")
            .buckets(buckets);
        Metrics {
            decisions: counters("ringfence_decisions_total", "Decisions of tool calls", &["outcome", "source"]),
            launches: counters(
                "ringfence_launches_total",
                "Launches by how much of the fence was in force",
                &["layer", "grade"],
            ),
            observations: counters("ringfence_observations_total", "Kernel events of agent trees", &["kind"]),
            refusals: counters("ringfence_refusals_total", "Refusals inside launches", &["layer"]),
            findings: counters("ringfence_findings_total", "Findings", &["kind"]),
            requests_refused: counters(
                "ringfence_requests_refused_total",
                "Requests on the sockets that were refused",
                &["reason"],
            ),
            lost: register(
                &registry,
                IntCounter::new(
                    "ringfence_observations_lost_total",
                    "Kernel events dropped because a ring buffer was full",
                ),
            ),
            sessions: register(&registry, IntGauge::new("ringfence_sessions", "Sessions that are open")),
            queue_depth: register(
                &registry,
                IntGaugeVec::new(Opts::new("ringfence_queue_depth", "Work that waits"), &["queue"]),
            ),
            layer_state: register(
                &registry,
                IntGaugeVec::new(
                    Opts::new(
                        "ringfence_layer_state",
                        "1 for the state that a gate of a layer was last proven to be in",
                    ),
                    &["layer", "gate", "state"],
                ),
            ),
            hook_seconds: register(&registry, Histogram::with_opts(hook)),
            registry,
        }
    }

    /// Counts a decision.
    pub fn decided(&self, decision: &Decision) {
        let outcome = match decision.outcome {
            Outcome::NoOverride => "no_override",
            Outcome::Deny => "deny",
        };
        let source = match decision.source {
            DecisionSource::LocalRule => "local_rule",
            DecisionSource::Human => "human",
            DecisionSource::ModelReview => "model_review",
            DecisionSource::EmergencyFallback => "emergency_fallback",
            DecisionSource::Fallback => "fallback",
        };
        self.decisions.with_label_values(&[outcome, source]).inc();
    }

    /// Counts a launch, layer by layer.
    pub fn launched(&self, receipt: &Receipt) {
        for layer in &receipt.layers {
            let grade = match layer.grade {
                Grade::Full => "full",
                Grade::Partial => "partial",
                Grade::None => "none",
            };
            // The name comes from a launcher: only the names that exist become labels.
            let name = match layer.layer.as_str() {
                name @ ("landlock" | "seccomp" | "bpf_lsm" | "cgroup") => name,
                _ => "other",
            };
            self.launches.with_label_values(&[name, grade]).inc();
        }
    }

    /// Counts a finding. Kinds are fixed words of this program.
    pub fn finding(&self, kind: &str) {
        self.findings.with_label_values(&[kind]).inc();
    }

    /// Sets the state of every gate, and of the layers that only observe.
    pub fn gates(&self, layers: &[LayerState], gates: &[GateState]) {
        // A gate may be another layer's by now.
        self.layer_state.reset();
        let observing = layers.iter().filter(|one| matches!(one.layer.as_str(), "observation" | "refusals"));
        let observing = observing.map(|one| (one.layer.as_str(), one.layer.as_str(), one.state));
        for (layer, gate, state) in
            gates.iter().map(|one| (one.layer.as_str(), one.gate.as_str(), one.state)).chain(observing)
        {
            for one in [State::Enforced, State::Degraded, State::Absent] {
                self.layer_state.with_label_values(&[layer, gate, word(one)]).set(i64::from(one == state));
            }
        }
    }

    /// The exposition text.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!("metrics could not be encoded: {error}");
        }
        text
    }
}

fn register<C: prometheus::core::Collector + Clone + 'static>(registry: &Registry, made: prometheus::Result<C>) -> C {
    let collector = made.expect("metric names and labels are constants of this file");
    registry.register(Box::new(collector.clone())).expect("each name is registered once");
    collector
}

/// The directory is everybody's: a link or file that somebody else laid there is not written through.
fn write_target(file: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).open(file)?.write_all(text.as_bytes())
}

/// A bound listener and the target file that tells Prometheus of it; dropping it removes the file.
pub struct Endpoint {
    listener: TcpListener,
    target: Option<PathBuf>,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Endpoint {
    /// Binds the first free port from `first` on, and writes the scrape target into `target`.
    pub async fn bind(first: u16, target: Option<PathBuf>) -> Result<Endpoint, MetricsError> {
        for port in first..first.saturating_add(PORTS) {
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                if let Some(file) = &target {
                    let text = format!("[{{\"targets\": [\"{address}\"], \"labels\": {{\"job\": \"ringfence\"}}}}]\n");
                    let beside = file.with_extension("json.new");
                    // Prometheus runs as another user: the file says only a loopback port.
                    write_target(&beside, &text)
                        .and_then(|()| std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o644)))
                        .and_then(|()| std::fs::rename(&beside, file))
                        .map_err(|error| MetricsError::Target(file.clone(), error))?;
                }
                return Ok(Endpoint { listener, target, address });
            }
        }
        Err(MetricsError::NoPort)
    }

    /// Answers scrapes, one at a time: a slow scraper delays only the next one.
    pub async fn serve(&self, metrics: &Metrics) {
        loop {
            let Ok((mut stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let answer = async {
                let mut head = Vec::new();
                let mut chunk = [0u8; 1024];
                while !head.windows(4).any(|w| w == b"\r\n\r\n") && head.len() < REQUEST_BYTES {
                    match stream.read(&mut chunk).await? {
                        0 => break,
                        n => head.extend_from_slice(&chunk[..n]),
                    }
                }
                let (status, body) = match head.starts_with(b"GET /metrics ") {
                    true => ("200 OK", metrics.text()),
                    false => ("404 Not Found", b"only GET /metrics is here\n".to_vec()),
                };
                let header = format!(
                    "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(header.as_bytes()).await?;
                stream.write_all(&body).await
            };
            if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(2), answer).await {
                tracing::debug!("a scrape ended early: {error}");
            }
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some(file) = &self.target {
            // The next start writes it anew; a stale file only makes Prometheus show the service as down, which it is.
            let _ = std::fs::remove_file(file);
        }
    }
}
