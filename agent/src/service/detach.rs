//! Where no service manager keeps the service: it goes to the background by itself, with nothing of its starter's.
#![forbid(unsafe_code)]

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::ServiceError;
use super::options::Options;

/// How long the background process may take to listen.
const STARTING: Duration = Duration::from_secs(10);

/// Starts the same program in a session of its own, with an empty environment, and waits until it listens.
pub fn start(options: &Options) -> Result<(), ServiceError> {
    let places = options.places()?;
    let listening = || UnixStream::connect(places.runtime_dir.join("control.sock")).is_ok();
    if listening() {
        return Err(ServiceError::AlreadyRunning(places.state_dir));
    }
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(std::env::args_os().skip(1).filter(|word| word != "--detach"))
        .arg("--session-leader")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn()?;
    let started = Instant::now();
    while started.elapsed() < STARTING {
        if let Some(status) = child.try_wait()? {
            return Err(ServiceError::Directory(
                places.state_dir,
                format!("the background service ended at once ({status})"),
            ));
        }
        if listening() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill()?;
    child.wait()?;
    Err(ServiceError::Directory(places.runtime_dir, "the background service did not listen in time".into()))
}
