//! The pinned hosts (`tests/hosts.toml`) and their installation from the npm registry into a cache directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use nix::unistd::Uid;
use serde::Deserialize;

use crate::suite::CannotRun;

const PINNED: &str = include_str!("../../hosts.toml");

/// A host of one version.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// `claude-code`.
    pub name: String,
    /// Its npm package.
    pub package: String,
    /// Its exact version.
    pub version: String,
    /// The program, relative to the directory it is installed in.
    program: PathBuf,
}

/// Every pinned host.
pub fn pinned() -> Vec<Host> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        host: Vec<Host>,
    }
    toml::from_str::<File>(PINNED).expect("tests/hosts.toml is well-formed").host
}

impl Host {
    /// The pinned Claude Code of this version, installed if it is not yet.
    ///
    /// # Errors
    /// [`CannotRun`] when it cannot be installed here (no npm, no registry), which skips the case.
    pub fn claude_code(version: &str) -> anyhow::Result<Host> {
        let host = pinned().into_iter().find(|host| host.name == "claude-code" && host.version == version);
        let host = host.with_context(|| format!("Claude Code {version} is not among tests/hosts.toml"))?;
        host.ensure_installed().map_err(|error| CannotRun(format!("Claude Code {version}: {error:#}")))?;
        Ok(host)
    }

    /// The host's program. It exists once [`Host::ensure_installed`] succeeded.
    pub fn program(&self) -> PathBuf {
        self.directory().join(&self.program)
    }

    /// The same version where it is on PATH already.
    pub fn on_path(&self) -> Option<Host> {
        let path = std::env::var_os("PATH")?;
        let programs = std::env::split_paths(&path).map(|directory| directory.join("claude"));
        // The program itself: the links that installers make lead into homes that other users may not enter.
        let program =
            programs.filter_map(|program| fs::canonicalize(program).ok()).find(|program| program.is_file())?;
        check_version(&program, &self.version, "").ok()?;
        everybody_can_run(&program).then(|| Host { program, ..self.clone() })
    }

    /// Whether it is installed.
    pub fn is_installed(&self) -> bool {
        self.program().is_file()
    }

    fn directory(&self) -> PathBuf {
        cache_directory().join(format!("{}-{}", self.name, self.version))
    }

    /// Installs it if it is missing. Answers whether it had to.
    ///
    /// # Errors
    /// When npm is missing or fails, or what it installed is not this version.
    pub fn ensure_installed(&self) -> anyhow::Result<bool> {
        if self.is_installed() {
            return Ok(false);
        }
        let cache = cache_directory();
        fs::create_dir_all(&cache).with_context(|| format!("making {}", cache.display()))?;
        // Into a directory beside, renamed when complete: a run that is interrupted, or a second one, never leaves half a host.
        let room = tempfile::Builder::new().prefix(".installing-").tempdir_in(&cache)?;
        let output = Command::new("npm")
            .args([
                "install",
                "--no-audit",
                "--no-fund",
                "--no-save",
                "--ignore-scripts=false",
                "--loglevel=error",
                "--prefix",
            ])
            .arg(room.path())
            .arg(format!("{}@{}", self.package, self.version))
            .stdin(Stdio::null())
            .output()
            .context("starting npm")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "npm could not install it ({}): {}", output.status, said.trim());
        check_version(&room.path().join(&self.program), &self.version, &said)?;
        // Tests run it as other users.
        fs::set_permissions(room.path(), fs::Permissions::from_mode(0o755))?;
        match fs::rename(room.path(), self.directory()) {
            Ok(()) => Ok(true),
            Err(_) if self.is_installed() => Ok(false),
            Err(error) => Err(error).with_context(|| format!("moving it to {}", self.directory().display())),
        }
    }
}

/// The package's install script puts the native program over a text stub; where npm did not run it, the stub is still there.
fn check_version(program: &Path, version: &str, npm_said: &str) -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let output = Command::new(program)
        .arg("--version")
        .env_clear()
        .envs([
            ("PATH", "/usr/bin:/bin"),
            ("DISABLE_AUTOUPDATER", "1"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ])
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !said.starts_with(version) {
        bail!("what npm installed says {:?} for its version (npm said: {})", said.trim(), npm_said.trim());
    }
    Ok(())
}

fn everybody_can_run(program: &Path) -> bool {
    let may = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0);
    program.ancestors().all(may)
}

/// Root's tests run hosts as other users, who cannot enter root's home.
fn cache_directory() -> PathBuf {
    if Uid::effective().is_root() {
        return "/var/cache/ringfence/hosts".into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    cache.unwrap_or_else(|| "/var/tmp".into()).join("ringfence/hosts")
}
