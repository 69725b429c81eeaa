//! A private probe and a private service on a stage. Both end, and unload what they loaded, when dropped.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::person::{Person, needs_root};
use crate::stage::Stage;

/// On an emulated machine with a busy host, loading the kernel programs takes from half a minute to two.
const STARTING: Duration = Duration::from_secs(240);
const ENDING: Duration = Duration::from_secs(10);

/// Where private probes pin, one directory each.
pub const PINS: &str = "/sys/fs/bpf";

/// A private `ringfence-probe`.
pub struct Probe {
    daemon: Daemon,
    program: PathBuf,
    pins: PathBuf,
}

impl Probe {
    /// Starts a probe that knows the stage's hook and launcher, and waits until it listens.
    ///
    /// # Errors
    /// [`crate::suite::CannotRun`] when not root; otherwise what the probe said before it ended.
    pub fn start(stage: &Stage) -> anyhow::Result<Probe> {
        needs_root("a probe")?;
        let program = stage.program("ringfence-probe");
        let pins = Path::new(PINS).join(stage.unique_name());
        let mut command = Command::new(&program);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.arg("--socket").arg(stage.probe_socket()).arg("--pin-dir").arg(&pins);
        command.arg("--plans-dir").arg(stage.plans_directory()).arg("--unload-on-exit");
        command.arg("--launcher").arg(stage.launcher()).arg("--hook").arg(stage.hook());
        command.arg("--service").arg(stage.program("ringfenced"));
        command.arg("--own").arg(stage.program("ringfence"));
        command.arg("--runtime-root").arg(stage.runtime_root());
        // Whatever becomes of this process, nothing stays attached.
        command.arg("--exit-with").arg(std::process::id().to_string());
        let daemon = Daemon::start("ringfence-probe", command, &stage.log("probe.log"), &stage.probe_socket())?;
        Ok(Probe { daemon, program, pins })
    }

    /// What it logged so far.
    pub fn log(&self) -> String {
        self.daemon.said()
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.daemon.child.id()
    }

    /// Kills it, as a crash would. Its pins stay until this is dropped.
    pub fn crash(&mut self) {
        self.daemon.crash();
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.daemon.end();
        // After a crash, or a probe that did not tidy up, nothing may stay attached on a machine that ran a test.
        if self.pins.exists() {
            let unload = Command::new(&self.program).arg("--unload").arg("--pin-dir").arg(&self.pins).status();
            if self.pins.exists() {
                eprintln!("{} is still there after --unload ({unload:?}): removing the pins", self.pins.display());
                let _ = std::fs::remove_dir_all(&self.pins);
            }
        }
    }
}

/// A private `ringfenced` of one person.
pub struct Service {
    daemon: Daemon,
    runtime_dir: PathBuf,
    program: PathBuf,
    cli: PathBuf,
}

impl Service {
    /// Starts a person's service, which looks for a probe only on the stage, and waits until it listens.
    ///
    /// # Errors
    /// What the service said before it ended.
    pub fn start(stage: &Stage, person: &Person) -> anyhow::Result<Service> {
        Service::start_with(stage, person, &[])
    }

    /// [`Service::start`] with more arguments.
    ///
    /// # Errors
    /// What the service said before it ended.
    pub fn start_with(stage: &Stage, person: &Person, more: &[&str]) -> anyhow::Result<Service> {
        let runtime = stage.runtime_directory(person)?;
        let program = stage.program("ringfenced");
        let mut command = person.command(&program);
        command.arg("--runtime-dir").arg(&runtime).arg("--state-dir").arg(stage.state_directory(person)?);
        command.arg("--probe-socket").arg(stage.probe_socket()).args(more);
        // The runtime directory is the person's own: only root or that person can wait for the socket.
        let log = stage.log(&format!("service-{}.log", person.uid()));
        let daemon = Daemon::start("ringfenced", command, &log, &runtime.join("hook.sock"))?;
        Ok(Service { daemon, runtime_dir: runtime, program, cli: stage.program("ringfence") })
    }

    /// The `ringfence` command as this person, told to talk to this service.
    pub fn ringfence(&self, person: &Person, words: &[&str]) -> Command {
        let mut command = person.command(&self.cli);
        // After the verb, before its own words: those of `run` are another program's.
        command
            .args(words.first())
            .arg("--runtime-dir")
            .arg(&self.runtime_dir)
            .args(words.get(1..).unwrap_or_default());
        command
    }

    /// Runs `ringfence` as this person and answers with what it printed.
    ///
    /// # Errors
    /// When it fails, with what it complained of.
    pub fn ask(&self, person: &Person, words: &[&str]) -> anyhow::Result<String> {
        let output = self.ringfence(person, words).output().context("starting ringfence")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`ringfence {}` failed ({}): {}", words.join(" "), output.status, said.trim());
        Ok(String::from_utf8(output.stdout)?)
    }

    /// What it logged so far.
    pub fn log(&self) -> String {
        self.daemon.said()
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.daemon.child.id()
    }

    /// Its program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Kills it, as a crash would.
    pub fn crash(&mut self) {
        self.daemon.crash();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.daemon.end();
    }
}

struct Daemon {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Daemon {
    fn start(name: &'static str, mut command: Command, log: &Path, socket: &Path) -> anyhow::Result<Daemon> {
        let out = File::create(log).with_context(|| format!("making {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        let mut daemon = Daemon { name, child, log: log.into() };
        let begun = Instant::now();
        // A probe may stand behind a socket that another left: only a connection proves that it listens.
        while UnixStream::connect(socket).is_err() {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("{name} ended before it listened ({status}): {}", daemon.said());
            }
            if begun.elapsed() > STARTING {
                let said = daemon.said();
                daemon.end();
                bail!("{name} did not listen on {} within {STARTING:?}: {said}", socket.display());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    fn said(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    fn crash(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn end(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        // It is our child and not reaped yet, so the pid is its own.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let begun = Instant::now();
        while begun.elapsed() < ENDING {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        eprintln!("{} did not end within {ENDING:?} of SIGTERM: killed", self.name);
        self.crash();
    }
}
