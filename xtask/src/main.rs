//! The project's own verbs: `cargo xtask VERB`. Each is a module.
#![forbid(unsafe_code)]

mod bench;
mod build;
mod build_ebpf;
mod check;
mod demo;
mod setup;
mod shell;
mod test;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Ringfence's own verbs")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install what the other verbs need and this machine lacks. Says what it does; does nothing when nothing is missing
    Setup(setup::Options),
    /// Build the five programs as they are installed: release, hook and launcher static
    Build,
    /// Build the kernel programs, with whichever compiler here fits; the agent's next build embeds them
    BuildEbpf {
        /// Put log lines into the programs, for debugging them
        #[arg(long)]
        log: bool,
    },
    /// Run one session of a real coding agent behind the fence, and print what the ledger says of it
    Demo(demo::Options),
    /// Run all tests, or the suites named
    Test(test::Options),
    /// Run the tests of the kernel programs on other kernels, in emulated machines
    Vm(vm::Options),
    /// Measure, beside peers in the same run
    Bench(bench::Options),
    /// Formatting, lints with warnings denied, licences and sources of dependencies
    Check,
}

fn main() -> ExitCode {
    let verb = Arguments::parse().verb;
    let result = match verb {
        Verb::Setup(options) => setup::run(&options),
        Verb::Bench(options) => bench::run(&options),
        Verb::Build => build::run(),
        Verb::BuildEbpf { log } => {
            if log { build_ebpf::build(true) } else { build_ebpf::run() }.map(|object| println!("{}", object.display()))
        }
        Verb::Demo(options) => return finish(demo::run(&options)),
        Verb::Test(options) => return finish(test::run(&options)),
        Verb::Vm(options) => return finish(vm::run(&options)),
        Verb::Check => check::run(),
    };
    finish(result.map(|()| true))
}

/// `false` is a failure that was already explained.
fn finish(result: anyhow::Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
