//! The wire: HTTP/1.1 with one request per connection, and the event stream of the Messages API.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::{KEPT_REQUESTS, Request, Shared, Step, lock};

/// Largest request body that is read. Real ones are some hundred kilobytes.
const BODY_BYTES: u64 = 32 << 20;
/// Largest request line or header line.
const LINE_BYTES: u64 = 64 << 10;

/// Reads one request and answers it.
pub(super) fn answer(stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut input = BufReader::new(stream);
    let mut out = stream;
    let first = line(&mut input)?;
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let mut length = 0;
    loop {
        let header = line(&mut input)?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').unwrap_or((&header, ""));
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse::<u64>().map_err(|_| io::ErrorKind::InvalidData)?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") || name.eq_ignore_ascii_case("content-encoding") {
            return send(
                &mut out,
                415,
                &json!({"error": {"type": "invalid_request_error", "message": "plain bodies only"}}),
            );
        }
    }
    if length > BODY_BYTES {
        return send(&mut out, 413, &json!({"error": {"type": "request_too_large", "message": "too large"}}));
    }
    let mut raw = Vec::new();
    input.take(length).read_to_end(&mut raw)?;
    let body: Value = serde_json::from_slice(&raw).unwrap_or(Value::Null);
    let route = path.split('?').next().unwrap_or_default();
    let step = (method == "POST" && route == "/v1/messages").then(|| shared.script.step(&body));
    remember(shared, Request { target: format!("{method} {path}"), body: body.clone() });
    match (method.as_str(), route, step) {
        (_, _, Some(Step::Error(status))) => send(
            &mut out,
            status,
            &json!({"type": "error", "error": {"type": "api_error", "message": "scripted error"}}),
        ),
        (_, _, Some(step)) => {
            let message = message(shared, &body, &step);
            if body["stream"] == true { stream_message(&mut out, message) } else { send(&mut out, 200, &message) }
        }
        ("POST", "/v1/messages/count_tokens", _) => send(&mut out, 200, &json!({"input_tokens": 10})),
        ("GET", "/v1/models", _) => {
            let model = json!({"type": "model", "id": "scripted", "display_name": "Scripted", "created_at": "2026-01-01T00:00:00Z"});
            send(
                &mut out,
                200,
                &json!({"data": [model], "has_more": false, "first_id": "scripted", "last_id": "scripted"}),
            )
        }
        ("HEAD", _, _) => out.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
        _ => send(
            &mut out,
            404,
            &json!({"type": "error", "error": {"type": "not_found_error", "message": "not in the script"}}),
        ),
    }
}

fn line(input: &mut impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    let read = input.by_ref().take(LINE_BYTES).read_line(&mut text)?;
    if read == 0 || !text.ends_with('\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(text.trim_end().to_owned())
}

fn remember(shared: &Shared, request: Request) {
    let mut requests = lock(&shared.requests);
    if requests.len() == KEPT_REQUESTS {
        requests.pop_front();
    }
    requests.push_back(request);
}

fn message(shared: &Shared, body: &Value, step: &Step) -> Value {
    let id = |prefix: &str| format!("{prefix}_{:024x}", shared.ids.fetch_add(1, Ordering::Relaxed));
    let (content, stop) = match step {
        Step::Text(text) => (vec![json!({"type": "text", "text": text})], "end_turn"),
        Step::Calls(calls) => {
            let block = |call: &super::Call| json!({"type": "tool_use", "id": id("toolu"), "name": call.tool, "input": call.input});
            (calls.iter().map(block).collect(), "tool_use")
        }
        Step::Error(_) => (Vec::new(), "end_turn"),
    };
    json!({
        "id": id("msg"), "type": "message", "role": "assistant", "model": body["model"], "content": content,
        "stop_reason": stop, "stop_sequence": null, "usage": {"input_tokens": 10, "output_tokens": 5},
    })
}

fn stream_message(out: &mut impl Write, mut message: Value) -> io::Result<()> {
    out.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\nconnection: close\r\n\r\n",
    )?;
    let content = std::mem::replace(&mut message["content"], json!([]));
    let stop = std::mem::replace(&mut message["stop_reason"], Value::Null);
    event(out, &json!({"type": "message_start", "message": message}))?;
    for (index, block) in content.as_array().map_or(&[][..], Vec::as_slice).iter().enumerate() {
        // A block starts empty; its text or its input arrives as a delta.
        let mut start = block.clone();
        let delta = if block["type"] == "text" {
            start["text"] = json!("");
            json!({"type": "text_delta", "text": block["text"]})
        } else {
            start["input"] = json!({});
            json!({"type": "input_json_delta", "partial_json": block["input"].to_string()})
        };
        event(out, &json!({"type": "content_block_start", "index": index, "content_block": start}))?;
        event(out, &json!({"type": "content_block_delta", "index": index, "delta": delta}))?;
        event(out, &json!({"type": "content_block_stop", "index": index}))?;
    }
    let delta = json!({"stop_reason": stop, "stop_sequence": null});
    event(out, &json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}}))?;
    event(out, &json!({"type": "message_stop"}))?;
    out.flush()
}

fn event(out: &mut impl Write, data: &Value) -> io::Result<()> {
    let name = data["type"].as_str().unwrap_or_default();
    out.write_all(format!("event: {name}\ndata: {data}\n\n").as_bytes())
}

fn send(out: &mut impl Write, status: u16, body: &Value) -> io::Result<()> {
    let text = body.to_string();
    let head =
        format!("HTTP/1.1 {status} scripted\r\ncontent-type: application/json\r\ncontent-length: {}\r\n", text.len());
    out.write_all(format!("{head}connection: close\r\n\r\n{text}").as_bytes())?;
    out.flush()
}
