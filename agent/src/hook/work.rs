//! One hook call: read, decode, ask, answer. Nothing of the input outlives it.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;

use super::arguments::Invocation;
use super::trial::Trial;
use super::{Bounds, alone, gaps};
use crate::clock::{boottime_ms, left_until, realtime_ms};
use crate::host::claude_code::answer::Answer;
use crate::host::claude_code::config_change::{self, Installed};
use crate::host::claude_code::settings::ADAPTER;
use crate::host::claude_code::{Claim, DecodeError, EventName, decode_value};
use crate::host::{HostEvent, HostEventKind, ToolUse};
use crate::ipc::hook::{AskError, Envelope, GapCause, PROTOCOL_VERSION, Reply, RequestKind, ask};
use crate::ipc::{json, limits};
use crate::places::{PlaceError, Places};
use crate::policy::judge::Outcome;

/// How long the host may take to write its input, in milliseconds.
const INPUT_MS: u64 = 10_000;
/// How long the service may take over the news of a gap, in milliseconds.
const TELL_MS: u64 = 300;

/// Why the host's input could not be taken in.
#[derive(Debug, thiserror::Error)]
enum InputError {
    #[error("it is larger than {} bytes", limits::FRAME_BYTES)]
    TooLarge,
    #[error("the host did not finish writing it in time")]
    Late,
    #[error("it could not be read from stdin")]
    Io,
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("it is of another event than this hook is installed for")]
    OtherEvent,
}

/// What every step of a call may look at.
pub(super) struct Call<'a> {
    pub(super) invocation: &'a Invocation,
    pub(super) places: Result<Places, PlaceError>,
    pub(super) deadline_ms: u64,
}

/// Answers one hook call on stdin. `started_ms` is when the program started, by CLOCK_BOOTTIME.
pub fn answer(invocation: &Invocation, trial: &Trial, started_ms: u64) -> Answer {
    trial.strike();
    let deadline = |event| started_ms + trial.bounds(Bounds::of(event)).child.as_millis() as u64;
    let mut call = Call { invocation, places: Places::of_this_user(), deadline_ms: deadline(invocation.event) };
    let value = match read_input(call.deadline_ms.min(started_ms + INPUT_MS)) {
        Ok(value) => value,
        Err(error) => return unreadable(&call, Claim::Nothing, &error),
    };
    let event = match decode_value(&value) {
        Ok(event) => event,
        Err(error) => return unreadable(&call, error.claim, &error.error.into()),
    };
    let name = name_of(&event.kind);
    if invocation.event.is_some_and(|installed| installed != name) {
        return unreadable(&call, Claim::Event(name), &InputError::OtherEvent);
    }
    call.deadline_ms = deadline(Some(name));
    match &event.kind {
        HostEventKind::ToolCall(tool) => tool_call(&call, &event, tool, value),
        HostEventKind::ConfigChange { source, file } => {
            config_change(&call, &event, source, file.as_deref().map(Path::new), value)
        }
        HostEventKind::SessionStart { .. }
        | HostEventKind::SessionEnd { .. }
        | HostEventKind::Prompt { .. }
        | HostEventKind::ToolDone { .. }
        | HostEventKind::ToolFailed { .. }
        | HostEventKind::SubagentStart { .. }
        | HostEventKind::SubagentStop { .. }
        | HostEventKind::CwdChanged { .. } => told(&call, &event, value),
    }
}

/// The one call that is decided.
fn tool_call(call: &Call<'_>, event: &HostEvent, tool: &ToolUse, payload: Value) -> Answer {
    match asked(call, payload) {
        Ok(Reply { decision, reason_code, explanation, .. }) => {
            Answer::of(EventName::PreToolUse, decision, &reason_code, &explanation)
        }
        Err(absence) => {
            let decision = alone::decide(call, event, tool, &absence);
            gaps::leave(call, gaps::of_call(absence.cause(), event, tool, &decision));
            Answer::of(EventName::PreToolUse, decision.outcome, &decision.reason_code, &decision.explanation)
        }
    }
}

