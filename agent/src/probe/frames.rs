//! Protocol values as bytes and back: the one module that knows bincode.
//!
//! Decoding is bounded (a length inside a frame cannot ask for more memory than [`DECODED_BYTES`]) and strict: bytes
//! that are left over after a value mean that the two sides do not speak the same protocol.
#![forbid(unsafe_code)]

use bincode::config::{Configuration, Limit, standard};
use bincode::error::DecodeError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::protocol::{Observation, Response};
use crate::ipc::limits::FRAME_BYTES;

/// Most that one decoded value may claim, in bytes: above [`FRAME_BYTES`], since small numbers are packed in a frame.
pub const DECODED_BYTES: usize = 8 << 20;

type Bounded = Configuration<bincode::config::LittleEndian, bincode::config::Varint, Limit<DECODED_BYTES>>;

const FORMAT: Bounded = standard().with_limit::<DECODED_BYTES>();

/// Why bytes and values do not go together.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The bytes are no such value: the other side speaks another version, or is no probe.
    #[error("malformed: {0}")]
    Malformed(String),
    /// A length inside the frame claims more than [`DECODED_BYTES`].
    #[error("a length inside the frame claims more than {DECODED_BYTES} bytes")]
    TooLarge,
    /// A value, and then more.
    #[error("{0} bytes are left over after the message")]
    Trailing(usize),
    /// The value does not fit one frame.
    #[error("the message has {0} bytes, over the limit of {FRAME_BYTES}")]
    DoesNotFit(usize),
    /// The value cannot be written at all.
    #[error("cannot be encoded: {0}")]
    Unencodable(String),
}

/// A value as the body of one frame.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    let bytes = bincode::serde::encode_to_vec(value, FORMAT).map_err(|e| CodecError::Unencodable(e.to_string()))?;
    if bytes.len() > FRAME_BYTES { Err(CodecError::DoesNotFit(bytes.len())) } else { Ok(bytes) }
}

/// The value that the body of one frame holds, all of it.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, CodecError> {
    let (value, read) = bincode::serde::decode_from_slice(body, FORMAT).map_err(|error| match error {
        DecodeError::LimitExceeded => CodecError::TooLarge,
        other => CodecError::Malformed(other.to_string()),
    })?;
    match body.len() - read {
        0 => Ok(value),
        left => Err(CodecError::Trailing(left)),
    }
}

