//! The kernel itself: what Ringfence expects of it is there.

use std::fs;

use anyhow::ensure;
use ringfence_tests::suite::{CaseResult, Suite, skip};

/// Adds this file's cases.
pub fn cases(suite: Suite) -> Suite {
    suite.case("bpf is among the kernel's security modules", modules)
}

fn modules() -> CaseResult {
    let Ok(list) = fs::read_to_string("/sys/kernel/security/lsm") else { return skip("securityfs is not mounted") };
    ensure!(list.trim().split(',').any(|name| name == "bpf"), "{list}");
    Ok(())
}
