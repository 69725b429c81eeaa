//! The probe under the capabilities that its unit names: they must be enough, and all that it ends up with.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringfence_tests::person::needs_root;
use ringfence_tests::running::Probe;
use ringfence_tests::stage::Stage;
use ringfence_tests::suite::{CannotRun, CaseResult};

use crate::system::settings;
use crate::{read, said, tool};

/// How long a probe may take to load and to stop.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn capabilities() -> CaseResult {
    needs_root("a probe")?;
    let unit = settings("systemd/system/ringfence-probe.service")?;
    let names = unit.get("CapabilityBoundingSet").context("the unit limits no capabilities")?;
    let wanted: Vec<String> =
        names.split(' ').map(|name| name.trim_start_matches("CAP_").to_ascii_lowercase()).collect();
    tool(Command::new("setpriv").arg("--version"), "util-linux")?;

    let stage = Stage::new()?;
    let everything = match Probe::start(&stage) {
        Ok(_probe) => status(&stage)?,
        Err(error) if error.to_string().contains("holds no kernel programs") => {
            return Err(CannotRun("the probe was built without kernel programs".into()).into());
        }
        Err(error) => return Err(error),
    };
    let limited = Limited::start(&stage, &wanted)?;
    let with_the_units = status(&stage)?;
    ensure!(everything == with_the_units, "as root:\n{everything}\nas the unit:\n{with_the_units}");

    let process = read(format!("/proc/{}/status", limited.child.id()))?;
    let field = |name: &str| process.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    ensure!(field("NoNewPrivs:") == Some("1"), "{process}");
    for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
        let bits = u64::from_str_radix(field(set).context(set)?, 16)?;
        ensure!(bits.count_ones() as usize == wanted.len(), "{set} has {bits:#x}, the unit names {names}");
    }
    Ok(())
}

/// What a probe says of its programs.
fn status(stage: &Stage) -> anyhow::Result<String> {
    let output = ask(stage)?;
    ensure!(output.status.success(), "{}", said(&output));
    Ok(String::from_utf8(output.stdout)?)
}

fn ask(stage: &Stage) -> std::io::Result<std::process::Output> {
    Command::new(stage.program("ringfence-probe")).arg("--status").arg("--socket").arg(stage.probe_socket()).output()
}

/// A probe with no more than some capabilities. It unloads when dropped.
struct Limited {
    child: Child,
    program: PathBuf,
    bpffs: PathBuf,
    pins: PathBuf,
}

impl Limited {
    fn start(stage: &Stage, capabilities: &[String]) -> anyhow::Result<Limited> {
        let program = stage.program("ringfence-probe");
        let run = stage.probe_socket().parent().context("a directory")?.to_owned();
        // What the unit's ExecStartPre does with all privileges: the probe itself may not mount. Here it is a mount of
        // this case's own namespace, which ends with it.
        let bpffs = run.join("bpf");
        std::fs::create_dir(&bpffs)?;
        mount(Some("bpf"), &bpffs, Some("bpf"), MsFlags::empty(), Some("mode=0700"))?;
        let pins = bpffs.join("ringfence");
        let set = capabilities.iter().fold("-all".to_owned(), |set, name| format!("{set},+{name}"));
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", &set, "--inh-caps", "-all", "--no-new-privs", "--"]).arg(&program);
        command.arg("--socket").arg(stage.probe_socket()).arg("--pin-dir").arg(&pins);
        command.arg("--plans-dir").arg(stage.plans_directory()).arg("--runtime-root").arg(&run).arg("--unload-on-exit");
        command.arg("--launcher").arg(stage.launcher()).arg("--hook").arg(stage.hook());
        command.arg("--service").arg(stage.program("ringfenced")).arg("--own").arg(stage.program("ringfence"));
        // A case that is killed must leave nothing attached.
        command.arg("--exit-with").arg(std::process::id().to_string());
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        let mut limited = Limited { child: command.spawn()?, program, bpffs, pins };
        let begun = Instant::now();
        while !ask(stage)?.status.success() {
            if let Some(status) = limited.child.try_wait()? {
                bail!("with {set} the probe ended at once ({status}); see above");
            }
            ensure!(begun.elapsed() < PATIENCE, "with {set} the probe did not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(limited)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Our child, not reaped yet: the pid is its own.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && !matches!(self.child.try_wait(), Ok(Some(_))) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if self.pins.exists() {
            let _ = Command::new(&self.program).arg("--unload").arg("--pin-dir").arg(&self.pins).status();
        }
        let _ = umount2(&self.bpffs, MntFlags::MNT_DETACH);
    }
}
