//! Who a process is: a pid alone is reused, a pid with its start time is not.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// A process, by thread-group id and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// Thread-group id in the initial pid namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot, as `/proc/PID/stat` field 22 gives it
    /// (the kernel's `start_boottime` in nanoseconds, divided by 10⁹ / `sysconf(_SC_CLK_TCK)`).
    pub start: u64,
}

/// Why a process could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It ended before it could be read.
    #[error("process {0} is gone")]
    Gone(u32),
    /// `/proc/PID/stat` did not have the form that proc(5) gives.
    #[error("/proc/{0}/stat could not be read as proc(5) describes it")]
    Malformed(u32),
}

/// The fields of `/proc/PID/stat` that identity and ancestry need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The process itself.
    pub id: ProcessId,
    /// Parent's pid, 0 for none.
    pub parent: u32,
    /// Process group.
    pub group: u32,
    /// Session (setsid).
    pub session: u32,
}

/// Reads `/proc/PID/stat`.
pub fn stat(pid: u32) -> Result<Stat, ProcessError> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).map_err(|_| ProcessError::Gone(pid))?;
    // The name is in parentheses and may hold spaces and parentheses itself: the fields start after the last one.
    let after = text.iter().rposition(|b| *b == b')').ok_or(ProcessError::Malformed(pid))?;
    let rest = std::str::from_utf8(&text[after + 1..]).map_err(|_| ProcessError::Malformed(pid))?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number =
        |index: usize| fields.get(index).and_then(|f| f.parse::<i64>().ok()).ok_or(ProcessError::Malformed(pid));
    Ok(Stat {
        id: ProcessId { pid, start: number(19)? as u64 },
        parent: number(1)?.max(0) as u32,
        group: number(2)?.max(0) as u32,
        session: number(3)?.max(0) as u32,
    })
}

/// The chain from `pid` to its oldest visible ancestor, nearest first, at most 64 long.
pub fn ancestry(pid: u32) -> Vec<Stat> {
    let mut chain = Vec::new();
    let mut next = pid;
    while next > 0 && chain.len() < 64 {
        let Ok(one) = stat(next) else { break };
        chain.push(one);
        next = one.parent;
    }
    chain
}
