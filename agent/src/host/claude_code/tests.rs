//! Decoding against what the real host sent, and against the same input broken in every way that was thought of.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn samples() -> Vec<(PathBuf, Vec<u8>)> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    let mut found = Vec::new();
    for version in ["claude-code-2.1.197", "claude-code-2.1.332"] {
        for entry in std::fs::read_dir(data.join(version)).unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            found.push((path, bytes));
        }
    }
    assert!(found.len() > 60, "{}", found.len());
    found
}

fn sample(name: &str) -> Value {
    let (_, bytes) = samples()
        .into_iter()
        .find(|(path, _)| path.ends_with(format!("claude-code-2.1.332/{name}.json")))
        .unwrap_or_else(|| panic!("no sample {name}"));
    serde_json::from_slice(&bytes).unwrap()
}

fn bash() -> Value {
    sample("PreToolUse-Bash")
}

#[test]
fn every_sample_of_a_hooked_event_is_read_and_no_other() {
    let mut seen = std::collections::BTreeSet::new();
    for (path, bytes) in samples() {
        let name = path.file_stem().unwrap().to_str().unwrap().split('-').next().unwrap().to_owned();
        match (EventName::from_host(&name), decode(&bytes)) {
            (Some(event), Ok(read)) => {
                seen.insert(event);
                assert!(read.session.len() == 36 && read.cwd.starts_with("/home/user/project"), "{path:?}");
                assert_eq!(read.subagent.is_some(), String::from_utf8(bytes).unwrap().contains("\"agent_id\""));
            }
            (None, Err(Unreadable { error: DecodeError::UnknownEvent, claim })) => {
                assert_eq!(claim, Claim::OtherEvent { names_a_tool: name == "PermissionRequest" }, "{path:?}");
            }
            (_, other) => panic!("{path:?}: {other:?}"),
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>().len(), EventName::ALL.len());
}

#[test]
fn what_the_host_said_comes_through_unchanged() {
    let read = decode_value(&bash()).unwrap();
    let HostEventKind::ToolCall(call) = read.kind else { panic!("{read:?}") };
    assert_eq!(call.call_id, "toolu_e698d07b969447f8ac7fe727");
    assert_eq!((call.tool.as_str(), tool_class(&call.tool)), ("Bash", ToolClass::ShellExec));
    assert_eq!(call.input, bash()["tool_input"]);

    let failed = decode_value(&sample("PostToolUseFailure-Bash-exit3")).unwrap();
    assert!(matches!(failed.kind, HostEventKind::ToolFailed { exit_code: Some(3), interrupted: false, .. }));
    let done = decode_value(&sample("PostToolUse-Write")).unwrap();
    assert!(matches!(done.kind, HostEventKind::ToolDone { duration_ms: Some(9), .. }));
    let inner = decode_value(&sample("PreToolUse-Bash-subagent")).unwrap();
    assert_eq!(inner.subagent.as_deref(), Some("a22668761a7f03c18"));
    let moved = decode_value(&sample("CwdChanged")).unwrap();
    let (from, to) = ("/home/user/project".to_owned(), "/home/user/project/sub".to_owned());
    assert_eq!(moved.kind, HostEventKind::CwdChanged { from, to });
    let changed = decode_value(&sample("ConfigChange")).unwrap();
    let file = Some("/home/user/.claude/settings.json".to_owned());
    assert_eq!(changed.kind, HostEventKind::ConfigChange { source: "user_settings".into(), file });
}

#[test]
fn numbers_keep_their_text() {
    let text =
        bash().to_string().replace("\"description\"", "\"n\": 1e999, \"m\": 12345678901234567890123, \"description\"");
    let HostEventKind::ToolCall(call) = decode(text.as_bytes()).unwrap().kind else { panic!() };
    assert_eq!(call.input["m"].to_string(), "12345678901234567890123");
}

#[test]
fn exit_codes_are_read_from_the_first_line_alone() {
    assert_eq!(exit_code("Exit code 3\nout\nerr"), Some(3));
    assert_eq!(exit_code("Exit code 127"), Some(127));
    for other in
        ["", "exit code 3", "Exit code", "Exit code x", "Exit code 99999999999", "out\nExit code 3", "Exit code 3 x"]
    {
        assert_eq!(exit_code(other), None, "{other:?}");
    }
}

#[test]
fn every_tool_that_is_not_known_executes() {
    for (name, class) in [
        ("Bash", ToolClass::ShellExec),
        ("MultiEdit", ToolClass::FileEdit),
        ("NotebookEdit", ToolClass::FileEdit),
        ("Grep", ToolClass::FileRead),
        ("WebSearch", ToolClass::Fetch),
        ("mcp__t__echo", ToolClass::Mcp),
        ("Agent", ToolClass::Subagent),
        ("Task", ToolClass::Subagent),
        ("bash", ToolClass::Unknown),
        ("Read ", ToolClass::Unknown),
        ("PowerShell", ToolClass::Unknown),
        ("", ToolClass::Unknown),
    ] {
        assert_eq!(tool_class(name), class, "{name}");
    }
    assert!(ToolClass::Unknown.executes_or_mutates());
}

/// A sample with one change, and what decoding must say.
fn broken(event: &str, change: impl FnOnce(&mut Value)) -> Unreadable {
    let mut value = sample(event);
    change(&mut value);
    decode_value(&value).unwrap_err()
}

#[test]
fn each_fault_has_its_own_answer() {
    let missing = |field: &'static str| {
        move |value: &mut Value| {
            value.as_object_mut().unwrap().remove(field);
        }
    };
    let call = Claim::ToolCall(Some(ToolClass::ShellExec));
    for field in ["session_id", "cwd", "tool_input", "tool_use_id"] {
        let got = broken("PreToolUse-Bash", missing(field));
        assert_eq!(got, Unreadable { error: DecodeError::Missing(field), claim: call });
    }
    let got = broken("PreToolUse-Bash", missing("tool_name"));
    assert_eq!(got, Unreadable { error: DecodeError::Missing("tool_name"), claim: Claim::ToolCall(None) });
    let got = broken("PreToolUse-Bash", missing("hook_event_name"));
    assert_eq!(got, Unreadable { error: DecodeError::Missing("hook_event_name"), claim: Claim::Nothing });

    for field in ["session_id", "cwd", "tool_name", "tool_use_id", "hook_event_name"] {
        for wrong in [json!(1), json!(null), json!([]), json!({}), json!(true)] {
            let got = broken("PreToolUse-Bash", |v| v[field] = wrong);
            assert_eq!(
                got.error,
                DecodeError::WrongType(match field {
                    "session_id" => "session_id",
                    "cwd" => "cwd",
                    "tool_name" => "tool_name",
                    "tool_use_id" => "tool_use_id",
                    _ => "hook_event_name",
                })
            );
            assert!(got.claim.fails_closed());
        }
        let got = broken("PreToolUse-Bash", |v| v[field] = "".into());
        assert!(matches!(got.error, DecodeError::EmptyField(_)), "{got:?}");
        let got = broken("PreToolUse-Bash", |v| v[field] = "/".repeat(5000).into());
        assert!(matches!(got.error, DecodeError::TooLong { .. }), "{got:?}");
        let got = broken("PreToolUse-Bash", |v| v[field] = "a\0b".into());
        assert!(matches!(got.error, DecodeError::BadText(_)), "{got:?}");
    }
    for id in ["../../x", "a/b", "..", ".hidden", "a\nb"] {
        for field in ["session_id", "tool_use_id", "agent_id"] {
            let got = broken("PreToolUse-Bash-subagent", |v| v[field] = id.into());
            assert!(matches!(got.error, DecodeError::BadText(_)), "{field} {id}: {got:?}");
        }
    }
    assert_eq!(broken("PreToolUse-Bash", |v| v["cwd"] = "relative".into()).error, DecodeError::BadText("cwd"));
    assert_eq!(
        broken("PreToolUse-Bash", |v| v["tool_input"] = "ls".into()).error,
        DecodeError::WrongType("tool_input")
    );
    for command in [json!(null), json!(["ls"]), json!(1)] {
        let got = broken("PreToolUse-Bash", |v| v["tool_input"]["command"] = command);
        assert_eq!(got, Unreadable { error: DecodeError::WrongType("tool_input.command"), claim: call });
    }
    let got = broken("PostToolUse-Bash", |v| v["duration_ms"] = "9".into());
    assert_eq!(
        got,
        Unreadable { error: DecodeError::WrongType("duration_ms"), claim: Claim::Event(EventName::PostToolUse) }
    );
    assert!(!got.claim.fails_closed());
    assert!(broken("ConfigChange", |v| v["file_path"] = json!(1)).claim.fails_closed());
    assert!(!broken("UserPromptSubmit", |v| v["prompt"] = json!(1)).claim.fails_closed());
}

