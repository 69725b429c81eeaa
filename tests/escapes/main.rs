//! What a fenced command must not be able to do, and what it must: each denial is proven by the side effect that is not
//! there.

mod files;
mod host;
mod launcher;
mod processes;
mod scene;
mod sockets;
mod work;

use std::process::ExitCode;

use ringfence_tests::suite::Suite;

fn main() -> ExitCode {
    let suite = Suite::new("escapes");
    let suite = files::cases(suite);
    let suite = sockets::cases(suite);
    let suite = processes::cases(suite);
    let suite = launcher::cases(suite);
    let suite = work::cases(suite);
    host::cases(suite).run()
}
