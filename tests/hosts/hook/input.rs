//! What the hook reads: everything a host, or somebody in its place, may write to it.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use ringfence::host::claude_code::EventName;
use ringfence_tests::stage::workspace;
use ringfence_tests::suite::CaseResult;
use serde_json::{Value, json};

use super::{Rig, SECRET, bash, finish, sample};

pub(super) fn unreadable_input() -> CaseResult {
    let rig = Rig::new()?;
    let with = |change: &dyn Fn(&mut Value)| -> anyhow::Result<Vec<u8>> {
        let mut value = bash(&format!("echo {SECRET}"))?;
        change(&mut value);
        Ok(value.to_string().into_bytes())
    };
    let mut without_id = Vec::new();
    for field in ["session_id", "tool_use_id", "tool_name", "tool_input", "cwd", "hook_event_name"] {
        without_id.push((field, with(&|v| drop(v.as_object_mut().map(|o| o.remove(field))))?));
    }
    let mut inputs: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("white space", b" \n".to_vec()),
        ("malformed", format!("{{\"hook_event_name\": \"PreToolUse\", {SECRET}").into_bytes()),
        ("2 MiB", with(&|v| v["tool_input"]["command"] = SECRET.repeat((2 << 20) / SECRET.len()).into())?),
        ("10 000 deep", format!("{{\"{SECRET}\": {}", "[".repeat(10_000)).into_bytes()),
        ("10 000 deep and closed", format!("{}\"{SECRET}\"{}", "[".repeat(10_000), "]".repeat(10_000)).into_bytes()),
        ("invalid UTF-8", [b"{\"a\": \"\xff\xfe", SECRET.as_bytes(), b"\"}"].concat()),
        ("a key twice", format!("{{\"{SECRET}\": 1, \"{SECRET}\": 2}}").into_bytes()),
        ("a command of another type", with(&|v| v["tool_input"]["command"] = json!([SECRET]))?),
        ("no command", with(&|v| v["tool_input"] = json!({"x": SECRET}))?),
        ("an id of another type", with(&|v| v["tool_use_id"] = json!({"x": SECRET}))?),
        ("an id that is a path", with(&|v| v["session_id"] = format!("../{SECRET}").into())?),
        ("a long id", with(&|v| v["session_id"] = SECRET.repeat(100).into())?),
        ("another event's name", with(&|v| v["hook_event_name"] = SECRET.into())?),
        ("not an object", format!("[\"{SECRET}\"]").into_bytes()),
    ];
    inputs.extend(without_id);
    for (what, input) in inputs {
        for words in [&["claude-code", "PreToolUse"][..], &["claude-code"]] {
            let said = rig.hook(words, &input)?;
            ensure!(said.denied() && said.stderr.contains("[inspection_incomplete]"), "{what} {words:?}: {said:?}");
            ensure!(!said.stderr.contains(SECRET), "{what}: {said:?}");
            ensure!(said.took < Duration::from_secs(2), "{what}: {said:?}");
        }
    }
    for (what, input) in [("empty", Vec::new()), ("malformed", SECRET.into()), ("2 MiB", vec![b'['; 2 << 20])] {
        for event in EventName::ALL.into_iter().filter(|event| !event.fails_closed()) {
            let said = rig.hook(&["claude-code", event.as_str()], &input)?;
            ensure!(said.silent(), "{what} {}: {said:?}", event.as_str());
        }
        let said = rig.hook(&["claude-code", "ConfigChange"], &input)?;
        ensure!(said.denied(), "{what}: {said:?}");
    }
    // A reading tool's call that lacks something is not denied; the same call installed for another event is.
    let mut read = sample("PreToolUse-Read")?;
    read.as_object_mut().context("object")?.remove("tool_use_id");
    let read = read.to_string().into_bytes();
    ensure!(rig.hook(&["claude-code", "PreToolUse"], &read)?.silent());
    let other = bash("true")?.to_string().into_bytes();
    ensure!(rig.hook(&["claude-code", "UserPromptSubmit"], &other)?.denied());
    let prompt = sample("UserPromptSubmit")?.to_string().into_bytes();
    ensure!(rig.hook(&["claude-code", "PreToolUse"], &prompt)?.denied());
    // Numbers beyond f64 are not a fault.
    let numbers = bash("true")?.to_string().replace("\"description\"", "\"n\": 1e999, \"description\"");
    ensure!(rig.hook(&["claude-code", "PreToolUse"], numbers.as_bytes())?.silent());
    rig.nothing_raw()
}

pub(super) fn samples() -> CaseResult {
    let rig = Rig::new()?;
    let mut seen = 0;
    for version in ["claude-code-2.1.197", "claude-code-2.1.332"] {
        for entry in std::fs::read_dir(workspace().join("tests/data").join(version))? {
            let path = entry?.path();
            let input = std::fs::read(&path)?;
            let name = serde_json::from_slice::<Value>(&input)?["hook_event_name"].clone();
            let event = name.as_str().and_then(EventName::from_host);
            match event {
                // The file it names is not on this machine: our entries are gone.
                Some(EventName::ConfigChange) => {
                    ensure!(rig.hook(&["claude-code", "ConfigChange"], &input)?.denied(), "{}", path.display());
                }
                Some(event) => {
                    let said = rig.hook(&["claude-code", event.as_str()], &input)?;
                    ensure!(said.silent(), "{}: {said:?}", path.display());
                }
                None => continue,
            }
            seen += 1;
        }
    }
    ensure!(seen > 40, "{seen}");
    Ok(())
}

pub(super) fn stdin() -> CaseResult {
    let rig = Rig::new()?;
    let closed = |words: &str| {
        let mut shell = rig.person.command("/bin/sh");
        let line = format!("exec {} {words} <&-", rig.stage.hook().display());
        shell.args(["-c", &line]).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(shell.spawn()?, None)
    };
    ensure!(closed("claude-code PreToolUse")?.denied());
    ensure!(closed("claude-code")?.denied());
    ensure!(closed("claude-code UserPromptSubmit")?.silent());
    rig.trial(json!({"child_ms": 300}))?;
    let mut hook = rig.command(&["claude-code", "PreToolUse"]).spawn()?;
    let mut held = hook.stdin.take().context("stdin")?;
    held.write_all(bash("true")?.to_string().as_bytes())?;
    let said = finish(hook, None)?;
    ensure!(said.denied() && said.stderr.contains("did not finish writing"), "{said:?}");
    drop(held);
    let mut hook = rig.command(&["claude-code", "PreToolUse"]);
    let said = finish(hook.stdin(std::fs::File::open("/dev/zero")?).spawn()?, None)?;
    ensure!(said.denied(), "{said:?}");
    Ok(())
}
