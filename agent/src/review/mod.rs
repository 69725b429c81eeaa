//! What a person decides, and the proof that it was a person.
#![forbid(unsafe_code)]

pub mod presence;
