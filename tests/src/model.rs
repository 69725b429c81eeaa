//! A scripted stand-in for a model service, on loopback: it answers `POST /v1/messages` as Claude Code expects, streaming or not.
//!
//! Which step of the script a request gets follows from the request alone: it is the number of assistant turns with tool calls
//! that the conversation already holds. So retries and side requests (titles, quota checks) cannot shift the script. A request
//! that offers no tools is such a side request, and gets a short text.

mod wire;

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

/// How many requests are kept to look at.
const KEPT_REQUESTS: usize = 1000;

/// One tool call that the model asks for.
#[derive(Clone, Debug)]
pub struct Call {
    /// The host's name of the tool.
    pub tool: String,
    /// Its input.
    pub input: Value,
}

impl Call {
    /// A call of any tool.
    pub fn new(tool: &str, input: Value) -> Call {
        Call { tool: tool.into(), input }
    }

    /// A Bash call.
    pub fn bash(command: &str) -> Call {
        Call::new("Bash", json!({"command": command, "description": "one step of the script"}))
    }
}

/// One turn of the model.
#[derive(Clone, Debug)]
pub enum Step {
    /// Text, which ends the host's turn.
    Text(String),
    /// Tool calls, all in one turn.
    Calls(Vec<Call>),
    /// An HTTP error.
    Error(u16),
}

impl Step {
    /// One Bash call.
    pub fn bash(command: &str) -> Step {
        Step::Calls(vec![Call::bash(command)])
    }

    /// The text that ends a session.
    pub fn done() -> Step {
        Step::Text("done".into())
    }
}

/// What the model says, turn by turn.
#[derive(Clone, Debug, Default)]
pub struct Script {
    steps: Vec<Step>,
    special: Vec<(String, Vec<Step>)>,
}

impl Script {
    /// A script for every conversation.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Script {
        Script { steps: steps.into_iter().collect(), special: Vec::new() }
    }

    /// Another script for conversations that hold `text` (a subagent's prompt, say). The first that fits is used.
    pub fn when(mut self, text: &str, steps: impl IntoIterator<Item = Step>) -> Script {
        self.special.push((text.into(), steps.into_iter().collect()));
        self
    }

    fn step(&self, body: &Value) -> Step {
        let offers_tools = body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
        if !offers_tools {
            return Step::Text("ok".into());
        }
        let conversation = body["messages"].to_string();
        let special = self.special.iter().find(|(text, _)| conversation.contains(text.as_str()));
        let steps = special.map_or(&self.steps, |(_, steps)| steps);
        steps.get(turns(body)).cloned().unwrap_or_else(|| Step::Text("the script is over".into()))
    }
}

/// Assistant turns with tool calls so far.
fn turns(body: &Value) -> usize {
    let uses_tool = |message: &&Value| {
        let blocks = message["content"].as_array();
        message["role"] == "assistant" && blocks.is_some_and(|blocks| blocks.iter().any(|b| b["type"] == "tool_use"))
    };
    body["messages"].as_array().map_or(0, |messages| messages.iter().filter(uses_tool).count())
}

/// A request that the server got.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method and path with query.
    pub target: String,
    /// Its JSON body; null when there was none.
    pub body: Value,
}

impl Request {
    /// Every tool result in the conversation, as `(tool_use_id, is_error, text)`.
    pub fn tool_results(&self) -> Vec<(String, bool, String)> {
        let messages = self.body["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
        let results = blocks.filter(|block| block["type"] == "tool_result");
        let text = |content: &Value| match content {
            Value::String(text) => text.clone(),
            Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n"),
            other => other.to_string(),
        };
        results
            .map(|block| {
                let id = block["tool_use_id"].as_str().unwrap_or_default().to_owned();
                (id, block["is_error"].as_bool().unwrap_or(false), text(&block["content"]))
            })
            .collect()
    }
}

struct Shared {
    script: Script,
    requests: Mutex<VecDeque<Request>>,
    open: Mutex<Vec<TcpStream>>,
    stopping: AtomicBool,
    ids: AtomicU64,
}

/// The running server. It ends when dropped.
pub struct Model {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Model {
    /// Listens on a free loopback port.
    ///
    /// # Errors
    /// When no loopback port can be had.
    pub fn start(script: Script) -> io::Result<Model> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script,
            requests: Mutex::default(),
            open: Mutex::default(),
            stopping: AtomicBool::new(false),
            ids: AtomicU64::new(u64::from(address.port()) << 32),
        });
        let for_acceptor = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || accept(&listener, &for_acceptor));
        Ok(Model { address, shared, acceptor: Some(acceptor) })
    }

    /// `http://127.0.0.1:PORT`, for `ANTHROPIC_BASE_URL`.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What was asked so far.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).iter().cloned().collect()
    }

    /// The tool results of the longest conversation so far: what the host reported of each call.
    pub fn tool_results(&self) -> Vec<(String, bool, String)> {
        let longest = self.requests().into_iter().map(|request| request.tool_results()).max_by_key(Vec::len);
        longest.unwrap_or_default()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor; whether it succeeds is of no interest.
        let _ = TcpStream::connect(self.address);
        for stream in lock(&self.shared.open).drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
        if let Ok(copy) = stream.try_clone() {
            let mut open = lock(&shared.open);
            open.retain(|one| one.peer_addr().is_ok());
            open.push(copy);
        }
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            // A host that goes away in the middle of an answer is its own business. The end of an event stream is the end of
            // the connection, which the copy above would keep open.
            let _ = wire::answer(&stream, &shared);
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_follows_from_the_conversation() {
        let script = Script::new([Step::bash("one"), Step::bash("two")]).when("subagent", [Step::Text("sub".into())]);
        let tools = json!([{"name": "Bash"}]);
        let turn = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]});
        let user = json!({"role": "user", "content": "go"});
        let command = |step: Step| match step {
            Step::Calls(calls) => calls[0].input["command"].as_str().unwrap().to_owned(),
            Step::Text(text) => format!("text {text}"),
            Step::Error(status) => format!("error {status}"),
        };
        let asked = |messages: Value| command(script.step(&json!({"tools": tools, "messages": messages})));
        assert_eq!(asked(json!([user])), "one");
        assert_eq!(asked(json!([user])), "one", "a retry does not shift the script");
        assert_eq!(asked(json!([user, turn])), "two");
        assert_eq!(asked(json!([user, turn, turn])), "text the script is over");
        assert_eq!(asked(json!([{"role": "user", "content": "you are a subagent"}])), "text sub");
        assert_eq!(command(script.step(&json!({"messages": [user]}))), "text ok", "no tools, a side request");
    }
}
