//! The service's side of `hook.sock`: a frame becomes an envelope, or says exactly why it does not.
#![forbid(unsafe_code)]

use serde::Deserialize;
use serde_json::Value;

use super::{Envelope, PROTOCOL_VERSION, Reply};
use crate::ipc::json::{self, JsonError};
use crate::ipc::limits;
use crate::policy::judge::{DecisionSource, Outcome};

/// Longest id or version text in an envelope, in bytes.
const WORD_BYTES: usize = 64;
/// Length of a nonce: 128 bits in hex.
const NONCE_CHARS: usize = 32;

/// Why a frame is no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Not JSON within the limits.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// JSON, but not an object.
    #[error("the frame is not a JSON object")]
    NotAnObject,
    /// No version, or one that is no number.
    #[error("the frame does not say which version of the protocol it speaks")]
    NoVersion,
    /// A version that is not spoken here.
    #[error(
        "version {got} of the protocol is not spoken here (this is {PROTOCOL_VERSION}): install one release of all programs"
    )]
    UnknownVersion {
        /// What the frame said.
        got: u64,
    },
    /// A field is missing, unknown, or of another type.
    #[error("the frame is not of the form of a request")]
    Form,
    /// A field has the right type and a value it may not have.
    #[error("{0} in the frame is empty, too long or has characters that it may not have")]
    Value(&'static str),
}

/// Whether `version` is this build's or the one before it.
pub(super) fn speaks(version: u32) -> bool {
    spoken_by(PROTOCOL_VERSION, version)
}

fn spoken_by(current: u32, version: u32) -> bool {
    // There is no version 0.
    version > 0 && (version == current || version.checked_add(1) == Some(current))
}

/// Reads a frame of at most [`limits::FRAME_BYTES`].
pub fn decode_request(frame: &[u8]) -> Result<Envelope, RequestError> {
    let value = json::parse(frame, limits::JSON_DEPTH)?;
    let Value::Object(object) = &value else { return Err(RequestError::NotAnObject) };
    // The version first: another version's envelope may have other fields.
    let version = object.get("protocol_version").and_then(Value::as_u64).ok_or(RequestError::NoVersion)?;
    if !u32::try_from(version).is_ok_and(speaks) {
        return Err(RequestError::UnknownVersion { got: version });
    }
    let envelope: Envelope = serde_json::from_value(value).map_err(|_| RequestError::Form)?;
    check(&envelope)?;
    Ok(envelope)
}

fn check(envelope: &Envelope) -> Result<(), RequestError> {
    let Envelope {
        protocol_version: _,
        request_id,
        request_kind: _,
        adapter,
        adapter_version,
        received_at_ms: _,
        hard_deadline_ms: _,
        host_version,
        invocation_nonce,
        host_payload,
    } = envelope;
    let words = [
        ("request_id", Some(request_id)),
        ("adapter", Some(adapter)),
        ("adapter_version", Some(adapter_version)),
        ("host_version", host_version.as_ref()),
    ];
    for (name, word) in words {
        if word.is_some_and(|word| !is_word(word)) {
            return Err(RequestError::Value(name));
        }
    }
    if invocation_nonce.len() != NONCE_CHARS || !invocation_nonce.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(RequestError::Value("invocation_nonce"));
    }
    if !host_payload.is_object() {
        return Err(RequestError::Value("host_payload"));
    }
    Ok(())
}

fn is_word(word: &str) -> bool {
    (1..=WORD_BYTES).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._+".contains(&b))
}

/// Request id and nonce of a frame, if it has them: what makes one a duplicate of a pending one.
pub fn request_key(frame: &[u8]) -> Option<(String, String)> {
    #[derive(Deserialize)]
    struct Key {
        request_id: String,
        invocation_nonce: String,
    }
    let Key { request_id, invocation_nonce } = serde_json::from_slice(frame).ok()?;
    (is_word(&request_id) && invocation_nonce.len() == NONCE_CHARS).then_some((request_id, invocation_nonce))
}

