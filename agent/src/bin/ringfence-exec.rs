//! ringfence-exec: puts a fence on and becomes the command. See `ringfence::fence::launch`.
//!
//! The entry point is C's: Rust's own would set SIGPIPE to ignored and open closed streams, and the command would
//! inherit both.
#![no_main]

use std::os::raw::{c_char, c_int};

/// What the C library calls, with what execve(2) passed.
// SAFETY: `main` is defined once in this program, with the signature that the C library expects.
#[unsafe(no_mangle)]
unsafe extern "C" fn main(_count: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
    // SAFETY: these are the arrays of this process's own start, and nothing in this program changes them.
    unsafe { ringfence::fence::launch::entry(arguments, environment) }
}
