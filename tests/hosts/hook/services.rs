//! Whom the hook asks: a service that fails, one that answers, and none.

use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::ensure;
use ringfence::ipc::frame;
use ringfence::ipc::hook::{Reply, decode_request, refusal_reply};
use ringfence::ipc::limits::{FRAME_BYTES, REPLY_BYTES};
use ringfence::policy::judge::Outcome;
use ringfence_tests::person::needs_root;
use ringfence_tests::suite::CaseResult;
use serde_json::{Value, json};

use super::{Rig, SECRET, bash, sample};

fn reply(stream: &mut UnixStream, reply: &Reply) {
    let _ = frame::write(stream, &serde_json::to_vec(reply).unwrap_or_default(), REPLY_BYTES);
}

pub(super) fn reply_to(stream: &mut UnixStream, frame: &[u8], outcome: Outcome, change: impl Fn(&mut Reply)) {
    let Ok(asked) = decode_request(frame) else { return };
    let mut answer = refusal_reply(&asked.request_id, outcome, "a_reason", "an explanation");
    change(&mut answer);
    reply(stream, &answer);
}

pub(super) fn failing_services() -> CaseResult {
    needs_root("a directory that the person may not enter")?;
    type Serve = fn(&mut UnixStream, &[u8]);
    let services: [(&str, Serve); 10] = [
        ("hangs", |_, _| std::thread::sleep(Duration::from_secs(2))),
        ("closes at once", |_, _| {}),
        ("answers garbage", |s, _| drop(frame::write(s, b"garbage", REPLY_BYTES))),
        ("answers with raw bytes", |s, _| drop(s.write_all(&[0xff; 64]))),
        ("answers another request", |s, f| reply_to(s, f, Outcome::NoOverride, |r| r.request_id = "other".into())),
        ("answers in another version", |s, f| reply_to(s, f, Outcome::NoOverride, |r| r.protocol_version = 99)),
        ("answers in version 0", |s, f| reply_to(s, f, Outcome::NoOverride, |r| r.protocol_version = 0)),
        ("answers half a frame", |s, _| drop(s.write_all(&[0, 0, 1, 0, b'{']))),
        ("answers a word it may not", |s, f| {
            let Ok(asked) = decode_request(f) else { return };
            let answer = json!({"protocol_version": 1, "request_id": asked.request_id, "decision": "allow",
                "reason_code": "", "explanation": "", "finding_id": null, "decision_source": "human",
                "coverage_class": "", "execution_observed": ""});
            drop(frame::write(s, answer.to_string().as_bytes(), REPLY_BYTES));
        }),
        ("has no room", |s, _| reply(s, &refusal_reply("", Outcome::Deny, "queue_full", "no room"))),
    ];
    let rig = Rig::new()?;
    rig.trial(json!({"child_ms": 300}))?;
    for (what, serve) in services {
        rig.serve(serve)?;
        let said = rig.hook(&["claude-code", "PreToolUse"], bash("true")?.to_string().as_bytes())?;
        ensure!(said.denied() && said.stderr.contains("[service_"), "{what}: {said:?}");
        let edit = rig.hook(&["claude-code", "PreToolUse"], sample("PreToolUse-Edit")?.to_string().as_bytes())?;
        ensure!(edit.denied(), "{what}: {edit:?}");
        for (event, name) in [("PreToolUse", "PreToolUse-Read"), ("UserPromptSubmit", "UserPromptSubmit")] {
            let said = rig.hook(&["claude-code", event], sample(name)?.to_string().as_bytes())?;
            ensure!(said.silent(), "{what}, {name}: {said:?}");
        }
    }
    // Where the way to it is barred, the host's sandbox did that: the built-in rules judge, as when it is down.
    let runtime = rig.runtime()?;
    chown(&runtime, Some(0), Some(0))?;
    let said = rig.hook(&["claude-code", "PreToolUse"], bash("true")?.to_string().as_bytes())?;
    ensure!(said.silent(), "{said:?}");
    let said = rig.hook(&["claude-code", "PreToolUse", "--strict-offline"], bash("true")?.to_string().as_bytes())?;
    ensure!(said.denied() && said.stderr.contains("blocked by the host's sandbox"), "{said:?}");
    rig.person.own(&runtime)?;
    // Somebody else's socket, or one that others may use, is nobody's service.
    rig.serve(|s, f| reply_to(s, f, Outcome::NoOverride, |_| {}))?;
    let socket = rig.runtime()?.join("hook.sock");
    let input = bash("true")?.to_string();
    ensure!(rig.hook(&["claude-code", "PreToolUse"], input.as_bytes())?.silent());
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666))?;
    let said = rig.hook(&["claude-code", "PreToolUse"], input.as_bytes())?;
    ensure!(said.denied() && said.stderr.contains("[service_untrusted]"), "{said:?}");
    Ok(())
}

