//! `cargo xtask build`: the five programs as they are installed.

use ringfence_tests::stage::{Build, build_programs};

/// Builds in the release profile, without test overrides, and says where the programs are.
pub fn run() -> anyhow::Result<()> {
    crate::setup::ensure(&[crate::setup::Need::Build])?;
    crate::build_ebpf::run()?;
    for program in build_programs(Build { release: true, overrides: false })? {
        println!("{}", program.display());
    }
    Ok(())
}
