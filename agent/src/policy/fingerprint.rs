//! The fingerprint of one action: two different actions never share one.
#![forbid(unsafe_code)]

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::host::ToolUse;

/// What an action is made of, besides the call itself.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    /// `claude-code`, `codex`, `run`.
    pub provider: &'a str,
    /// The host's session id.
    pub session: &'a str,
    /// The host's turn or prompt id; empty where it has none.
    pub turn: &'a str,
    /// The call's working directory.
    pub cwd: &'a str,
    /// The hook's invocation nonce.
    pub nonce: &'a str,
}

/// SHA-256 over every field, each with its length before it, so that no two sequences of fields read the same.
/// The input is taken as the host sent it: numbers by their text, keys in one order, nothing dropped.
pub fn of(circumstances: Circumstances<'_>, call: &ToolUse) -> [u8; 32] {
    let Circumstances { provider, session, turn, cwd, nonce } = circumstances;
    let ToolUse { call_id, tool, input } = call;
    let mut hash = Sha256::new();
    hash.update(b"ringfence call 1");
    for field in [provider, session, turn, call_id, tool, cwd, nonce] {
        text(&mut hash, b's', field);
    }
    value(&mut hash, input);
    hash.finalize().into()
}

/// SHA-256 of the bytes of a command: what binds a launch to its decision.
pub fn command(command: &str) -> [u8; 32] {
    Sha256::digest(command.as_bytes()).into()
}

fn text(hash: &mut Sha256, kind: u8, field: &str) {
    hash.update([kind]);
    hash.update((field.len() as u64).to_be_bytes());
    hash.update(field.as_bytes());
}

// Recursion is bounded: the decoder refuses JSON deeper than `ipc::limits::JSON_DEPTH`.
fn value(hash: &mut Sha256, input: &Value) {
    match input {
        Value::Null => hash.update(b"n"),
        Value::Bool(yes) => hash.update(if *yes { b"t" } else { b"f" }),
        Value::Number(number) => text(hash, b'#', &number.to_string()),
        Value::String(string) => text(hash, b's', string),
        Value::Array(items) => {
            hash.update(b"a");
            hash.update((items.len() as u64).to_be_bytes());
            items.iter().for_each(|item| value(hash, item));
        }
        Value::Object(map) => {
            hash.update(b"o");
            hash.update((map.len() as u64).to_be_bytes());
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            for key in keys {
                text(hash, b'k', key);
                value(hash, &map[key]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Circumstances<'static> =
        Circumstances { provider: "claude-code", session: "s", turn: "", cwd: "/p", nonce: "n" };

    fn call(input: &str) -> ToolUse {
        ToolUse { call_id: "c".into(), tool: "Bash".into(), input: serde_json::from_str(input).expect("JSON") }
    }

    #[test]
    fn different_actions_never_share_one() {
        let inputs = [
            r#"{"a":1}"#,
            r#"{"a":1.0}"#,
            r#"{"a":"1"}"#,
            r#"{"a":[1]}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":null}"#,
            r#"{}"#,
            "[]",
            r#"{"a":12345678901234567890123}"#,
            r#"{"a":12345678901234567890124}"#,
            r#"{"a":"x","b":"y"}"#,
            r#"{"a":"xb","":"y"}"#,
            r#"{"a":["x","y"]}"#,
            r#"{"a":["xy",""]}"#,
            r#"{"a":"\u0000"}"#,
            r#"{"a":""}"#,
        ];
        let all: std::collections::BTreeSet<[u8; 32]> = inputs.iter().map(|input| of(HERE, &call(input))).collect();
        assert_eq!(all.len(), inputs.len());
        let same = of(HERE, &call(r#"{"b":"y","a":"x"}"#));
        assert!(all.contains(&same), "the order of keys is not part of an action");
        let one = call(inputs[0]);
        assert_ne!(of(Circumstances { nonce: "m", ..HERE }, &one), of(HERE, &one));
        assert_ne!(
            of(Circumstances { session: "s\0", turn: "", ..HERE }, &one),
            of(Circumstances { session: "s", turn: "\0", ..HERE }, &one)
        );
    }
}
