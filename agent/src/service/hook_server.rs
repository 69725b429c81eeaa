//! `hook.sock`: accepts hooks and launchers, bounds them, and hands their frames to the pipeline.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::ipc::hook::{self, Reply};
use crate::ipc::{frame, limits};
use crate::pipeline::Pipeline;
use crate::policy::judge::Outcome;
use crate::service::callers::Arrival;

/// Connections at once. Beyond it a peer is told `queue_full`, which denies executing and mutating calls.
const MOST_CONNECTIONS: usize = 256;
/// Connections at once of one peer process.
const MOST_OF_ONE_PEER: usize = 8;
/// Connections at once of all confined processes together: fenced commands cannot take the hooks' places.
const MOST_CONFINED: usize = 16;
/// For a whole frame, in or out.
const FRAME_TIME: Duration = Duration::from_secs(2);

/// Request id and nonce.
type RequestKey = (String, String);
/// The answer, once it is there.
type Pending = watch::Receiver<Option<Reply>>;

/// Whose limit a connection counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Seat {
    /// Any confined process, or one that is gone already.
    Confined,
    /// One process.
    Process(u32),
}

impl Seat {
    fn of(arrival: &Arrival) -> Seat {
        match arrival.confined {
            true => Seat::Confined,
            false => Seat::Process(arrival.pid),
        }
    }
}

/// The server's shared state.
pub struct HookServer {
    pipeline: Rc<Pipeline>,
    connections: Cell<usize>,
    by_peer: RefCell<HashMap<Seat, usize>>,
    /// Requests that are being answered: a duplicate waits on the same answer.
    pending: RefCell<HashMap<RequestKey, Pending>>,
}

impl HookServer {
    /// A server in front of `pipeline`.
    pub fn new(pipeline: Rc<Pipeline>) -> Rc<HookServer> {
        Rc::new(HookServer {
            pipeline,
            connections: Cell::new(0),
            by_peer: RefCell::default(),
            pending: RefCell::default(),
        })
    }

    /// Accepts until dropped.
    pub async fn serve(self: Rc<Self>, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let server = Rc::clone(&self);
                    tokio::task::spawn_local(async move { server.connection(stream).await });
                }
                // Out of descriptors: those that are open will end, and the queue in the kernel keeps the rest.
                Err(error) => {
                    tracing::warn!("hook.sock: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    async fn connection(self: Rc<Self>, mut stream: UnixStream) {
        let began = std::time::Instant::now();
        let Some(arrival) = Arrival::of(&stream) else { return self.pipeline.note_refusal("foreign_uid") };
        let Some(_place) = Place::take(&self, Seat::of(&arrival)) else {
            self.pipeline.note_refusal("queue_full");
            let reply =
                hook::refusal_reply("", Outcome::Deny, "queue_full", "Ringfence is answering too many calls at once");
            return send(&mut stream, &reply).await;
        };
        let frame = match frame::read_async(&mut stream, limits::FRAME_BYTES, FRAME_TIME).await {
            Ok(frame) => frame,
            Err(frame::FrameError::Vanished) => return,
            Err(error) => {
                self.pipeline.note_refusal("protocol");
                let reply = hook::refusal_reply("", Outcome::Deny, "protocol", &error.to_string());
                return send(&mut stream, &reply).await;
            }
        };
        if let Some(reply) = self.answer(&frame, &arrival).await {
            send(&mut stream, &reply).await;
            self.pipeline.metrics.hook_seconds.observe(began.elapsed().as_secs_f64());
        }
    }

    /// Answers a frame; the duplicate of a pending request gets the answer of the first.
    async fn answer(&self, frame: &[u8], arrival: &Arrival) -> Option<Reply> {
        let Some(key) = hook::request_key(frame) else { return self.pipeline.hook_frame(frame, arrival).await };
        let waiting = self.pending.borrow().get(&key).cloned();
        if let Some(mut first) = waiting {
            let reply = first.wait_for(Option::is_some).await.ok()?;
            return reply.clone();
        }
        let (tell, told) = watch::channel(None);
        self.pending.borrow_mut().insert(key.clone(), told);
        let reply = self.pipeline.hook_frame(frame, arrival).await;
        self.pending.borrow_mut().remove(&key);
        tell.send_replace(reply.clone());
        reply
    }
}

/// A peer that vanished or is slow loses its answer: the hook's own guard denies then.
async fn send(stream: &mut UnixStream, reply: &Reply) {
    let Ok(body) = serde_json::to_vec(reply) else { return };
    if let Err(error) = frame::write_async(stream, &body, limits::REPLY_BYTES, FRAME_TIME).await {
        tracing::debug!("an answer was not taken: {error}");
    }
}

/// One connection's place in the limits, given back when it ends.
struct Place<'a> {
    server: &'a HookServer,
    key: Seat,
}

impl<'a> Place<'a> {
    fn take(server: &'a HookServer, key: Seat) -> Option<Place<'a>> {
        let mut by_peer = server.by_peer.borrow_mut();
        let of_peer = by_peer.get(&key).copied().unwrap_or(0);
        let most = match key {
            Seat::Confined => MOST_CONFINED,
            Seat::Process(_) => MOST_OF_ONE_PEER,
        };
        if server.connections.get() >= MOST_CONNECTIONS || of_peer >= most {
            return None;
        }
        by_peer.insert(key, of_peer + 1);
        server.connections.set(server.connections.get() + 1);
        server.pipeline.metrics.queue_depth.with_label_values(&["hook"]).set(server.connections.get() as i64);
        Some(Place { server, key })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut by_peer = self.server.by_peer.borrow_mut();
        if let Some(count) = by_peer.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                by_peer.remove(&self.key);
            }
        }
        let left = self.server.connections.get() - 1;
        self.server.connections.set(left);
        self.server.pipeline.metrics.queue_depth.with_label_values(&["hook"]).set(left as i64);
    }
}
