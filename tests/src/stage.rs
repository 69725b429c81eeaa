//! A stage: the five programs in a directory of their own, with their own runtime, plan and state directories, so that a test
//! or a demo touches nothing of the machine's own Ringfence.
//!
//! As root the directory is root's, as an installation's would be. `ringfence-hook` and `ringfence-exec` take no directory
//! from the environment or a flag, so these two are test builds that read `ringfence-overrides.json` beside them.

use std::fs;
use std::io::BufReader;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::person::Person;

/// Names the directory that `cargo xtask test` built the programs into; without it a stage builds them on demand.
pub const PROGRAMS_VARIABLE: &str = "RINGFENCE_STAGE";

/// Marks everything that one run of `cargo xtask test` makes outside its own processes, so that it can look for what was left.
pub const RUN_VARIABLE: &str = "RINGFENCE_TEST_RUN";

/// Where stages are made.
pub const ROOMS: &str = "/var/tmp";

/// The run that this process belongs to: of `cargo xtask test`, of the suite, or its own.
pub fn run_name() -> String {
    std::env::var(RUN_VARIABLE).unwrap_or_else(|_| std::process::id().to_string())
}

/// What names of a run's stages begin with.
pub fn prefix_of(run: &str) -> String {
    format!("ringfence-stage-{run}-")
}

/// What names of this run's stages begin with.
pub fn prefix() -> String {
    prefix_of(&run_name())
}

/// Removes stages of a run whose processes have all ended.
pub(crate) fn remove_rooms_of(run: &str) {
    let prefix = prefix_of(run);
    for entry in fs::read_dir(ROOMS).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            // What stays is found by the look for leftovers at the end.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The two that are static and built without the feature `service`.
pub const SMALL_PROGRAMS: [&str; 2] = ["ringfence-hook", "ringfence-exec"];
/// The three others.
pub const SERVICE_PROGRAMS: [&str; 3] = ["ringfenced", "ringfence-probe", "ringfence"];

/// How programs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// The release profile, else dev.
    pub release: bool,
    /// With the feature `test-overrides` in the two small programs.
    pub overrides: bool,
}

/// Builds the five programs and answers with their paths. Cargo's own output goes to stderr.
///
/// # Errors
/// When cargo fails, or does not say where a program is.
pub fn build_programs(build: Build) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let service = ["build", "--bin", "ringfenced", "--bin", "ringfence-probe", "--bin", "ringfence"];
    found.extend(cargo(&service, build, &[])?);
    for program in SMALL_PROGRAMS {
        // Static, so that no dynamic loader, and no LD_* of a project's, comes before the fence.
        let mut words = vec!["rustc", "--no-default-features", "--bin", program];
        if build.overrides {
            words.extend(["--features", "test-overrides"]);
        }
        found.extend(cargo(&words, build, &["--", "-C", "target-feature=+crt-static"])?);
    }
    ensure!(found.len() == 5, "cargo named {} programs instead of five: {found:?}", found.len());
    Ok(found)
}

fn cargo(words: &[&str], build: Build, rest: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(&words[..1]).args(["--package", "ringfence", "--message-format", "json-render-diagnostics"]);
    command.args(&words[1..]).args(build.release.then_some("--release")).args(rest);
    command.current_dir(workspace());
    // What a calling `cargo run` set for its own package would make every build script run again.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_")) {
        command.env_remove(name);
    }
    command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH");
    built_by(&mut command)
}

/// Runs a cargo command with `--message-format json-render-diagnostics` and answers with the programs it built.
///
/// # Errors
/// When it fails.
pub fn built_by(command: &mut Command) -> anyhow::Result<Vec<PathBuf>> {
    command.stdout(Stdio::piped());
    let mut child = command.spawn().context("starting cargo")?;
    let messages = BufReader::new(child.stdout.take().context("cargo's output")?);
    let mut programs = Vec::new();
    for message in serde_json::Deserializer::from_reader(messages).into_iter::<Value>() {
        let message = message.context("reading cargo's messages")?;
        if message["reason"] == "compiler-artifact"
            && let Some(program) = message["executable"].as_str()
        {
            programs.push(PathBuf::from(program));
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "{:?} failed: {status}", command.get_args().collect::<Vec<_>>());
    Ok(programs)
}

/// The workspace's directory.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the workspace")
}

