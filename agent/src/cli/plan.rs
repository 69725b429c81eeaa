//! `ringfence plan compile`: a fence as a file that `ringfence-exec --plan` takes.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::CliError;
use crate::fence::Fences;
use crate::fence::compile::{self, FenceRequest, ToolPlaces};
use crate::fence::tree;
use crate::places;
use crate::policy::Policy;
use crate::policy::files::PolicyPaths;

#[derive(Subcommand)]
pub(crate) enum PlanVerb {
    /// Compile a fence for a working tree
    Compile {
        /// The fence
        #[arg(long, default_value = "default")]
        fence: String,
        /// The working tree [default: the current directory's]
        #[arg(long, value_name = "DIR")]
        tree: Option<PathBuf>,
        /// Where to write it
        #[arg(short, value_name = "FILE")]
        output: PathBuf,
    },
}

pub(crate) fn plan(verb: &PlanVerb) -> Result<ExitCode, CliError> {
    let PlanVerb::Compile { fence, tree, output } = verb;
    let failed = |error: &dyn std::fmt::Display| CliError::Failed(error.to_string());
    let home = places::home().ok_or_else(|| CliError::Failed("this user has no passwd entry, so no home".into()))?;
    let start = match tree {
        Some(tree) => tree.clone(),
        None => std::env::current_dir().map_err(|error| failed(&error))?,
    };
    let tree = tree::resolve(&start, &home).map_err(|error| CliError::Usage(error.to_string()))?;
    let fences = Fences::load().map_err(|error| failed(&error))?;
    let policy = Policy::load(&PolicyPaths::installed(&home, nix::unistd::Uid::current().as_raw()))
        .map_err(|error| failed(&error))?;
    let variable = |name: &str| std::env::var_os(name);
    let request = FenceRequest {
        fence: fences.get(fence).map_err(|error| CliError::Usage(error.to_string()))?,
        tree: &tree,
        tree_writable: true,
        home: &home,
        uid: nix::unistd::Uid::current().as_raw(),
        session: "plan",
        host: None,
        call: None,
        policy: policy.hash(),
        places: &ToolPlaces::from_environment(&home, variable),
        host_directories: &[home.join(".claude")],
        credentials_by_lsm: false,
        notice_socket: None,
        lines: &[],
    };
    let plan = compile::to_file(&request, output).map_err(|error| failed(&error))?;
    for remark in &plan.remarks {
        eprintln!("ringfence: {remark}");
    }
    println!("{}: fence {} for {}", output.display(), plan.fence, tree.top.display());
    Ok(ExitCode::SUCCESS)
}