#[test]
fn a_tool_call_under_another_event_name_is_not_let_through() {
    let got = broken("PreToolUse-Bash", |v| v["hook_event_name"] = "BeforeToolUse".into());
    assert_eq!(got, Unreadable { error: DecodeError::UnknownEvent, claim: Claim::OtherEvent { names_a_tool: true } });
    assert!(got.claim.fails_closed());
}

#[test]
fn input_that_is_no_object_claims_nothing() {
    for text in ["", " ", "null", "1", "[]", "\"PreToolUse\"", "{", "\u{feff}{}"] {
        let got = decode(text.as_bytes()).unwrap_err();
        assert_eq!(got.claim, Claim::Nothing, "{text}");
        assert!(got.claim.fails_closed());
    }
    let deep = format!("{{\"a\":{}", "[".repeat(10_000));
    assert!(matches!(decode(deep.as_bytes()).unwrap_err().error, DecodeError::Json(JsonError::TooDeep { .. })));
    let large = vec![b' '; 2 << 20];
    assert!(matches!(decode(&large).unwrap_err().error, DecodeError::Json(JsonError::TooLarge { .. })));
}

/// What must hold of any input whatever: a tool that executes is read whole, or its input fails closed.
fn holds(input: &[u8]) {
    match decode(input) {
        Ok(HostEvent { kind: HostEventKind::ToolCall(call), session, cwd, .. }) => {
            let again: Value = serde_json::from_slice(input).expect("what was read is JSON");
            assert_eq!(again["tool_input"], call.input);
            assert_eq!(again["tool_name"], call.tool);
            assert!(!session.is_empty() && cwd.starts_with('/'));
            if tool_class(&call.tool) == ToolClass::ShellExec {
                assert!(call.input["command"].is_string());
            }
        }
        Ok(_) => {}
        Err(unreadable) => {
            // What says, readably, that it is something harmless is the only thing that is not denied.
            let said = serde_json::from_slice::<Value>(input).ok();
            let name = said.as_ref().and_then(|v| v["hook_event_name"].as_str());
            let tool = said.as_ref().and_then(|v| v["tool_name"].as_str());
            let executes = tool.is_none_or(|tool| tool_class(tool).executes_or_mutates());
            if name.is_none() || (name == Some("PreToolUse") && executes) {
                assert!(unreadable.claim.fails_closed(), "{unreadable:?}");
            }
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[ -~]{0,12}".prop_map(Value::from),
        Just(Value::from("x".repeat(5000))),
        Just(serde_json::from_str("1e400").unwrap()),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-z_]{1,8}", inner, 0..4).prop_map(|m| m.into_iter().collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_sample_cut_anywhere_is_never_taken_for_whole(pick in any::<prop::sample::Index>(), at in any::<prop::sample::Index>()) {
        let all = samples();
        let (_, bytes) = &all[pick.index(all.len())];
        let cut = &bytes[..at.index(bytes.len())];
        holds(cut);
        if !cut.trim_ascii_end().ends_with(b"}") {
            prop_assert!(decode(cut).is_err());
        }
    }

    #[test]
    fn a_sample_with_any_byte_changed_holds(pick in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), byte: u8) {
        let all = samples();
        let mut bytes = all[pick.index(all.len())].1.clone();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        holds(&bytes);
    }

    #[test]
    fn a_sample_with_any_field_replaced_holds(
        pick in any::<prop::sample::Index>(), field in any::<prop::sample::Index>(), value in any_json(), inner: bool,
    ) {
        let all = samples();
        let mut whole: Value = serde_json::from_slice(&all[pick.index(all.len())].1).unwrap();
        let target = if inner && whole["tool_input"].is_object() { &mut whole["tool_input"] } else { &mut whole };
        let object = target.as_object_mut().unwrap();
        let keys: Vec<String> = object.keys().cloned().collect();
        object.insert(keys[field.index(keys.len())].clone(), value);
        holds(whole.to_string().as_bytes());
    }

    #[test]
    fn any_bytes_hold(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        holds(&bytes);
    }
}
