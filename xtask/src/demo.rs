//! `cargo xtask demo`: one session of a real coding agent, decided, confined, observed and joined, on a private stage.
//!
//! Everything it makes is its own: probe, service, user (as root), home, project, servers. Nothing of the machine's is touched
//! and nothing is left.

mod host;

pub(crate) use host::{scripted_host, test_program};

use nix::unistd::Uid;
use ringfence_tests::person::{self, Person};
use ringfence_tests::running::{Probe, Service};
use ringfence_tests::scene::Scene;
use ringfence_tests::stage::{Build, Stage, build_into};

use crate::setup::{self, Need};

/// What to show.
#[derive(clap::Args)]
pub struct Options {
    /// The coding agent that runs the session
    #[arg(long, value_enum, default_value_t = HostChoice::ClaudeCode)]
    host: HostChoice,
    /// Print only the report's JSON on stdout
    #[arg(long)]
    json: bool,
    /// Take the machine as it is: install nothing first
    #[arg(long)]
    no_setup: bool,
}

/// Who runs the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HostChoice {
    /// A real Claude Code against a scripted model on loopback: no key, no internet
    ClaudeCode,
    /// The built-in one, which speaks the same hook protocol and is not a real agent
    Scripted,
}

/// Runs the session, prints the report and what was proven; `false` when something the report must show is not there.
pub fn run(options: &Options) -> anyhow::Result<bool> {
    let say = |text: &str| eprintln!("demo: {text}");
    if !options.no_setup {
        setup::ensure(&[Need::Build])?;
    }
    let room = tempfile::Builder::new().prefix("ringfence-demo-").tempdir_in(ringfence_tests::stage::ROOMS)?;
    say("building the kernel programs and the five programs");
    crate::build_ebpf::run_if_possible();
    build_into(room.path(), Build { release: false, overrides: true })?;
    let host = host::HostProgram::find(options.host, room.path())?;
    say(&format!("the session is run by {}", host.describe()));

    // Here, since it hides other homes from this process, and before any thread is started.
    person::prepare_this_process();
    let person = Person::new()?;
    let stage = Stage::from_programs(room.path())?;
    let probe = if Uid::effective().is_root() {
        say("starting a private probe");
        Some(Probe::start(&stage)?)
    } else {
        say("not root, so without a probe: nothing will be observed by the kernel, and the report will say so");
        None
    };
    say(&format!("starting a private service as user {} ({})", person.name(), person.uid()));
    let service = Service::start_with(&stage, &person, &["--metrics-port", "0"])?;

    let scene = Scene::set(&person)?;
    say("running the session");
    let calls = host.play(&scene, &stage, &person)?;
    let report = scene.report(&service, &person, probe.is_some())?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", service.ask(&person, &["report", "--last"])?);
    }
    let checks = scene.checks(&report, &calls, probe.is_some());
    eprintln!();
    for check in &checks {
        eprintln!("{} {}", if check.holds { "proven:" } else { "NOT SO:" }, check.what);
    }
    let holds = checks.iter().all(|check| check.holds);
    if !holds {
        eprintln!("\nthe service said:\n{}", service.log());
        if let Some(probe) = &probe {
            eprintln!("\nthe probe said:\n{}", probe.log());
        }
    }
    drop(service);
    drop(probe);
    Ok(holds)
}
