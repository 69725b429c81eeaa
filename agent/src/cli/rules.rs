//! `ringfence rules`: what the kernel's programs refuse to the sessions that are open.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::{At, CliError, print_json};
use crate::ipc::control::Ask;

#[derive(Args)]
pub(crate) struct RulesArgs {
    /// Only this session, by its id or the beginning of it
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn rules(at: &At, args: &RulesArgs) -> Result<ExitCode, CliError> {
    let json = at.ask_json(Ask::Rules { session: args.session.clone() })?;
    if args.json {
        return Ok(print_json(&json));
    }
    let trees = json.as_array().ok_or(CliError::Unexpected)?;
    if trees.is_empty() {
        println!("no session is open, or no probe runs");
    }
    for tree in trees {
        print!("{}", text(tree));
    }
    Ok(ExitCode::SUCCESS)
}

/// One tree's rules as text.
fn text(tree: &Value) -> String {
    use std::fmt::Write;
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut text = format!("session {}\n", word(&tree["session"]));
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    if let Some(failure) = tree["failure"].as_str() {
        line(format!("  not up to date: {failure}"));
    }
    for remark in list(&tree["rules"]["remarks"]) {
        line(format!("  {}", word(&remark)));
    }
    for (side, whose) in [("launched", "commands"), ("host", "the host and what it starts for itself")] {
        let rules = &tree["rules"][side];
        let gates: Vec<String> = list(&rules["refused_by_default"]).iter().map(word).collect();
        line(format!("  {whose}: fence {}, {} entries", word(&rules["fence"]), rules["entries"]));
        line(format!(
            "    refused by default: {}",
            if gates.is_empty() { "nothing".to_owned() } else { gates.join(", ") }
        ));
        for rule in list(&rules["addresses"]) {
            let what = if rule["refused"] == true { "refused" } else { "allowed" };
            let (first, last) = (&rule["ports"][0], &rule["ports"][1]);
            line(format!("    {what}  {} ports {first}-{last}  ({})", word(&rule["network"]), word(&rule["name"])));
        }
        for socket in list(&rules["sockets"]) {
            let what = if socket["refused"] == true { "refused" } else { "allowed" };
            line(format!("    {what}  {}  ({})", word(&socket["socket"]), word(&socket["name"])));
        }
        for name in list(&rules["names"]) {
            let what: Vec<String> = list(&name[1]).iter().map(word).collect();
            line(format!("    {}  {}", word(&name[0]), what.join(", ")));
        }
    }
    for domain in list(&tree["domains"]) {
        let failure = domain["failure"].as_str().map(|reason| format!("  (not resolved now: {reason})"));
        line(format!("  {}{}", word(&domain["domain"]), failure.unwrap_or_default()));
        for address in list(&domain["addresses"]) {
            let left = address[2].as_u64().map(|ago| format!(", left the answer {ago} s ago"));
            line(format!("    {}  since {} s{}", word(&address[0]), address[1], left.unwrap_or_default()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_shown_with_its_addresses_and_what_they_came_from() {
        let tree = serde_json::json!({
            "session": "s", "generations": [3, 4], "failure": null,
            "rules": { "remarks": [], "host": {},
                "launched": { "fence": "default", "entries": 3, "refused_by_default": ["connect"],
                    "addresses": [{ "network": "192.0.2.7/32", "ports": [443, 443], "refused": false, "name": "api.example.org" }],
                    "sockets": [{ "socket": "/run/docker.sock", "name": "docker", "refused": true }],
                    "names": [["/w/.mcp.json", ["not changed", "but by git"]]] } },
            "domains": [{ "domain": "api.example.org", "addresses": [["192.0.2.7", 70, 10]], "failure": null }],
        });
        let text = text(&tree);
        for part in [
            "allowed  192.0.2.7/32 ports 443-443  (api.example.org)",
            "refused  /run/docker.sock  (docker)",
            "/w/.mcp.json  not changed, but by git",
            "192.0.2.7  since 70 s, left the answer 10 s ago",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
