//! A process that waits before its first instruction of the command, so that its tree can be marked in time.
//!
//! `ringfence gate` is started with one end of a pipe; only when it has read an order does it become the launcher.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use serde::{Deserialize, Serialize};

/// Largest order that is read.
const ORDER_BYTES: u64 = 64 << 10;

/// What a waiting process becomes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// The launcher.
    pub launcher: PathBuf,
    /// The plan it is to use.
    pub plan: PathBuf,
}

/// A waiting process, seen from its parent. Dropping it unopened ends it without running anything.
#[derive(Debug)]
pub struct Gate {
    /// The process.
    pub child: Child,
    order: OwnedFd,
}

impl Gate {
    /// Starts `ringfence gate` for a command; `prepare` may set its streams and directory.
    pub fn spawn(ringfence: &Path, command: &[String], prepare: impl FnOnce(&mut Command)) -> io::Result<Gate> {
        // The writing end must never be inherited; the reading end is, by number, across one exec.
        let (reading, writing) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&reading, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let mut gate = Command::new(ringfence);
        gate.arg("gate").arg("--order-fd").arg(reading.as_raw_fd().to_string()).arg("--").args(command);
        prepare(&mut gate);
        Ok(Gate { child: gate.spawn()?, order: writing })
    }

    /// Lets it go on.
    pub fn open(self, order: &Order) -> io::Result<Child> {
        let Gate { child, order: writing } = self;
        let text = serde_json::to_vec(order).map_err(io::Error::other)?;
        File::from(writing).write_all(&text)?;
        Ok(child)
    }

    /// Ends it without running anything.
    pub fn shut(self) {
        let Gate { mut child, order } = self;
        drop(order);
        if let Err(error) = child.wait() {
            eprintln!("ringfence: the waiting process could not be reaped: {error}");
        }
    }
}

/// The waiting process's own side. Returns only when it may not go on: `Ok` when it was shut.
pub fn wait(order_fd: u32, command: &[String]) -> io::Result<()> {
    let mut text = Vec::new();
    // Opened by number through /proc; the launcher sweeps the inherited descriptor itself.
    File::open(format!("/proc/self/fd/{order_fd}"))?.take(ORDER_BYTES).read_to_end(&mut text)?;
    if text.is_empty() {
        return Ok(());
    }
    let Order { launcher, plan } = serde_json::from_slice(&text).map_err(io::Error::other)?;
    let error = Command::new(&launcher).arg("--plan").arg(plan).arg("--").args(command).exec();
    Err(io::Error::new(error.kind(), format!("{}: {error}", launcher.display())))
}