/// A change of settings is judged here, by the file itself; the service is told either way.
fn config_change(call: &Call<'_>, event: &HostEvent, source: &str, file: Option<&Path>, payload: Value) -> Answer {
    let installed = std::env::current_exe().map(|hook| Installed { scope: call.invocation.scope, hook });
    let refusal = match installed {
        Ok(installed) => config_change::inspect(source, file, &installed).err().map(|refusal| refusal.to_string()),
        Err(_) => Some("the hook cannot find its own file to compare the settings with".to_owned()),
    };
    let answered = asked(call, payload);
    let Some(refusal) = refusal else {
        return match answered {
            Ok(Reply { decision, reason_code, explanation, .. }) => {
                Answer::of(EventName::ConfigChange, decision, &reason_code, &explanation)
            }
            Err(absence) => {
                gaps::leave(call, gaps::of_event(absence.cause(), event, Outcome::NoOverride, "none"));
                Answer::no_override()
            }
        };
    };
    gaps::leave(call, gaps::of_event(GapCause::SettingsChange, event, Outcome::Deny, "TR-POLICY-TAMPER"));
    Answer::deny("TR-POLICY-TAMPER", &refusal)
}

/// An event that only tells. It never stops the host, whatever becomes of the telling. The answer is waited for, if not
/// for long: a hook that was gone already could not be told from anybody else's process.
fn told(call: &Call<'_>, event: &HostEvent, payload: Value) -> Answer {
    if let Err(absence) = asked(call, payload) {
        gaps::leave(call, gaps::of_event(absence.cause(), event, Outcome::NoOverride, "none"));
    }
    Answer::no_override()
}

/// Why the service did not decide.
#[derive(Debug)]
pub(super) enum Absence {
    /// It is not known where to ask.
    Places,
    /// This process could not make a request.
    Random,
    /// It was asked.
    Ask(AskError),
}

impl Absence {
    pub(super) fn cause(&self) -> GapCause {
        match self {
            Absence::Places => GapCause::NoPlaces,
            Absence::Ask(AskError::Down) => GapCause::ServiceDown,
            Absence::Ask(AskError::Blocked) => GapCause::BlockedByHostSandbox,
            Absence::Ask(AskError::Full) => GapCause::ServiceFull,
            Absence::Ask(AskError::TimedOut) => GapCause::ServiceLate,
            Absence::Ask(AskError::Refused(_)) => GapCause::ServiceRefused,
            Absence::Ask(AskError::WrongPeer(_)) => GapCause::ServiceUntrusted,
            Absence::Ask(AskError::TooLarge(_)) => GapCause::InputUnreadable,
            Absence::Random | Absence::Ask(AskError::Vanished | AskError::Protocol(_) | AskError::Io(_)) => {
                GapCause::ServiceConfused
            }
        }
    }
}

fn asked(call: &Call<'_>, payload: Value) -> Result<Reply, Absence> {
    let (socket, mut envelope) = request(call, RequestKind::HookEvent, payload)?;
    let first = ask(&socket, &envelope, call.deadline_ms);
    let reply = match first {
        // What a tool gave back is of no use to the service: without it the news that it ended still fits.
        Err(AskError::TooLarge(_)) if drop_output(&mut envelope.host_payload) => {
            ask(&socket, &envelope, call.deadline_ms)
        }
        other => other,
    };
    let reply = reply.map_err(Absence::Ask)?;
    // The socket's deadline does not count a suspend; this one does.
    if left_until(call.deadline_ms).is_none() && reply.decision == Outcome::NoOverride {
        return Err(Absence::Ask(AskError::TimedOut));
    }
    Ok(reply)
}

fn drop_output(payload: &mut Value) -> bool {
    payload.as_object_mut().is_some_and(|fields| fields.remove("tool_response").is_some())
}

