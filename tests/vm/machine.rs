//! The kernel itself: what Ringfence expects of it is there, and its programs attach.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use ringfence::probe::client::Client;
use ringfence_tests::suite::{CannotRun, CaseResult};

use crate::stand::{Case, Stand};

/// Set in a guest, whose kernel lets every program load.
const GUEST: &str = "RINGFENCE_GUEST";

/// This file's cases.
pub fn cases() -> Vec<Case> {
    vec![
        ("bpf is among the kernel's security modules", modules),
        ("every program attaches that this kernel has a hook for", programs),
    ]
}

/// Whether this is a guest, where nothing but the kernel's age is an excuse for a program that does not attach.
pub fn is_guest() -> bool {
    std::env::var_os(GUEST).is_some()
}

/// For cases about what only LSM programs can do.
pub fn needs_lsm() -> Result<(), CannotRun> {
    // A kernel may list bpf and refuse LSM programs all the same; guests are known not to.
    if is_guest() { Ok(()) } else { Err(CannotRun("LSM programs are tried in guests only".into())) }
}

/// Whether this kernel is at least of this version.
pub fn is_at_least(major: u32, minor: u32) -> anyhow::Result<bool> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(['.', '-', '+']).map(str::parse::<u32>);
    let mut next = || -> anyhow::Result<u32> { Ok(numbers.next().context("too short")??) };
    Ok((next()?, next()?) >= (major, minor))
}

fn modules(_: &Stand) -> CaseResult {
    needs_lsm()?;
    let list = fs::read_to_string("/sys/kernel/security/lsm").context("/sys/kernel/security/lsm")?;
    ensure!(list.trim().split(',').any(|name| name == "bpf"), "{list}");
    Ok(())
}

fn programs(stand: &Stand) -> CaseResult {
    let status = async {
        let mut client = Client::connect(&stand.stage.probe_socket(), Duration::from_secs(30)).await?;
        anyhow::Ok(client.status().await?)
    };
    let status = tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(status)?;
    ensure!(!status.programs.is_empty());
    for state in status.programs {
        let name = &state.program;
        let reason = state.reason.as_deref().unwrap_or_default();
        let since = match name.as_str() {
            _ if name.ends_with("_unix") => (6, 7),
            "rf_ftruncate" | "rf_set_acl" | "rf_remove_acl" => (6, 2),
            _ => (0, 0),
        };
        let too_old = !is_at_least(since.0, since.1)?;
        let excused = too_old || !is_guest() || reason.contains("only while a launch may live");
        ensure!(state.attached || excused, "{name}: {reason}");
        println!("{name}: {}", if state.attached { "attached" } else { reason });
    }
    Ok(())
}
