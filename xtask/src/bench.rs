//! `cargo xtask bench [NAME…]`: measurements, each beside its peers in the same run, since only ratios travel between machines.
//!
//! The JSON is for scripts, and fixed (fields are added, never renamed): `{"schema": 1, "ringfence", "machine": {"kernel",
//! "cpus"}, "results": [{"bench", "name", "unit", "n", "median", "p99", "ratios": {PEER: median / PEER's median}}],
//! "notes": [what was left out, and why]}`.
//!
//! To add one: a module with a `fn(&Ground, &mut Results) -> anyhow::Result<()>`, and a line in [`BENCHES`].

mod flood;
mod hook;
mod kernel;
mod launch;
mod results;
mod rules;

use anyhow::bail;
use ringfence_tests::person::{self, Person};
use ringfence_tests::stage::{Build, Stage, build_into};

use crate::setup::{self, Need};
use results::Results;

/// What to measure.
#[derive(clap::Args)]
pub struct Options {
    /// Which; all when none is named
    names: Vec<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// How often each thing is measured
    #[arg(short, default_value_t = 1000)]
    n: usize,
}

type Bench = fn(&Ground, &mut Results) -> anyhow::Result<()>;

/// Every measurement, by name.
const BENCHES: [(&str, Bench); 5] = [
    ("launch", launch::run),
    ("hook", hook::run),
    ("kernel", kernel::run),
    ("rules", rules::run),
    ("flood", flood::run),
];

/// What measurements stand on: release builds on a private stage, and an ordinary user.
pub struct Ground {
    /// The five programs.
    pub stage: Stage,
    /// Who runs what is measured.
    pub person: Person,
    /// The scripted host.
    pub scripted_host: std::path::PathBuf,
    /// What the kernel's cost is measured on.
    pub actor: std::path::PathBuf,
    /// How often.
    pub n: usize,
}

/// Runs the benches that are named.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let known: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = options.names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no bench {unknown} (there are: {})", known.join(", "));
    }
    setup::ensure(&[Need::Build, Need::Test, Need::Bench])?;
    crate::build_ebpf::run_if_possible();
    let room = tempfile::Builder::new().prefix("ringfence-bench-").tempdir_in(ringfence_tests::stage::ROOMS)?;
    std::fs::set_permissions(room.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    build_into(room.path(), Build { release: true, overrides: true })?;
    let scripted_host = crate::demo::scripted_host(room.path())?;
    let actor = crate::demo::test_program(room.path(), "ringfence-bench-actor")?;
    person::prepare_this_process();
    let ground = Ground {
        stage: Stage::from_programs(room.path())?,
        person: Person::new()?,
        scripted_host,
        actor,
        n: options.n,
    };
    let mut results = Results::new();
    for (name, bench) in BENCHES {
        if options.names.is_empty() || options.names.iter().any(|wanted| wanted == name) {
            eprintln!("bench: {name}");
            bench(&ground, &mut results)?;
        }
    }
    results.print(options.json)
}