pub(super) fn answers() -> CaseResult {
    let rig = Rig::new()?;
    rig.serve(|stream, frame| {
        let Ok(asked) = decode_request(frame) else { return };
        let command = asked.host_payload["tool_input"]["command"].as_str().unwrap_or_default().to_owned();
        let outcome = if command.contains("harmless") { Outcome::NoOverride } else { Outcome::Deny };
        reply_to(stream, frame, outcome, |r| r.explanation = "line one\nline two\u{1b}[0m".into());
    })?;
    let said = rig.hook(&["claude-code", "PreToolUse"], bash("harmless")?.to_string().as_bytes())?;
    ensure!(said.silent(), "{said:?}");
    let said = rig.hook(&["claude-code", "PreToolUse"], bash("other")?.to_string().as_bytes())?;
    ensure!(said.denied() && said.stderr.contains("[a_reason]: line one line two [0m."), "{said:?}");
    // A denial of an event that only tells would stop the person, so it is not passed on.
    for name in ["UserPromptSubmit", "SessionStart", "PostToolUse-Bash", "SessionEnd", "SubagentStart-subagent"] {
        let event = name.split('-').next().unwrap_or(name);
        let said = rig.hook(&["claude-code", event], sample(name)?.to_string().as_bytes())?;
        ensure!(said.silent(), "{name}: {said:?}");
    }
    // News of a call whose output is too large for a frame still arrives.
    let (tell, told) = std::sync::mpsc::channel();
    rig.serve(move |stream, frame| {
        let fields = decode_request(frame).map(|asked| asked.host_payload.get("tool_response").is_some());
        let _ = tell.send(fields.ok());
        reply_to(stream, frame, Outcome::NoOverride, |_| {});
    })?;
    let mut large = sample("PostToolUse-Bash")?;
    // The input is just within the limit, and the envelope around it no longer.
    let room = FRAME_BYTES - large.to_string().len() - 64;
    large["tool_response"]["stdout"] = "x".repeat(room).into();
    let said = rig.hook(&["claude-code", "PostToolUse"], large.to_string().as_bytes())?;
    ensure!(said.silent(), "{said:?}");
    let got = told.recv_timeout(Duration::from_secs(2))?;
    ensure!(got == Some(false), "{got:?}");
    Ok(())
}

pub(super) fn gaps() -> CaseResult {
    let rig = Rig::new()?;
    let command = format!("echo {SECRET}");
    rig.hook(&["claude-code", "PreToolUse"], bash(&command)?.to_string().as_bytes())?;
    rig.hook(&["claude-code", "PreToolUse"], SECRET.as_bytes())?;
    let mut prompt = sample("UserPromptSubmit")?;
    prompt["prompt"] = SECRET.into();
    rig.hook(&["claude-code", "UserPromptSubmit"], prompt.to_string().as_bytes())?;
    let offline = &["claude-code", "PreToolUse", "--strict-offline"];
    let said = rig.hook(offline, bash(&command)?.to_string().as_bytes())?;
    ensure!(said.denied() && said.stderr.contains("[strict_offline]"), "{said:?}");
    ensure!(rig.hook(offline, sample("PreToolUse-Read")?.to_string().as_bytes())?.silent());
    let file = rig.runtime()?.join("gaps.jsonl");
    let mode = std::fs::metadata(&file)?.permissions().mode() & 0o7777;
    ensure!(mode == 0o600, "{mode:o}");
    let text = std::fs::read_to_string(&file)?;
    let records: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(records.len() == 5, "{text}");
    ensure!(records[0]["cause"] == "service_down" && records[0]["class"] == "shell_exec", "{text}");
    ensure!(records[0]["call_id"] == "toolu_e698d07b969447f8ac7fe727", "{text}");
    ensure!(records[0]["command_digest"].as_str().is_some_and(|digest| digest.len() == 64), "{text}");
    ensure!(records[0]["host"]["pid"] == std::process::id(), "{text}");
    ensure!(records[1]["cause"] == "input_unreadable" && records[1]["outcome"] == "deny", "{text}");
    ensure!(records[2]["event"] == "UserPromptSubmit" && records[2]["outcome"] == "no_override", "{text}");
    rig.nothing_raw()
}
