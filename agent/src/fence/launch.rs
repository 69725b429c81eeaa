//! `ringfence-exec`: puts a fence on and becomes the command, step by step. What fails ends it before the command runs.
//!
//! Nothing here is taken from the environment but what the command itself gets. The order of the steps is the
//! contract: see [`launch`].

use std::ffi::{CStr, CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::environment::{self, Environment};
use super::landlock::{self, LandlockError};
use super::lookup::{self, LookupError, Wanted};
use super::notice::Line;
use super::plan::{LineKind, Plan};
use super::receipt::{LaunchNotice, LayerReceipt, Receipt};
use super::seccomp::{self, SeccompError};
use super::{line, plan};
use crate::places::{PlaceError, Places};
use crate::process::{self, ProcessId};

/// Exit code of a failed step.
pub const FAILED: i32 = 125;
/// Exit code of a failed step where a hook was to run: hosts run the tool after any other one.
pub const FAILED_HOOK: i32 = 2;

/// What is to be launched.
#[derive(Debug)]
pub enum Launch {
    /// `--plan FILE -- CMD…`
    Named {
        /// The plan's file.
        plan: PathBuf,
        /// The command's words.
        words: Vec<CString>,
    },
    /// One argument: a host's whole shell line.
    HostLine(CString),
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The arguments are neither form.
    #[error("arguments: {0}; usage: ringfence-exec --plan FILE -- CMD… | ringfence-exec 'SHELL LINE'")]
    Arguments(&'static str),
    /// The places of this user.
    #[error("places: {0}")]
    Places(#[from] PlaceError),
    /// Finding and reading the plan.
    #[error("plan: {0}")]
    Plan(#[from] LookupError),
    /// A resource limit.
    #[error("limits: setrlimit {0}: {1}")]
    Limits(u32, io::Error),
    /// The private TMPDIR.
    #[error("temporary directory (`temporary` of the fence): {0}: {1}")]
    Temporary(PathBuf, String),
    /// Landlock.
    #[error("landlock (`require_landlock`, `strict`, `write` of the fence): {0}")]
    Landlock(#[from] LandlockError),
    /// Descriptors that were passed on.
    #[error("closing inherited descriptors (`keep`): {0}")]
    Descriptors(io::Error),
    /// no_new_privs.
    #[error("no_new_privs: {0}")]
    NoNewPrivileges(io::Error),
    /// The filter.
    #[error("seccomp (`seccomp` of the fence): {0}")]
    Seccomp(#[from] SeccompError),
    /// The command itself.
    #[error("{0}: {1}")]
    Command(String, io::Error),
}

impl LaunchError {
    /// The exit code: that of a shell where only the command is at fault, else ours.
    fn exit_code(&self, hook: bool) -> i32 {
        match self {
            _ if hook => FAILED_HOOK,
            LaunchError::Command(_, error) if error.kind() == io::ErrorKind::NotFound => 127,
            LaunchError::Command(..) => 126,
            _ => FAILED,
        }
    }
}

/// The whole program: returns an exit code only when the command was not started.
fn main(arguments: &[&CStr], inherited: &[&CStr]) -> i32 {
    let launch = match parse(arguments) {
        Ok(launch) => launch,
        Err(error) => return report(&error, false),
    };
    let mut hook = matches!(&launch, Launch::HostLine(line) if names_our_hook(line.to_bytes()));
    let Err(error) = self::launch(launch, inherited, &mut hook);
    report(&error, hook)
}

/// Until a plan says which lines are hooks, one that names our own hook program counts as one.
fn names_our_hook(line: &[u8]) -> bool {
    const NAME: &[u8] = b"ringfence-hook";
    line::command_of_line(line).is_none() && line.windows(NAME.len()).any(|part| part == NAME)
}

/// One line on stderr, and the exit code.
fn report(error: &LaunchError, hook: bool) -> i32 {
    let text: String =
        format!("ringfence-exec: {error}").chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let text = format!("{text}\n");
    // SAFETY: the buffer is alive and of that length. There is nobody to tell when stderr is closed.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    error.exit_code(hook)
}

fn parse(arguments: &[&CStr]) -> Result<Launch, LaunchError> {
    match arguments {
        [_, flag, file, dashes, words @ ..] if flag.to_bytes() == b"--plan" => {
            if dashes.to_bytes() != b"--" || words.is_empty() {
                return Err(LaunchError::Arguments("after --plan FILE come -- and a command"));
            }
            let plan = PathBuf::from(OsStr::from_bytes(file.to_bytes()));
            Ok(Launch::Named { plan, words: words.iter().map(|word| (*word).to_owned()).collect() })
        }
        [_, flag, ..] if flag.to_bytes() == b"--plan" => Err(LaunchError::Arguments("--plan needs FILE -- CMD…")),
        [_, line] => Ok(Launch::HostLine((*line).to_owned())),
        _ => Err(LaunchError::Arguments("exactly one shell line, or --plan FILE -- CMD…")),
    }
}

/// Read the plan → limits and environment → connect to the service → fill the Landlock rules → close what was
/// inherited → no_new_privs → Landlock → seccomp → tell the service → become the command.
fn launch(launch: Launch, inherited: &[&CStr], hook: &mut bool) -> Result<std::convert::Infallible, LaunchError> {
    let mut cap = None;
    let mut directory_file = None;
    let (found, words, digest) = match launch {
        Launch::Named { plan, words } => {
            let plan = lookup::named(&plan)?;
            (lookup::Found { per_call: plan.call.is_some(), plan, unknown_session: false, line: None }, words, None)
        }
        Launch::HostLine(text) => {
            let places = Places::of_this_user()?;
            cap = places.landlock_abi_cap;
            let whole = line::digest(text.to_bytes());
            let command = line::command_of_line(text.to_bytes()).map(|command| line::digest(&command));
            directory_file = line::directory_file_of_line(text.to_bytes()).map(Path::to_owned);
            let wanted = Wanted { command: command.as_ref(), line: &whole };
            let found = lookup::of_session(&places.plan_directories, wanted)?;
            *hook |= matches!(found.line, Some(LineKind::Own | LineKind::UserHook));
            // The plan was checked for NULs when it was read.
            let shell = CString::new(found.plan.shell.clone()).unwrap_or_else(|_| c"/bin/sh".to_owned());
            (found, vec![shell, c"-c".to_owned(), text], Some(command.unwrap_or(whole)))
        }
    };
    #[cfg(feature = "test-overrides")]
    if cap.is_none() {
        cap = Places::of_this_user().ok().and_then(|places| places.landlock_abi_cap);
    }
    let plan = &found.plan;
    set_limits(plan)?;
    let environment = environment::prepare(plan, inherited.iter().copied());
    make_temporary(plan)?;
    let service = plan.notice_socket.as_deref().map(|path| Line::open(Path::new(OsStr::from_bytes(path))));
    let rules = match &plan.landlock {
        Some(wanted) => {
            let written =
                directory_file.filter(|_| !wanted.makes_files_in(Path::new("/tmp"))).and_then(make_directory_file);
            Some(landlock::prepare(wanted, plan.strict, plan.require_landlock, cap, written.as_ref())?)
        }
        None => None,
    };
    close_inherited(&plan.keep).map_err(LaunchError::Descriptors)?;
    seccomp::no_new_privs().map_err(LaunchError::NoNewPrivileges)?;
    let mut layers: Vec<LayerReceipt> = Vec::with_capacity(2);
    if let Some(rules) = rules {
        layers.push(rules.enforce()?);
    }
    layers.push(seccomp::enforce(&plan.seccomp, plan.strict)?);
    if let Some(service) = service {
        let of_words = || line::digest_of_words(&words.iter().map(|word| word.to_bytes()).collect::<Vec<_>>());
        let notice = notice_of(&found, digest.unwrap_or_else(of_words), layers, &environment);
        service.send(&notice, if plan.host.is_some() { "claude-code" } else { "run" });
    }
    become_command(&words, &environment.variables)
}

fn notice_of(
    found: &lookup::Found,
    digest: [u8; 32],
    mut layers: Vec<LayerReceipt>,
    environment: &Environment,
) -> LaunchNotice {
    let nobody = ProcessId { pid: 0, start: 0 };
    let own = process::stat(std::process::id());
    let parent = own.as_ref().ok().and_then(|own| process::stat(own.parent).ok());
    if let Some(first) = layers.first_mut() {
        let remarks = found.plan.remarks.iter().take(64 - first.grants.len().min(64));
        first.grants.extend(remarks.cloned());
        first.grants.extend(environment.watched.iter().map(|name| format!("environment: {name}")));
        if found.unknown_session {
            first.grants.push("no session is known for this process: the strictest live plan".into());
        }
    }
    LaunchNotice {
        process: own.map(|own| own.id).unwrap_or(nobody),
        parent: parent.map(|parent| parent.id).unwrap_or(nobody),
        command_digest: plan::hex(&digest),
        plan: found.plan.id.clone(),
        per_call: found.per_call,
        fence: found.plan.fence.clone(),
        cwd: std::env::current_dir().map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default(),
        receipt: Receipt { layers },
    }
}

fn set_limits(plan: &Plan) -> Result<(), LaunchError> {
    for (resource, soft, hard) in &plan.limits {
        let limit = libc::rlimit { rlim_cur: *soft, rlim_max: *hard };
        // SAFETY: `limit` is alive over the call; a resource that the kernel does not know is EINVAL.
        if unsafe { libc::syscall(libc::SYS_prlimit64, 0, *resource, &raw const limit, std::ptr::null::<()>()) } != 0 {
            return Err(LaunchError::Limits(*resource, io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// Makes the private TMPDIR if it is gone, and takes no other's for it.
fn make_temporary(plan: &Plan) -> Result<(), LaunchError> {
    let Some(path) = plan.temporary.as_deref().map(|path| Path::new(OsStr::from_bytes(path))) else { return Ok(()) };
    let failed = |why: String| LaunchError::Temporary(path.to_owned(), why);
    let mut meta = path.symlink_metadata();
    if meta.is_err() {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|error| failed(error.to_string()))?;
        meta = path.symlink_metadata();
    }
    let meta = meta.map_err(|error| failed(error.to_string()))?;
    if !meta.is_dir() || meta.uid() != nix::unistd::Uid::current().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(failed("is not a directory that only this user can enter".into()));
    }
    Ok(())
}

/// Makes the file that the host's line writes its last directory to, where the fence lets nothing be made in `/tmp`.
///
/// It is new, or it is left alone. It says where the command starts, which is what the host keeps when the line does not
/// come to its end.
fn make_directory_file(path: PathBuf) -> Option<File> {
    use std::io::Write as _;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let mut file = options.open(path).ok()?;
    let start = std::env::current_dir().ok()?;
    file.write_all(&[start.as_os_str().as_bytes(), b"\n"].concat()).ok()?;
    Some(file)
}

/// Leaves 0 to 2, pipes (`cmd <(…)`) and what the plan names; everything else ends with the exec.
fn close_inherited(keep: &[i32]) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    let stays: Vec<i32> =
        open_descriptors().into_iter().filter(|fd| keep.contains(fd) || is_inherited_pipe(*fd)).collect();
    // SAFETY: close_range takes integers only; with CLOEXEC (Linux 5.11) it closes nothing that is in use here.
    if unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, CLOSE_RANGE_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    for fd in stays {
        // SAFETY: F_SETFD takes an integer, and EBADF is the worst that a closed descriptor gives.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The descriptors above 2 that are open. Without /proc none is known, and so none stays.
fn open_descriptors() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|fd| *fd > 2).collect()
}

/// Ours are close-on-exec, so a pipe without that came from outside, for the command.
fn is_inherited_pipe(fd: i32) -> bool {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat fills the struct when it returns 0; F_GETFD takes no argument.
    unsafe {
        libc::fstat(fd, status.as_mut_ptr()) == 0
            && status.assume_init().st_mode & libc::S_IFMT == libc::S_IFIFO
            && libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC == 0
    }
}

/// Executes the command in place. Returns only with why it did not.
fn become_command(words: &[CString], environment: &[CString]) -> Result<std::convert::Infallible, LaunchError> {
    let arguments = pointers(words);
    let variables = pointers(environment);
    let name = &words[0];
    let mut error = io::Error::from_raw_os_error(libc::ENOENT);
    for candidate in candidates(name, environment) {
        // SAFETY: the strings are NUL-terminated and both arrays end in a null pointer; all live over the call.
        unsafe { libc::execve(candidate.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
        let last = io::Error::last_os_error();
        match last.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            // As execvp(3): a later directory may hold one that can be run, and this is the answer if none does.
            Some(libc::EACCES) => error = last,
            _ => return Err(LaunchError::Command(name.to_string_lossy().into_owned(), last)),
        }
    }
    Err(LaunchError::Command(name.to_string_lossy().into_owned(), error))
}

/// A name with a slash is a path; another one is looked up as a shell would, in the command's own PATH: the fence is
/// on by now, so what that finds is the command's affair.
fn candidates(name: &CStr, environment: &[CString]) -> Vec<CString> {
    if name.to_bytes().contains(&b'/') {
        return vec![name.to_owned()];
    }
    let path = environment.iter().find_map(|variable| variable.to_bytes().strip_prefix(b"PATH="));
    let directories = path.unwrap_or(b"/usr/local/bin:/usr/bin:/bin").split(|b| *b == b':');
    let full = |directory: &[u8]| {
        let directory = if directory.is_empty() { b"." } else { directory };
        CString::new([directory, b"/", name.to_bytes()].concat()).ok()
    };
    directories.filter_map(full).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

/// The C entry point.
///
/// # Safety
///
/// Both must be arrays of NUL-terminated strings that end in a null pointer, as execve(2) makes them, and nobody may
/// change them while this runs.
pub unsafe fn entry(arguments: *const *const libc::c_char, environment: *const *const libc::c_char) -> i32 {
    let run = || {
        // SAFETY: by this function's contract.
        let (arguments, environment) = unsafe { (c_strings(arguments), c_strings(environment)) };
        main(&arguments, &environment)
    };
    // A panic is a failed step. 2 stops a tool even where the line was a hook's.
    std::panic::catch_unwind(run).unwrap_or(FAILED_HOOK)
}

/// An array of C strings.
///
/// # Safety
///
/// See [`entry`].
unsafe fn c_strings<'a>(strings: *const *const libc::c_char) -> Vec<&'a CStr> {
    let mut found = Vec::new();
    if strings.is_null() {
        return found;
    }
    for index in 0.. {
        // SAFETY: by the contract every element up to the null pointer can be read.
        let one = unsafe { *strings.add(index) };
        if one.is_null() {
            break;
        }
        // SAFETY: by the contract it is NUL-terminated and lives as long as the array.
        found.push(unsafe { CStr::from_ptr(one) });
    }
    found
}
