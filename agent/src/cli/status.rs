//! `ringfence status`: what is enforced and proven now, layer by layer.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use super::{At, CliError, print_json};
use crate::ipc::control::Ask;
use crate::service::health::Status;

pub(crate) fn status(at: &At, as_json: bool) -> Result<ExitCode, CliError> {
    let json = at.ask_json(Ask::Status)?;
    if as_json {
        return Ok(print_json(&json));
    }
    let status: Status = serde_json::from_value(json).map_err(|_| CliError::Unexpected)?;
    print!("{status}");
    Ok(ExitCode::SUCCESS)
}