/// Observations as the bodies of as few frames as they need, in order.
/// An observation that fits no frame is left out and counted in the second value: no known kind can be that large.
pub fn encode_observations(observations: Vec<Observation>) -> (Vec<Vec<u8>>, usize) {
    let mut bodies = Vec::new();
    let mut left_out = 0;
    let mut waiting = vec![observations];
    while let Some(mut batch) = waiting.pop() {
        if batch.is_empty() {
            continue;
        }
        let response = Response::Observations(batch);
        match encode(&response) {
            Ok(body) => bodies.push(body),
            Err(_) => {
                let Response::Observations(taken) = response else { continue };
                batch = taken;
                if batch.len() == 1 {
                    left_out += 1;
                } else {
                    let second = batch.split_off(batch.len() / 2);
                    waiting.push(second);
                    waiting.push(batch);
                }
            }
        }
    }
    (bodies, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::protocol::{Bytes, FileId, Mark, ObservationKind, Request, Role};
    use crate::process::ProcessId;

    fn exec(argv_bytes: usize, time_ns: u64) -> Observation {
        Observation {
            time_ns,
            mark: Mark { session: 7, launch: 9, generation: 1, role: Role::Launched },
            process: ProcessId { pid: 4_000_000, start: u64::MAX },
            thread: 4_000_001,
            kind: ObservationKind::Exec {
                parent: ProcessId { pid: 1, start: 2 },
                filename: Bytes { bytes: b"/bin/true".to_vec(), truncated: false },
                file: FileId { device: 1, inode: 2, generation: 3 },
                path: Bytes { bytes: b"/usr/bin/true".to_vec(), truncated: false },
                argv: Bytes { bytes: vec![0xff; argv_bytes], truncated: true },
                anonymous: false,
            },
        }
    }

    #[test]
    fn values_come_back_as_they_were() {
        let request = Request::PublishPlan { name: "1.2/session.plan".into(), plan: vec![0, 255, 251, 250] };
        assert_eq!(decode::<Request>(&encode(&request).unwrap()).unwrap(), request);
        let response = Response::Observations(vec![exec(5, 1), exec(0, 2)]);
        assert_eq!(decode::<Response>(&encode(&response).unwrap()).unwrap(), response);
    }

    #[test]
    fn bytes_left_over_are_refused() {
        let mut body = encode(&Request::Status).unwrap();
        body.push(0);
        assert!(matches!(decode::<Request>(&body), Err(CodecError::Trailing(1))));
    }

    #[test]
    fn every_cut_of_a_message_is_malformed() {
        let body = encode(&Response::Observations(vec![exec(300, 1)])).unwrap();
        for end in 0..body.len() {
            assert!(decode::<Response>(&body[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn a_claimed_length_does_not_become_memory() {
        // PublishPlan with a name whose length says 2⁶³.
        let variant = encode(&Request::PublishPlan { name: String::new(), plan: vec![] }).unwrap()[0];
        let mut body = vec![variant, 253];
        body.extend_from_slice(&(1u64 << 63).to_le_bytes());
        assert!(matches!(decode::<Request>(&body), Err(CodecError::TooLarge | CodecError::Malformed(_))));
        let variant = encode(&Response::Observations(vec![])).unwrap()[0];
        let mut body = vec![variant, 252];
        body.extend_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(decode::<Response>(&body), Err(CodecError::TooLarge | CodecError::Malformed(_))));
    }

    #[test]
    fn an_unknown_variant_is_malformed() {
        assert!(matches!(decode::<Request>(&[200]), Err(CodecError::Malformed(_))));
        assert!(matches!(decode::<Request>(&[]), Err(CodecError::Malformed(_))));
    }

    #[test]
    fn a_batch_over_one_frame_is_split_in_order_and_all_of_it_decodes() {
        let all: Vec<Observation> = (0..700).map(|i| exec(4096, i)).collect();
        let (bodies, left_out) = encode_observations(all.clone());
        assert!(bodies.len() > 1 && bodies.iter().all(|body| body.len() <= FRAME_BYTES));
        assert_eq!(left_out, 0);
        let mut back = Vec::new();
        for body in bodies {
            let Response::Observations(part) = decode(&body).unwrap() else { panic!("no observations") };
            back.extend(part);
        }
        assert_eq!(back, all);
    }

    #[test]
    fn a_full_frame_of_the_smallest_observations_decodes() {
        let exit = |time_ns| Observation {
            time_ns,
            mark: Mark { session: 1, launch: 1, generation: 1, role: Role::Host },
            process: ProcessId { pid: 1, start: 1 },
            thread: 1,
            kind: ObservationKind::Exit { code: 0, signal: 0 },
        };
        let (bodies, _) = encode_observations((0..120_000).map(|i| exit(i % 200)).collect());
        for body in bodies {
            decode::<Response>(&body).unwrap();
        }
    }

    #[test]
    fn what_fits_no_frame_is_counted() {
        let (bodies, left_out) = encode_observations(vec![exec(1, 1), exec(FRAME_BYTES, 2), exec(1, 3)]);
        assert_eq!((bodies.len(), left_out), (2, 1));
        assert!(matches!(
            encode(&Request::PublishPlan { name: "x".into(), plan: vec![0; FRAME_BYTES] }),
            Err(CodecError::DoesNotFit(_))
        ));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Response>(&bytes);
        }
    }
}
