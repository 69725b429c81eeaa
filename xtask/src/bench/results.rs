//! What was measured, and how it is printed.

use std::collections::BTreeMap;

use serde::Serialize;

/// Everything one run measured.
#[derive(Serialize)]
pub struct Results {
    schema: u32,
    ringfence: &'static str,
    machine: Machine,
    results: Vec<Row>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Machine {
    kernel: String,
    cpus: usize,
}

#[derive(Serialize)]
struct Row {
    bench: String,
    name: String,
    unit: &'static str,
    n: usize,
    median: f64,
    p99: f64,
    ratios: BTreeMap<String, f64>,
}

impl Results {
    /// Nothing yet.
    pub fn new() -> Results {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        let machine = Machine { kernel, cpus };
        Results { schema: 1, ringfence: env!("CARGO_PKG_VERSION"), machine, results: Vec::new(), notes: Vec::new() }
    }

    /// Adds contenders that were measured in one run, alternating: each is compared with every other by its median.
    /// An empty one is left out.
    pub fn add(&mut self, bench: &str, unit: &'static str, contenders: Vec<(&str, Vec<f64>)>) {
        let sorted = |mut samples: Vec<f64>| {
            samples.sort_by(f64::total_cmp);
            samples
        };
        let contenders: Vec<(&str, Vec<f64>)> =
            contenders.into_iter().filter(|(_, samples)| !samples.is_empty()).map(|(n, s)| (n, sorted(s))).collect();
        for (name, samples) in &contenders {
            let median = quantile(samples, 0.5);
            let peers = contenders.iter().filter(|(peer, _)| peer != name);
            let ratios = peers.map(|(peer, of)| ((*peer).to_owned(), median / quantile(of, 0.5))).collect();
            let (bench, name) = (bench.to_owned(), (*name).to_owned());
            self.results.push(Row {
                bench,
                name,
                unit,
                n: samples.len(),
                median,
                p99: quantile(samples, 0.99),
                ratios,
            });
        }
    }

    /// Says what could not be measured, or under which condition it was.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Prints to stdout.
    pub fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        println!("kernel {}, {} CPUs", self.machine.kernel, self.machine.cpus);
        println!("{:<10} {:<24} {:>6} {:>10} {:>10}      median compared with", "bench", "name", "n", "median", "p99");
        for Row { bench, name, unit, n, median, p99, ratios } in &self.results {
            let ratios: Vec<String> = ratios.iter().map(|(peer, ratio)| format!("{peer} {ratio:.2}x")).collect();
            println!("{bench:<10} {name:<24} {n:>6} {median:>10.3} {p99:>10.3} {unit:<3}  {}", ratios.join("  "));
        }
        self.notes.iter().for_each(|note| println!("note: {note}"));
        Ok(())
    }
}

/// Nearest rank, of sorted samples.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let samples: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!((quantile(&samples, 0.5), quantile(&samples, 0.99), quantile(&[7.0], 0.99)), (100.0, 198.0, 7.0));
    }

    #[test]
    fn ratios_name_the_peers_of_the_same_run() {
        let mut results = Results::new();
        results.add("b", "ms", vec![("a", vec![2.0, 4.0, 3.0]), ("c", vec![6.0]), ("none", vec![])]);
        let json = serde_json::to_value(&results).unwrap();
        assert_eq!(json["results"][0]["ratios"], serde_json::json!({"c": 0.5}));
        assert_eq!(json["results"].as_array().unwrap().len(), 2);
    }
}
