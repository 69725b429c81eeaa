//! `cargo xtask vm [--kernel 6.1|6.12|native|all] [FILTER…]`: tests of the kernel programs on kernels other than this
//! machine's, each in an emulated machine that has nothing but them.
//!
//! What runs there is in [`image`]; its outcomes are ordinary [`Record`]s, named after the kernel.

mod cpio;
mod guest;
mod image;
mod kernels;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use ringfence_tests::stage::{self, Build};
use ringfence_tests::suite::{Outcome, Record};

use crate::setup::{self, Need};
use crate::test::programs;
pub use kernels::Kernel;

/// The suite's name, and the name under which all that runs in a guest is reported.
pub const SUITE: &str = "vm";
/// Other suites that also run in guests.
const ALSO: [&str; 1] = ["probe"];

/// What `cargo xtask test` runs of a guest's tests: each kind of refusal. All of them take half an hour, since a guest is
/// emulated: `cargo xtask vm` runs those.
const WITH_TEST: [&str; 8] = [
    "all_programs_of_this_tier_load",
    "kernel::tests::changes",
    "kernel::tests::files",
    "kernel::tests::names",
    "kernel::tests::network",
    "kernel::tests::rules",
    "kernel::tests::steering",
    "kernel::tests::unix",
];

/// Longest time for one guest.
const LIMIT: Duration = Duration::from_secs(2400);

/// What to run.
#[derive(clap::Args)]
pub struct Options {
    /// On which kernel
    #[arg(long, default_value = "all")]
    kernel: Kernels,
    /// Run only tests whose name contains one of these
    filters: Vec<String>,
    /// Show what the guest prints while it prints it
    #[arg(long)]
    show: bool,
    /// Seconds until a guest that is still running is ended
    #[arg(long, default_value_t = LIMIT.as_secs())]
    limit: u64,
    /// Instead of the tests, a shell in the guest
    #[arg(long, conflicts_with = "filters")]
    shell: bool,
}

/// Which kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kernels {
    #[value(name = "6.1")]
    V6_1,
    #[value(name = "6.12")]
    V6_12,
    /// This machine's own, without a guest: only the suite
    Native,
    /// All three
    All,
}

impl Kernels {
    fn guests(self) -> &'static [Kernel] {
        match self {
            Kernels::V6_1 => &[Kernel::V6_1],
            Kernels::V6_12 => &[Kernel::V6_12],
            Kernels::Native => &[],
            Kernels::All => &Kernel::ALL,
        }
    }
}

/// Runs the tests; `false` when some failed.
pub fn run(options: &Options) -> anyhow::Result<bool> {
    setup::ensure(&[Need::Build, Need::Vm])?;
    crate::build_ebpf::run_if_possible();
    let run = std::process::id().to_string();
    let room = tempfile::Builder::new().prefix(&format!("ringfence-run-{run}-")).tempdir_in(stage::ROOMS)?;
    crate::test::open_to_others(room.path())?;
    let staged = room.path().join("programs");
    stage::build_into(&staged, Build { release: false, overrides: true })?;
    let asked = Asked {
        filters: &options.filters,
        limit: Duration::from_secs(options.limit),
        show: options.show,
        shell: options.shell,
    };
    let mut records = Vec::new();
    if matches!(options.kernel, Kernels::Native | Kernels::All) && !options.shell {
        records.extend(natively(&run, &staged, room.path(), asked.filters)?);
    }
    records.extend(in_guests(options.kernel.guests(), &staged, &asked)?);
    drop(room);
    Ok(crate::test::report(&records))
}

/// For `cargo xtask test`: on this machine's kernel and in guests.
pub fn everywhere(run: &str, staged: &Path, room: &Path, filters: &[String]) -> anyhow::Result<Vec<Record>> {
    let mut records = natively(run, staged, room, filters)?;
    let some = WITH_TEST.map(str::to_owned);
    let filters = if filters.is_empty() { &some[..] } else { filters };
    records.extend(in_guests(&Kernel::ALL, staged, &Asked { filters, limit: LIMIT, show: false, shell: false })?);
    Ok(records)
}

/// How guests run.
struct Asked<'a> {
    /// Run only tests whose name contains one of these.
    filters: &'a [String],
    /// Until a guest is ended.
    limit: Duration,
    /// Show its console live.
    show: bool,
    /// A shell instead of tests.
    shell: bool,
}

/// The suite on this machine's own kernel.
fn natively(run: &str, staged: &Path, room: &Path, filters: &[String]) -> anyhow::Result<Vec<Record>> {
    let built = programs::build(&[SUITE])?;
    let context = programs::Context { run, programs: staged, record: &room.join("vm-native.jsonl") };
    let mut records = Vec::new();
    for (name, program) in built {
        let found = programs::run(&name, &program, filters, &context)?;
        records.extend(found.into_iter().map(|record| Record { name: format!("native: {}", record.name), ..record }));
    }
    Ok(records)
}

/// Everything that runs in guests, on each of these kernels with the programs in `staged`.
fn in_guests(kernels: &[Kernel], staged: &Path, asked: &Asked<'_>) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    let mut ready = Vec::new();
    for kernel in kernels {
        match guest::obstacle().map_or_else(|| kernel.image(), Err) {
            Ok(image) => ready.push((*kernel, image)),
            Err(reason) => records.push(record(*kernel, "runs", Outcome::Skipped, Some(reason))),
        }
    }
    if ready.is_empty() {
        return Ok(records);
    }
    let rooms = rooms()?;
    let initramfs = image::build(&rooms, staged, asked.filters)?;
    if asked.shell {
        ready.iter().try_for_each(|(_, image)| guest::shell(image, &initramfs))?;
        return Ok(records);
    }
    // Side by side, since what runs in a guest is mostly one process at a time.
    std::thread::scope(|scope| {
        let start = |(kernel, image): (Kernel, PathBuf)| {
            let room = rooms.join(kernel.name());
            let initramfs = &initramfs;
            scope.spawn(move || guest::run(kernel, &image, initramfs, &room, asked))
        };
        let started: Vec<_> = ready.into_iter().map(start).collect();
        for guest in started {
            records.extend(guest.join().map_err(|_| anyhow::anyhow!("a guest's thread panicked"))??);
        }
        Ok(records)
    })
}

/// Where images are made and what guests say is kept.
fn rooms() -> anyhow::Result<PathBuf> {
    let rooms = crate::build_ebpf::target_directory()?.join("vm");
    std::fs::create_dir_all(&rooms).with_context(|| format!("making {}", rooms.display()))?;
    Ok(rooms)
}

fn record(kernel: Kernel, name: &str, outcome: Outcome, reason: Option<String>) -> Record {
    Record { suite: SUITE.into(), name: format!("{}: {name}", kernel.name()), outcome, reason, seconds: 0.0 }
}
