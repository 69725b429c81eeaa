//! The clocks: deadlines and order by CLOCK_BOOTTIME, which goes on through suspend and never jumps; dates by the other.
#![forbid(unsafe_code)]

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since boot, suspend included.
pub fn boottime_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_BOOTTIME)
}

/// Milliseconds since boot, suspend included.
pub fn boottime_ms() -> u64 {
    boottime_ns() / 1_000_000
}

/// Milliseconds since 1970, as the machine's date is set.
pub fn realtime_ms() -> u64 {
    nanoseconds(ClockId::CLOCK_REALTIME) / 1_000_000
}

/// What is left until `deadline_ms` of CLOCK_BOOTTIME; `None` when it has passed.
pub fn left_until(deadline_ms: u64) -> Option<Duration> {
    deadline_ms.checked_sub(boottime_ms()).filter(|left| *left > 0).map(Duration::from_millis)
}

fn nanoseconds(clock: ClockId) -> u64 {
    // Neither clock can fail on a kernel that runs this program. A clock that read 0 would only stretch a deadline that
    // the hook's guard enforces with a timer of its own.
    clock_gettime(clock).map_or(0, |now| (now.tv_sec() as u64) * 1_000_000_000 + now.tv_nsec() as u64)
}