/// What a peer is told whose request is not taken up. `request_id` is empty when it was not read.
pub fn refusal_reply(request_id: &str, outcome: Outcome, reason_code: &str, explanation: &str) -> Reply {
    Reply {
        protocol_version: PROTOCOL_VERSION,
        request_id: request_id.to_owned(),
        decision: outcome,
        reason_code: reason_code.to_owned(),
        explanation: explanation.to_owned(),
        finding_id: None,
        decision_source: DecisionSource::Fallback,
        coverage_class: "unknown".to_owned(),
        execution_observed: "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::RequestKind;
    use super::*;

    fn request() -> Value {
        json!({
            "protocol_version": PROTOCOL_VERSION,
            "request_id": "0198c5b6-9c3a-7000-8000-000000000001",
            "request_kind": "hook_event",
            "adapter": "claude-code",
            "adapter_version": "0.1.0",
            "received_at_ms": 1,
            "hard_deadline_ms": 2,
            "host_version": null,
            "invocation_nonce": "0123456789abcdef0123456789abcdef",
            "host_payload": {"n": serde_json::from_str::<Value>("1e999").unwrap()},
        })
    }

    fn error(change: impl FnOnce(&mut Value)) -> RequestError {
        let mut value = request();
        change(&mut value);
        decode_request(value.to_string().as_bytes()).unwrap_err()
    }

    #[test]
    fn a_request_comes_through_whole() {
        let envelope = decode_request(request().to_string().as_bytes()).unwrap();
        assert_eq!(envelope.request_kind, RequestKind::HookEvent);
        assert_eq!(envelope.host_payload["n"].to_string(), "1e+999");
        let again = serde_json::to_vec(&envelope).unwrap();
        assert_eq!(decode_request(&again).unwrap().host_payload, envelope.host_payload);
        let key = request_key(&again).unwrap();
        assert_eq!(key, (envelope.request_id, envelope.invocation_nonce));
    }

    #[test]
    fn this_version_and_the_one_before_are_spoken() {
        assert!(spoken_by(7, 7) && spoken_by(7, 6));
        for other in [0, 5, 8, u32::MAX] {
            assert!(!spoken_by(7, other), "{other}");
        }
        assert!(!spoken_by(1, 0), "there never was a version 0");
        for version in [json!(0), json!(PROTOCOL_VERSION + 1), json!(u64::MAX)] {
            let got = version.as_u64().unwrap();
            assert_eq!(error(|v| v["protocol_version"] = version), RequestError::UnknownVersion { got });
        }
        for version in [json!("1"), json!(1.5), json!(-1), json!(null)] {
            assert_eq!(error(|v| v["protocol_version"] = version), RequestError::NoVersion);
        }
    }

    #[test]
    fn each_fault_is_its_own() {
        for field in ["request_id", "adapter", "host_payload", "received_at_ms", "invocation_nonce", "request_kind"] {
            assert_eq!(error(|v| drop(v.as_object_mut().unwrap().remove(field))), RequestError::Form, "{field}");
            assert!(error(|v| v[field] = json!([[]])).to_string().contains("frame"));
        }
        assert_eq!(error(|v| v["approve"] = json!(true)), RequestError::Form);
        assert_eq!(error(|v| v["request_kind"] = json!("approve")), RequestError::Form);
        for id in ["", "a b", "../x", "a\n", &"x".repeat(65)] {
            assert_eq!(error(|v| v["request_id"] = json!(id)), RequestError::Value("request_id"), "{id:?}");
        }
        for nonce in ["", "xyz", "0123456789abcdef0123456789abcde", "0123456789abcdef0123456789abcdeg"] {
            assert_eq!(error(|v| v["invocation_nonce"] = json!(nonce)), RequestError::Value("invocation_nonce"));
        }
        assert_eq!(error(|v| v["host_payload"] = json!(1)), RequestError::Value("host_payload"));
        assert_eq!(decode_request(b"[]").unwrap_err(), RequestError::NotAnObject);
        assert_eq!(decode_request(b"").unwrap_err(), RequestError::Json(JsonError::Empty));
        assert!(matches!(
            decode_request("[".repeat(9000).as_bytes()),
            Err(RequestError::Json(JsonError::TooDeep { .. }))
        ));
        assert!(matches!(decode_request(&[b' '; 2 << 20]), Err(RequestError::Json(JsonError::TooLarge { .. }))));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_frame_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..400) {
            let _ = decode_request(&bytes);
            let _ = request_key(&bytes);
            let text = request().to_string();
            let _ = decode_request(&text.as_bytes()[..cut.min(text.len())]);
        }
    }
}