/// Where to send a request, and the request.
fn request(call: &Call<'_>, kind: RequestKind, payload: Value) -> Result<(PathBuf, Envelope), Absence> {
    let places = call.places.as_ref().map_err(|_| Absence::Places)?;
    // Straight from the kernel: the crates for it look the call up at run time, which a static program cannot, and then
    // keep the device open.
    let mut random = [0; 26];
    File::open("/dev/urandom").and_then(|mut device| device.read_exact(&mut random)).map_err(|_| Absence::Random)?;
    let (nonce, id) = random.split_first_chunk::<16>().ok_or(Absence::Random)?;
    let id = id.try_into().map_err(|_| Absence::Random)?;
    let envelope = Envelope {
        protocol_version: PROTOCOL_VERSION,
        request_id: uuid::Builder::from_unix_timestamp_millis(realtime_ms(), id).into_uuid().to_string(),
        request_kind: kind,
        adapter: ADAPTER.to_owned(),
        adapter_version: env!("CARGO_PKG_VERSION").to_owned(),
        received_at_ms: realtime_ms(),
        hard_deadline_ms: call.deadline_ms,
        host_version: None,
        invocation_nonce: nonce.iter().map(|byte| format!("{byte:02x}")).collect(),
        host_payload: payload,
    };
    Ok((places.hook_socket(), envelope))
}

/// Tells the service of a gap; gives whether it took the message.
pub(super) fn tell_gap(call: &Call<'_>, gap: Value) -> bool {
    let soon = call.deadline_ms.min(boottime_ms() + TELL_MS);
    request(call, RequestKind::Gap, gap).is_ok_and(|(socket, envelope)| ask(&socket, &envelope, soon).is_ok())
}

/// Input that could not be read is answered for what it claims to be, and for what the hook is installed for.
fn unreadable(call: &Call<'_>, claim: Claim, error: &InputError) -> Answer {
    let closed = match (call.invocation.event, claim) {
        (Some(installed), Claim::Nothing) => installed.fails_closed(),
        // A tool call that is readable as far as its tool: what that tool can do decides.
        (_, Claim::ToolCall(_)) | (None, _) => claim.fails_closed(),
        (Some(installed), Claim::Event(_) | Claim::OtherEvent { .. }) => {
            installed.fails_closed() || claim.fails_closed()
        }
    };
    let outcome = if closed { Outcome::Deny } else { Outcome::NoOverride };
    gaps::leave(call, gaps::of_unreadable(call.invocation.event, claim, outcome));
    match outcome {
        Outcome::Deny => Answer::deny("inspection_incomplete", &format!("the hook's input was not read: {error}")),
        Outcome::NoOverride => Answer::no_override(),
    }
}

/// Reads stdin to its end, but never more than a frame and never after `until_ms`.
fn read_input(until_ms: u64) -> Result<Value, InputError> {
    let mut stdin = std::io::stdin().lock();
    let mut input = Vec::with_capacity(8 << 10);
    let mut chunk = vec![0; 64 << 10];
    loop {
        let left = left_until(until_ms).ok_or(InputError::Late)?;
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)], wait) {
            Ok(0) => return Err(InputError::Late),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => return Err(InputError::Io),
        }
        match stdin.read(&mut chunk) {
            Ok(0) => return Ok(json::parse(&input, limits::JSON_DEPTH).map_err(DecodeError::from)?),
            Ok(read) if input.len() + read > limits::FRAME_BYTES => return Err(InputError::TooLarge),
            Ok(read) => input.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return Err(InputError::Io),
        }
    }
}

/// The host's name of what happened.
pub(super) fn name_of(kind: &HostEventKind) -> EventName {
    match kind {
        HostEventKind::SessionStart { .. } => EventName::SessionStart,
        HostEventKind::SessionEnd { .. } => EventName::SessionEnd,
        HostEventKind::Prompt { .. } => EventName::UserPromptSubmit,
        HostEventKind::ToolCall(_) => EventName::PreToolUse,
        HostEventKind::ToolDone { .. } => EventName::PostToolUse,
        HostEventKind::ToolFailed { .. } => EventName::PostToolUseFailure,
        HostEventKind::SubagentStart { .. } => EventName::SubagentStart,
        HostEventKind::SubagentStop { .. } => EventName::SubagentStop,
        HostEventKind::ConfigChange { .. } => EventName::ConfigChange,
        HostEventKind::CwdChanged { .. } => EventName::CwdChanged,
    }
}
