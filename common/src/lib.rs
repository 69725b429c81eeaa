//! What the kernel programs and the agent agree on: event records, marks, map keys, limits.
#![no_std]
#![forbid(unsafe_code)]
