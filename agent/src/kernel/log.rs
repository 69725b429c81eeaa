//! Log lines of an object built with `cargo xtask build-ebpf --log`, into our own log. Other objects have none.
#![forbid(unsafe_code)]

use std::time::Duration;

use aya::Ebpf;
use aya_log::EbpfLogger;

/// The map that the library puts into an object with log lines.
pub const MAP: &str = "AYA_LOGS";
const PAUSE: Duration = Duration::from_millis(100);

/// Whether the object has log lines. Its programs are never taken over: their lines could not be read.
pub fn is_in(object: &[u8]) -> bool {
    object.windows(MAP.len()).any(|window| window == MAP.as_bytes())
}

/// Reads the lines until the process ends.
pub fn follow(programs: &mut Ebpf) {
    let mut lines = match EbpfLogger::init_with_logger(programs, Forward) {
        Ok(lines) => lines,
        Err(error) => return tracing::warn!(%error, "log lines of the kernel programs cannot be read"),
    };
    std::thread::spawn(move || {
        loop {
            lines.flush();
            std::thread::sleep(PAUSE);
        }
    });
}

struct Forward;

impl log::Log for Forward {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        tracing::debug!(target: "ringfence::kernel::object", "{}", record.args());
    }

    fn flush(&self) {}
}
