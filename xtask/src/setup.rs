//! `cargo xtask setup`: installs what the other verbs need and this machine lacks.
//!
//! It says what it does and asks nothing when it is not on a terminal. When nothing is missing it only looks.

pub(crate) mod apt;
mod tools;

pub(crate) use tools::tools_directory;

use anyhow::{Context as _, bail};
use ringfence_tests::host::pinned;

use crate::vm::Kernel;

/// What to install.
#[derive(clap::Args)]
pub struct Options {
    /// Only say what is missing
    #[arg(long)]
    check: bool,
    /// Leave out the coding agents (npm, about 250 MB)
    #[arg(long)]
    no_hosts: bool,
}

/// A group of things that verbs need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// To compile everything, the kernel programs included.
    Build,
    /// What the tests drive or compare with.
    Test,
    /// What measurements are compared with.
    Bench,
    /// What `check` runs.
    Check,
    /// The pinned coding agents.
    Hosts,
    /// Emulated machines, and the kernels that they run.
    Vm,
}

/// Installs everything.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut needs = vec![Need::Build, Need::Test, Need::Vm, Need::Check];
    needs.extend((!options.no_hosts).then_some(Need::Hosts));
    if options.check {
        let missing: Vec<String> = needs.iter().flat_map(|need| missing(*need)).collect();
        if !missing.is_empty() {
            bail!("missing: {}", missing.join(", "));
        }
    } else {
        ensure(&needs)?;
    }
    println!("setup: nothing is missing");
    Ok(())
}

fn missing(need: Need) -> Vec<String> {
    let mut missing: Vec<String> = apt::missing(need).into_iter().map(String::from).collect();
    missing.extend(tools::missing(need).iter().map(|tool| tool.name().to_owned()));
    if need == Need::Hosts {
        missing.extend(
            pinned().iter().filter(|host| !host.is_installed()).map(|host| format!("{} {}", host.name, host.version)),
        );
    }
    if need == Need::Vm {
        missing.extend(missing_kernels().map(|kernel| format!("Linux {}", kernel.name())));
    }
    missing
}

/// The guests are machines like this one only where this one is x86_64.
fn missing_kernels() -> impl Iterator<Item = Kernel> {
    Kernel::ALL.into_iter().filter(|kernel| cfg!(target_arch = "x86_64") && kernel.image().is_err())
}

/// Installs what is missing for these.
///
/// # Errors
/// When something cannot be installed that the product cannot be built or checked without. What only some tests need is
/// reported and left out: those tests skip with their reason.
pub fn ensure(needs: &[Need]) -> anyhow::Result<()> {
    let optional = |need: Need| matches!(need, Need::Test | Need::Hosts | Need::Vm | Need::Bench);
    for need in needs {
        let installed = apt::install(*need).and_then(|()| tools::install(*need)).and_then(|()| match need {
            Need::Hosts => install_hosts(),
            Need::Vm => missing_kernels().try_for_each(Kernel::fetch),
            Need::Build | Need::Test | Need::Bench | Need::Check => Ok(()),
        });
        match installed {
            Err(error) if optional(*need) => eprintln!("setup: going on without: {error:#}"),
            other => other?,
        }
    }
    Ok(())
}

fn install_hosts() -> anyhow::Result<()> {
    for host in pinned().iter().filter(|host| !host.is_installed()) {
        eprintln!("setup: installing {} {} from the npm registry", host.name, host.version);
        host.ensure_installed().with_context(|| format!("installing {} {}", host.name, host.version))?;
    }
    Ok(())
}
