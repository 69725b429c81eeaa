//! The person's command line.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    ringfence::cli::main()
}
