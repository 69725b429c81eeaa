//! What the kernel programs do, on each kernel that Ringfence is for.
//!
//! `cargo xtask vm --kernel 6.12 FILTER` runs these cases in an emulated machine as root, with the staged programs;
//! `--kernel native` runs them on this machine's kernel; `cargo xtask test vm` does all three.
//!
//! To add a case: write a `fn(&Stand) -> CaseResult` in the file of its kind and give it a line in that file's `cases`; a new
//! file is named twice below. All cases of a `together` share one probe and one service ([`stand::Stand`]), since starting
//! these takes ten seconds on an emulated machine; a case that ends one of them, or needs other flags, is a `case` of its own.
//! [`machine::needs_lsm`] skips a case natively. Programs that a case runs must be in the guest: `PROGRAMS` in
//! `xtask/src/vm/image.rs`. There is no compiler and no Python in it, but busybox, bash, perl and git.

mod canaries;
mod deeds;
mod escapes;
mod guard;
mod machine;
mod observation;
mod restart;
mod stand;

use std::process::ExitCode;
use std::time::Duration;

use ringfence_tests::suite::Suite;

use crate::stand::Stand;

fn main() -> ExitCode {
    // An emulated machine is slow: only to start, which one case does twice, takes a minute.
    let suite = Suite::new("vm").limit(Duration::from_secs(300));
    suite
        .together(
            Stand::start,
            [machine::cases(), observation::cases(), canaries::cases(), escapes::cases(), guard::cases()].concat(),
        )
        .case("B36 rules hold while probe and service are killed and started again", restart::hammered)
        .run()
}
