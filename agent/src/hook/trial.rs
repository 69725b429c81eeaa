//! What a test may change in the hook: only in builds with the feature `test-overrides`, and only by a file beside it.
#![forbid(unsafe_code)]

#[cfg(not(feature = "test-overrides"))]
pub use absent::{Trial, beside_this_program};
#[cfg(feature = "test-overrides")]
pub use present::{Trial, beside_this_program};

#[cfg(not(feature = "test-overrides"))]
mod absent {
    //! A release build: nothing can be changed.

    use crate::hook::Bounds;

    /// No changes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Trial;

    impl Trial {
        /// The bounds as they are.
        pub fn bounds(&self, usual: Bounds) -> Bounds {
            usual
        }

        /// Nothing goes wrong.
        pub fn strike(&self) {}
    }

    /// No changes.
    pub fn beside_this_program() -> Trial {
        Trial
    }
}

#[cfg(feature = "test-overrides")]
mod present {
    //! A test build.

    use std::time::Duration;

    use serde::Deserialize;

    use crate::hook::Bounds;

    /// A fault that a test asks for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Fault {
        /// The child panics.
        Panic,
        /// The child aborts.
        Abort,
        /// The child runs out of stack.
        Overflow,
        /// The child never answers.
        Hang,
        /// The child ends with an exit code that is no answer.
        Exit,
    }

    /// What is changed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Trial {
        /// When the child stops waiting, in milliseconds.
        pub child_ms: Option<u64>,
        /// When the guard answers, in milliseconds.
        pub guard_ms: Option<u64>,
        /// What goes wrong.
        pub fault: Option<Fault>,
    }

    impl Trial {
        /// The bounds with the changes.
        pub fn bounds(&self, usual: Bounds) -> Bounds {
            Bounds {
                guard: self.guard_ms.map_or(usual.guard, Duration::from_millis),
                child: self.child_ms.map_or(usual.child, Duration::from_millis),
            }
        }

        /// Lets the fault happen.
        pub fn strike(&self) {
            match self.fault {
                None => {}
                Some(Fault::Panic) => panic!("a fault that a test asked for: it must not be shown"),
                Some(Fault::Abort) => std::process::abort(),
                Some(Fault::Overflow) => drop(overflow(1)),
                Some(Fault::Hang) => loop {
                    std::thread::sleep(Duration::from_secs(3600));
                },
                Some(Fault::Exit) => std::process::exit(1),
            }
        }
    }

    #[expect(unconditional_recursion, reason = "running out of stack is what it is for")]
    fn overflow(depth: u64) -> Vec<u64> {
        let mut deeper = overflow(std::hint::black_box(depth + 1));
        deeper.push(depth);
        deeper
    }

    /// The changes in `ringfence-hook-trial.json` beside this program; none when there is no such file.
    pub fn beside_this_program() -> Trial {
        let program = std::env::current_exe().ok();
        let text = program.and_then(|program| std::fs::read(program.with_file_name("ringfence-hook-trial.json")).ok());
        let read = |text: Vec<u8>| serde_json::from_slice(&text).expect("a test wrote ringfence-hook-trial.json");
        text.map(read).unwrap_or_default()
    }
}