/// Puts test builds of the five programs into `directory` (made if missing), for [`PROGRAMS_VARIABLE`].
///
/// # Errors
/// When they cannot be built or copied.
pub fn build_into(directory: &Path, build: Build) -> anyhow::Result<()> {
    fs::create_dir_all(directory)?;
    for program in build_programs(build)? {
        let name = program.file_name().context("a program has a name")?;
        // A copy, since the next cargo command may put another build in its place.
        fs::copy(&program, directory.join(name)).with_context(|| format!("copying {}", program.display()))?;
    }
    Ok(())
}

/// A directory of programs with everything they need around them; removed when dropped.
pub struct Stage {
    room: tempfile::TempDir,
}

impl Stage {
    /// A new stage.
    ///
    /// # Errors
    /// When the programs cannot be built or put there.
    pub fn new() -> anyhow::Result<Stage> {
        Stage::with_abi_cap(None)
    }

    /// A new stage with test builds that lie in `programs` already.
    ///
    /// # Errors
    /// When they cannot be put there.
    pub fn from_programs(programs: &Path) -> anyhow::Result<Stage> {
        Stage::make(Some(programs.to_owned()), None)
    }

    /// A new stage whose launcher behaves as if the kernel had at most this Landlock ABI.
    ///
    /// # Errors
    /// See [`Stage::new`].
    pub fn with_abi_cap(landlock_abi_cap: Option<u32>) -> anyhow::Result<Stage> {
        Stage::make(std::env::var_os(PROGRAMS_VARIABLE).map(PathBuf::from), landlock_abi_cap)
    }

    fn make(programs: Option<PathBuf>, landlock_abi_cap: Option<u32>) -> anyhow::Result<Stage> {
        // Not below /tmp: the default fence lets commands write there.
        let room = tempfile::Builder::new().prefix(&prefix()).tempdir_in(ROOMS)?;
        let stage = Stage { room };
        for directory in ["", "bin", "run", "run/plans", "run/u", "state"] {
            let path = stage.path(directory);
            fs::create_dir_all(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        match programs {
            Some(programs) => stage.take_programs(&programs)?,
            None => build_into(&stage.path("bin"), Build { release: false, overrides: true })?,
        }
        let overrides = json!({
            "runtime_dir": stage.path("run/u/{uid}"),
            "plan_directories": [stage.path("run/plans/{uid}"), stage.path("state/{uid}/plans")],
            "landlock_abi_cap": landlock_abi_cap,
        });
        fs::write(stage.path("bin/ringfence-overrides.json"), overrides.to_string())?;
        Ok(stage)
    }

    fn take_programs(&self, from: &Path) -> anyhow::Result<()> {
        for name in SMALL_PROGRAMS.into_iter().chain(SERVICE_PROGRAMS) {
            let (source, target) = (from.join(name), self.path("bin").join(name));
            // The small two are copied: identity is the inode, and each stage is to have its own.
            if SMALL_PROGRAMS.contains(&name) || fs::hard_link(&source, &target).is_err() {
                fs::copy(&source, &target).with_context(|| format!("copying {}", source.display()))?;
            }
        }
        Ok(())
    }

    fn path(&self, below: &str) -> PathBuf {
        self.room.path().join(below)
    }

    /// One of the five programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.path("bin").join(name)
    }

    /// `ringfence-hook`.
    pub fn hook(&self) -> PathBuf {
        self.program("ringfence-hook")
    }

    /// `ringfence-exec`.
    pub fn launcher(&self) -> PathBuf {
        self.program("ringfence-exec")
    }

    /// The probe's socket.
    pub fn probe_socket(&self) -> PathBuf {
        self.path("run/probe.sock")
    }

    /// Where the probe publishes plans, one directory per uid below it.
    pub fn plans_directory(&self) -> PathBuf {
        self.path("run/plans")
    }

    /// Below its `u/` are the runtime directories.
    pub fn runtime_root(&self) -> PathBuf {
        self.path("run")
    }

    /// This person's runtime directory, made if missing (0700).
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn runtime_directory(&self, person: &Person) -> std::io::Result<PathBuf> {
        self.private(person, "run/u")
    }

    /// This person's state directory, made if missing (0700).
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn state_directory(&self, person: &Person) -> std::io::Result<PathBuf> {
        self.private(person, "state")
    }

    fn private(&self, person: &Person, parent: &str) -> std::io::Result<PathBuf> {
        let path = self.path(parent).join(person.uid().to_string());
        if !path.exists() {
            fs::create_dir(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
            person.own(&path)?;
        }
        Ok(path)
    }

    /// Where the output of a program of this stage goes.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.path(name)
    }

    /// A name that no other stage has: for pins and the like. Begins with [`prefix`].
    pub(crate) fn unique_name(&self) -> String {
        self.room.path().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}
