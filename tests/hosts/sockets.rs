//! The service's two sockets, as a hostile peer of the same user meets them: everything is answered or closed, nothing is let
//! through, and those who ask properly go on being answered.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::unistd::{Uid, seteuid};
use ringfence_tests::suite::CaseResult;
use serde_json::{Value, json};

use crate::stand::Stand;

/// Longer than the service gives a peer for one frame.
const PATIENCE: Duration = Duration::from_secs(8);

/// Wrong lengths, unknown versions, other programs' requests, duplicates, slow and vanishing peers, on both sockets.
pub fn hostile_peers() -> CaseResult {
    let stand = Stand::unobserved()?;
    let runtime = stand.stage.runtime_directory(&stand.person)?;
    // The peer's uid is the effective one at the connect. The case is a process of its own, so it may change it.
    if Uid::effective().is_root() {
        seteuid(Uid::from_raw(stand.person.uid()))?;
    }
    let sent = sockets(&runtime);
    if Uid::current().is_root() {
        seteuid(Uid::from_raw(0))?;
    }
    sent?;
    let status: Value = serde_json::from_str(&stand.service.ask(&stand.person, &["status", "--json"])?)?;
    ensure!(status["layers"].is_array(), "the service does not answer any more: {status}");
    Ok(())
}

fn sockets(runtime: &Path) -> anyhow::Result<()> {
    for name in ["hook.sock", "control.sock"] {
        let socket = runtime.join(name);
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        let frames: [(&str, Vec<u8>); 8] = [
            ("a length of 0", vec![0, 0, 0, 0]),
            ("a length of 4 GiB", vec![0xff, 0xff, 0xff, 0xff, b'{']),
            ("no JSON", framed(b"not JSON at all")),
            ("JSON of another kind", framed(b"[1, 2, 3]")),
            ("deep JSON", framed(deep.as_bytes())),
            ("invalid UTF-8", framed(b"{\"a\": \"\xff\xfe\"}")),
            ("an unknown version", framed(envelope(99, "00000000-0000-4000-8000-000000000001").to_string().as_bytes())),
            (
                "a hook call of a program that is no hook",
                framed(envelope(1, "00000000-0000-4000-8000-000000000002").to_string().as_bytes()),
            ),
        ];
        for (what, bytes) in frames {
            let said = exchange(&socket, &bytes).with_context(|| format!("{name}: {what}"))?;
            refuses(&said).with_context(|| format!("{name}: {what}"))?;
        }
        // Half a frame, then gone; and gone at once, many times.
        for index in 0..200u32 {
            let mut stream = UnixStream::connect(&socket)?;
            if index % 2 == 0 {
                let _ = stream.write_all(&framed(b"half")[..6]);
            }
        }
        // The same request twice at once: each is answered.
        let same = framed(envelope(1, "00000000-0000-4000-8000-000000000003").to_string().as_bytes());
        let (mut first, mut second) = (UnixStream::connect(&socket)?, UnixStream::connect(&socket)?);
        first.write_all(&same)?;
        second.write_all(&same)?;
        for stream in [first, second] {
            refuses(&answer(stream)?).with_context(|| format!("{name}: a duplicate"))?;
        }
        // A peer that says two bytes and waits is let go; nobody waits for it meanwhile.
        let mut slow = UnixStream::connect(&socket)?;
        slow.write_all(&[0, 0])?;
        refuses(&exchange(&socket, &framed(b"meanwhile"))?).with_context(|| format!("{name}: beside a slow peer"))?;
        refuses(&answer(slow)?).with_context(|| format!("{name}: a slow peer"))?;
    }
    Ok(())
}

fn envelope(version: u32, id: &str) -> Value {
    json!({
        "protocol_version": version, "request_id": id, "request_kind": "hook_event", "adapter": "claude-code",
        "adapter_version": "0", "received_at_ms": 0, "hard_deadline_ms": u32::MAX, "host_version": null,
        "invocation_nonce": "0123456789abcdef0123456789abcdef",
        "host_payload": {
            "session_id": "forged", "transcript_path": "/x", "cwd": "/", "hook_event_name": "PreToolUse",
            "tool_name": "Bash", "tool_use_id": "toolu_forged", "tool_input": {"command": "true"},
        },
    })
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    frame.extend_from_slice(body);
    frame
}

fn exchange(socket: &Path, bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    // The service may close before it has read everything.
    let _ = stream.write_all(bytes);
    answer(stream)
}

fn answer(mut stream: UnixStream) -> anyhow::Result<Vec<u8>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => drop(other.context("the service neither answered nor closed")?),
    }
    Ok(said)
}

/// Closed without a word, or a refusal: never leave to go on.
fn refuses(said: &[u8]) -> anyhow::Result<()> {
    let Some(body) = said.get(4..) else { return Ok(()) };
    let reply: Value = serde_json::from_slice(body).context("the answer is no JSON")?;
    let denied = reply["decision"] == "deny" || !reply["refused"].is_null();
    ensure!(denied, "it was answered with {reply}");
    Ok(())
}
