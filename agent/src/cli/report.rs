//! `ringfence report`: what a session decided, confined and really ran.
#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Args;

use super::{At, CliError, print_json};
use crate::ipc::control::{Ask, SessionChoice};
use crate::ledger::report;

#[derive(Args)]
pub(crate) struct ReportArgs {
    /// The last session of this directory, else of this machine (the default)
    #[arg(long, conflicts_with = "session")]
    last: bool,
    /// A session by its id, or a unique beginning of it
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// As JSON (docs/report-schema.md)
    #[arg(long)]
    json: bool,
    /// Each entry with its processes, connections and refusals
    #[arg(long)]
    tree: bool,
}

pub(crate) fn report(at: &At, args: &ReportArgs) -> Result<ExitCode, CliError> {
    let session = match &args.session {
        Some(id) => SessionChoice::Id(id.clone()),
        None => SessionChoice::Last { cwd: std::env::current_dir().unwrap_or_else(|_| "/".into()) },
    };
    let json = at.ask_json(Ask::Report { session })?;
    if args.json {
        return Ok(print_json(&json));
    }
    let style = report::Style {
        colour: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        tree: args.tree,
    };
    let text = report::human_of_json(&json, style).map_err(|error| CliError::Failed(error.to_string()))?;
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}
