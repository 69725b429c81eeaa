//! `ringfence sessions` and `ringfence findings`: short lists, newest first.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::{At, CliError, print_json};
use crate::ipc::control::Ask;

#[derive(Args)]
pub(crate) struct ListArgs {
    /// How many
    #[arg(long, default_value_t = 20)]
    limit: u32,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn sessions(at: &At, args: &ListArgs) -> Result<ExitCode, CliError> {
    list(
        at.ask_json(Ask::Sessions { limit: args.limit })?,
        args.json,
        &["started", "id", "host", "host_version", "history", "ended"],
    )
}

pub(crate) fn findings(at: &At, args: &ListArgs) -> Result<ExitCode, CliError> {
    list(at.ask_json(Ask::Findings { limit: args.limit })?, args.json, &["time", "kind", "session", "text"])
}

fn list(json: Value, as_json: bool, columns: &[&str]) -> Result<ExitCode, CliError> {
    if as_json {
        return Ok(print_json(&json));
    }
    let rows = json.as_array().ok_or(CliError::Unexpected)?;
    if rows.is_empty() {
        println!("none");
    }
    let cell = |row: &Value, column: &str| match row.get(column) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let width = |column: &&str| rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = columns.iter().map(width).collect();
    for row in rows {
        let line: Vec<String> =
            columns.iter().zip(&widths).map(|(column, width)| format!("{:width$}", cell(row, column))).collect();
        println!("{}", line.join("  ").trim_end());
    }
    Ok(ExitCode::SUCCESS)
}
