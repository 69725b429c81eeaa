//! Reading what a command really does: a flat list of effective commands, with what flows from where to where.
//!
//! This is not a shell. What cannot be read becomes a [`Problem`] and is escalated; the kernel decides on what really runs.
//! The grammar is brush-parser's, behind guards: it recurses, so size and nesting are held first, and it runs on a thread
//! with a stack of a stated size. Its cached entry points are not used: commands may hold secrets.
#![forbid(unsafe_code)]

mod code;
mod decode;
mod flow;
mod invoke;
mod options;
pub mod path;
mod scan;
mod unwrap;
mod walk;
mod word;

#[cfg(test)]
mod limits_tests;

use std::collections::BTreeSet;

use super::judge::World;
pub use options::Options;
pub(crate) use unwrap::{SSH_VALUED, is_shell};

/// Longest command that is read, in bytes.
pub const COMMAND_BYTES: usize = 32 << 10;
/// Deepest nesting that is read, counted before parsing.
pub const NESTING: usize = 200;
/// Stack of the thread that parses and reads. The deepest input that the guards let through needs less than half.
const STACK_BYTES: usize = 64 << 20;

/// Stands for a part of a text that is not known.
pub const UNKNOWN: char = '\u{E000}';

/// Where data comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A file's content, by its absolute path as far as that is known.
    File(String),
    /// A variable that nothing in sight has set.
    Variable(String),
    /// The whole environment.
    Environment,
    /// An answer from the network, by URL or host.
    Network(String),
    /// Text that was decoded, decrypted, unpacked or put together from codes.
    Decoded,
}

/// A set of sources.
pub type Sources = BTreeSet<Source>;

/// One word of a command, expanded as far as is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Field {
    /// The text; [`UNKNOWN`] stands for what is not known.
    pub text: String,
    /// What flowed into it.
    pub sources: Sources,
}

impl Field {
    /// A word that is all literal.
    pub fn literal(text: impl Into<String>) -> Field {
        Field { text: text.into(), sources: Sources::new() }
    }

    /// Whether every character is known.
    pub fn is_known(&self) -> bool {
        !self.text.contains(UNKNOWN)
    }
}

/// What flows through a pipe, out of a substitution, or into a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The text, when it is known; it may hold [`UNKNOWN`].
    pub text: Option<String>,
    /// What it was made from.
    pub sources: Sources,
}

impl Flow {
    /// Nothing at all.
    pub fn empty() -> Flow {
        Flow { text: Some(String::new()), sources: Sources::new() }
    }

    /// Known text.
    pub fn of_text(text: impl Into<String>) -> Flow {
        Flow { text: Some(text.into()), sources: Sources::new() }
    }

    /// One after the other.
    fn append(&mut self, next: Flow) {
        match (&mut self.text, next.text) {
            (Some(text), Some(more)) if text.len() + more.len() <= COMMAND_BYTES => text.push_str(&more),
            (text, _) => *text = None,
        }
        self.sources.extend(next.sources);
    }
}

/// A file that is written, or a connection that is written to by redirection.
#[derive(Clone, Debug)]
pub struct Write {
    /// Absolute path as far as it is known.
    pub path: String,
    /// Appended to, not replaced.
    pub append: bool,
    /// What goes in.
    pub flow: Flow,
    /// The program that writes, empty for a bare redirection.
    pub program: String,
}

/// One effective command.
#[derive(Clone, Debug, Default)]
pub struct Command {
    /// Program and arguments.
    pub words: Vec<Field>,
    /// The program's name without its directory.
    pub program: String,
    /// Assignments in front of it.
    pub env: Vec<(String, Field)>,
    /// Directory it runs in, when it is known.
    pub cwd: Option<String>,
    /// What it reads on its standard input.
    pub stdin: Flow,
    /// Files whose content it reads, standard input aside.
    pub reads: Sources,
    /// Programs that it was started by, outermost first: `sudo`, `ssh`, `xargs`, ….
    pub via: Vec<String>,
    /// Program text that it executes: a shell's `-c`, a script on standard input, a file, `eval`'s words.
    pub runs: Option<Flow>,
    /// For an interpreter's program text: what was seen in it.
    pub code: Option<code::Code>,
    /// Runs on another machine or in a container, not here.
    pub remote: bool,
    /// Only starts another command of the list; has no effect of its own.
    pub wrapper: bool,
}

impl Command {
    /// The arguments, without the program.
    pub fn args(&self) -> &[Field] {
        self.words.get(1..).unwrap_or_default()
    }

    /// Texts of the arguments.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.args().iter().map(|field| field.text.as_str())
    }

    /// Whether one of the arguments is exactly this.
    pub fn has(&self, text: &str) -> bool {
        self.texts().any(|arg| arg == text)
    }

    /// Every source that the command's arguments carry.
    pub fn argument_sources(&self) -> Sources {
        self.args().iter().flat_map(|field| field.sources.iter().cloned()).collect()
    }

    /// Absolute, normalised form of a path argument.
    pub fn path(&self, text: &str) -> String {
        path::absolute(self.cwd.as_deref(), text)
    }
}

/// Something that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// More than [`COMMAND_BYTES`].
    TooLarge(usize),
    /// Nested deeper than [`NESTING`], or unwrapped too often.
    TooDeep,
    /// More work than one command may cost.
    TooMuch,
    /// Not the shell's grammar, as far as the parser knows it.
    Unparsed(String),
    /// A NUL character, which no shell passes on.
    Nul,
    /// Text is executed that is not known.
    UnknownProgram(String),
    /// The reader itself failed.
    Failed,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::TooLarge(bytes) => write!(out, "the command has {bytes} bytes, and {COMMAND_BYTES} are read"),
            Problem::TooDeep => write!(out, "the command is nested too deeply to be read"),
            Problem::TooMuch => write!(out, "the command expands to more than is read"),
            Problem::Unparsed(reason) => write!(out, "the command's grammar could not be read: {reason}"),
            Problem::Nul => write!(out, "the command holds a NUL character"),
            Problem::UnknownProgram(what) => write!(out, "{what} runs text that is not known"),
            Problem::Failed => write!(out, "the command could not be read"),
        }
    }
}

/// All that one command line does, as far as it could be read.
#[derive(Clone, Debug, Default)]
pub struct Action {
    /// The effective commands, in the order they were met.
    pub commands: Vec<Command>,
    /// Files written by redirection and by programs that are known to write.
    pub writes: Vec<Write>,
    /// Paths that the action itself makes.
    pub created: BTreeSet<String>,
    /// Links that it makes: path, target.
    pub links: Vec<(String, String)>,
    /// What could not be read.
    pub problems: Vec<Problem>,
}

/// Reads a command line that starts in `cwd`. Bounded in time and stack for any input; never panics.
pub fn read(command: &str, cwd: &str, world: &World) -> Action {
    let problem = |problem| Action { problems: vec![problem], ..Action::default() };
    if command.len() > COMMAND_BYTES {
        return problem(Problem::TooLarge(command.len()));
    }
    if command.contains('\0') {
        return problem(Problem::Nul);
    }
    if scan::nesting(command) > NESTING {
        return problem(Problem::TooDeep);
    }
    std::thread::scope(|threads| {
        let reader = std::thread::Builder::new().name("shell-reader".into()).stack_size(STACK_BYTES);
        match reader.spawn_scoped(threads, || walk::read(command, cwd, world)) {
            Ok(handle) => handle.join().unwrap_or_else(|_| problem(Problem::Failed)),
            Err(_) => problem(Problem::Failed),
        }
    })
}
