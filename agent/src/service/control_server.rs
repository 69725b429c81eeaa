//! `control.sock`: what a person asks. An agent must never be able to ask for a change.
#![forbid(unsafe_code)]

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::person::Person;
use crate::ipc::control::{ANSWER_BYTES, Answer, Ask, ControlRequest, PROTOCOL_VERSION, Refusal};
use crate::ipc::peer::Peer;
use crate::ipc::{frame, json, limits};

/// Connections at once.
const MOST_CONNECTIONS: usize = 32;
/// For a whole frame, in or out.
const FRAME_TIME: Duration = Duration::from_secs(5);

/// Accepts until dropped.
pub async fn serve(listener: UnixListener, person: Rc<Person>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let person = Rc::clone(&person);
                tokio::task::spawn_local(async move {
                    let _place = place;
                    connection(stream, &person).await;
                });
            }
            Err(error) => {
                tracing::warn!("control.sock: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(mut stream: UnixStream, person: &Person) {
    let answer = match request(&mut stream).await {
        Ok(None) => return,
        Ok(Some(ask)) => match Peer::of(&stream) {
            Ok(peer) => person.answer(ask, &peer).await,
            Err(error) => refused(Refusal::AgentPeer, error.to_string()),
        },
        Err(reason) => refused(Refusal::Protocol, reason),
    };
    let body = match serde_json::to_vec(&answer) {
        Ok(body) if body.len() <= ANSWER_BYTES => body,
        _ => serde_json::to_vec(&refused(Refusal::Failed, "the answer is too large: ask for less".into()))
            .unwrap_or_default(),
    };
    if let Err(error) = frame::write_async(&mut stream, &body, ANSWER_BYTES, FRAME_TIME).await {
        tracing::debug!("an answer was not taken: {error}");
    }
}

async fn request(stream: &mut UnixStream) -> Result<Option<Ask>, String> {
    let bytes = match frame::read_async(stream, limits::FRAME_BYTES, FRAME_TIME).await {
        Ok(bytes) => bytes,
        Err(frame::FrameError::Vanished) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let value = json::parse(&bytes, limits::JSON_DEPTH).map_err(|error| error.to_string())?;
    let version = value.get("protocol_version").and_then(serde_json::Value::as_u64);
    if version != Some(u64::from(PROTOCOL_VERSION)) {
        return Err(format!(
            "this service speaks control protocol {PROTOCOL_VERSION}: are CLI and service of one version?"
        ));
    }
    let request: ControlRequest = serde_json::from_value(value).map_err(|error| error.to_string())?;
    Ok(Some(request.ask))
}

/// A refusal with its reason.
pub fn refused(kind: Refusal, reason: String) -> Answer {
    Answer::Refused { kind, reason }
}
