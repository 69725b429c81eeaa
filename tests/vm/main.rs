//! What the kernel programs do, on each kernel that Ringfence is for.
//!
//! `cargo xtask vm --kernel 6.12 FILTER` runs these cases in an emulated machine as root, with the staged programs;
//! `--kernel native` runs them on this machine's kernel; `cargo xtask test vm` does all three.
//!
//! To add a case: write a function in the file of its kind (or a new file with a `cases` function, named below), and give it
//! a line in `cases`.

mod machine;

use std::process::ExitCode;
use std::time::Duration;

use ringfence_tests::suite::Suite;

fn main() -> ExitCode {
    // An emulated machine is slow.
    let suite = Suite::new("vm").limit(Duration::from_secs(120));
    machine::cases(suite).run()
}
