//! `cargo xtask build-ebpf`: the kernel programs, with whichever toolchain on this machine fits.
//!
//! Their target has no prebuilt `core`, so compiler, library sources and the linker's LLVM must belong together: a
//! rustup nightly with rust-src, else the distribution's compiler with its source package.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use ringfence_tests::stage::workspace;

use crate::shell;

const LINKER: &str = "bpf-linker";
const TARGET: &str = "bpfel-unknown-none";
/// Oldest compiler that `ebpf/Cargo.toml` accepts.
const OLDEST: (u32, u32) = (1, 95);

/// Builds the object and puts it where the agent's build looks: `ebpf/ringfence-ebpf.o` in the target directory.
pub fn run() -> anyhow::Result<PathBuf> {
    build(false)
}

/// The same, where everything else works without them too: says why there are none, and goes on.
pub fn run_if_possible() {
    if let Err(error) = run() {
        eprintln!("{error:#}");
        eprintln!("build-ebpf: going on without kernel programs; nothing will be observed");
    }
}

/// As [`run`]; `log` puts log lines into the programs, for debugging them.
pub fn build(log: bool) -> anyhow::Result<PathBuf> {
    let linker = Linker::find()?;
    let toolchain = Toolchain::find(&linker)?;
    eprintln!("build-ebpf: {}", toolchain.name);
    let target = target_directory()?;
    let build = target.join("ebpf-build");
    let mut cargo = Command::new(&toolchain.cargo);
    cargo.current_dir(workspace().join("ebpf"));
    cargo.args(["build", "--release", "--locked", "--target", TARGET, "-Z", "build-std=core"]);
    if log {
        cargo.args(["--features", "log"]);
    }
    // What the outer cargo and rustup left in the environment is about another compiler.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let outer = text.starts_with("CARGO") && text != "CARGO_HOME" || text.starts_with("RUST");
        if outer && text != "RUSTUP_HOME" && text != "RUST_BACKTRACE" {
            cargo.env_remove(&name);
        }
    }
    cargo.env("RUSTC", &toolchain.rustc).env("CARGO_TARGET_DIR", &build);
    if toolchain.needs_bootstrap {
        cargo.env("RUSTC_BOOTSTRAP", "1");
    }
    let flags = ["-C".into(), format!("linker={}", linker.program.display()), "-C".into(), "debuginfo=2".into()];
    let flags = flags.into_iter().chain(["-C".into(), "link-arg=--btf".into()]).collect::<Vec<String>>();
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    shell::run(&mut cargo)?;
    publish(&build.join(TARGET).join("release/ringfence-ebpf"), &target.join("ebpf"))
}

/// Copies the object in one step, and only when it changed: the agent is built again whenever the file is touched.
fn publish(built: &Path, directory: &Path) -> anyhow::Result<PathBuf> {
    let object = directory.join("ringfence-ebpf.o");
    let new = std::fs::read(built).with_context(|| format!("reading {}", built.display()))?;
    if std::fs::read(&object).is_ok_and(|old| old == new) {
        return Ok(object);
    }
    std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    std::io::Write::write_all(&mut file, &new)?;
    std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    file.persist(&object).with_context(|| format!("writing {}", object.display()))?;
    Ok(object)
}

/// The target directory of the workspace, however it was chosen.
pub fn target_directory() -> anyhow::Result<PathBuf> {
    let metadata = shell::output(shell::cargo().args(["metadata", "--format-version=1", "--no-deps", "--offline"]));
    let metadata: serde_json::Value = serde_json::from_str(&metadata.context("cargo metadata failed")?)?;
    let directory = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
    Ok(directory.into())
}

/// `bpf-linker`, and the LLVM it was linked with when that can be seen.
struct Linker {
    program: PathBuf,
    llvm: Option<u32>,
}

impl Linker {
    fn find() -> anyhow::Result<Linker> {
        let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let cargo_home = cargo_home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut directories = std::env::split_paths(&path).chain(cargo_home.map(|home| home.join("bin")));
        let Some(program) =
            directories.find_map(|directory| Some(directory.join(LINKER)).filter(|file| file.is_file()))
        else {
            bail!("build-ebpf: {LINKER} is missing: `cargo xtask setup` installs it");
        };
        let linked = shell::output(Command::new("ldd").arg(&program)).unwrap_or_default();
        Ok(Linker { program, llvm: llvm_of(&linked) })
    }
}

/// From `libLLVM.so.22.1` or `libLLVM-22.so` in what ldd prints; `None` when LLVM is linked statically.
fn llvm_of(ldd: &str) -> Option<u32> {
    let after = ldd.split("libLLVM").nth(1)?;
    number_in(after.trim_start_matches(".so.").trim_start_matches('-'))
}

fn number_in(text: &str) -> Option<u32> {
    let digits = text.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// A compiler with the sources of its own library.
struct Toolchain {
    name: String,
    rustc: PathBuf,
    cargo: PathBuf,
    /// Whether it is no nightly and must be told to act as one.
    needs_bootstrap: bool,
}

impl Toolchain {
    fn find(linker: &Linker) -> anyhow::Result<Toolchain> {
        let mut why = Vec::new();
        for candidate in nightlies().into_iter().chain([Self::system()]) {
            match candidate.fits(linker) {
                Ok(()) => return Ok(candidate),
                Err(reason) => why.push(format!("{}: {reason}", candidate.name)),
            }
        }
        bail!(
            "build-ebpf: no compiler fits ({}); get one by `cargo xtask setup` (Debian), or `rustup toolchain install \
             nightly --component rust-src`",
            why.join("; ")
        )
    }

    fn system() -> Toolchain {
        Toolchain {
            name: "/usr/bin/rustc".into(),
            rustc: "/usr/bin/rustc".into(),
            cargo: "/usr/bin/cargo".into(),
            needs_bootstrap: true,
        }
    }

    fn fits(&self, linker: &Linker) -> Result<(), String> {
        if !self.rustc.is_file() || !self.cargo.is_file() {
            return Err("it is not installed".into());
        }
        let about = shell::output(Command::new(&self.rustc).arg("-vV")).ok_or("it does not run")?;
        let value = |key: &str| about.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let release = value("release:").ok_or("it does not tell its version")?;
        if release_number(release) < Some(OLDEST) {
            return Err(format!("{release} is too old"));
        }
        let llvm = value("LLVM version:").and_then(number_in).ok_or("it does not tell its LLVM")?;
        if linker.llvm.is_some_and(|linker| linker < llvm) {
            let linker = linker.llvm.unwrap_or_default();
            return Err(format!("its LLVM {llvm} is newer than {LINKER}'s {linker}"));
        }
        let sysroot = shell::output(Command::new(&self.rustc).args(["--print", "sysroot"])).ok_or("it does not run")?;
        let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
        if !sources.join("library/core/src/lib.rs").is_file() {
            return Err("its library sources are missing (rust-src, Debian: rust-web-src)".into());
        }
        // A rustup component always fits; a package of another version than the compiler's does not.
        match std::fs::read_to_string(sources.join("src/version")) {
            Ok(version) if self.needs_bootstrap && version.trim() != release => {
                Err(format!("it is {release}, its library sources are {}", version.trim()))
            }
            _ => Ok(()),
        }
    }
}

/// Major and minor of `1.96.0` or `1.97.0-nightly`.
fn release_number(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split('.').map(number_in);
    Some((numbers.next()??, numbers.next()??))
}

fn nightlies() -> Vec<Toolchain> {
    let listed = shell::output(Command::new("rustup").args(["toolchain", "list", "--quiet"]));
    let listed = listed.or_else(|| shell::output(Command::new("rustup").args(["toolchain", "list"])));
    let which = |toolchain: &str, program: &str| {
        let path = shell::output(Command::new("rustup").args(["which", "--toolchain", toolchain, program]))?;
        Some(PathBuf::from(path.trim()))
    };
    let names = listed.unwrap_or_default();
    let names = names.lines().filter_map(|line| line.split_whitespace().next());
    let nightlies = names.filter(|name| name.starts_with("nightly"));
    let found = nightlies.filter_map(|name| {
        let (rustc, cargo) = (which(name, "rustc")?, which(name, "cargo")?);
        Some(Toolchain { name: name.to_owned(), rustc, cargo, needs_bootstrap: false })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(llvm_of("\tlibLLVM.so.22.1 => /usr/lib/llvm-22/lib/libLLVM.so.22.1 (0x7fa2)"), Some(22));
        assert_eq!(llvm_of("\tlibLLVM-19.so.1 => /usr/lib/libLLVM-19.so.1"), Some(19));
        assert_eq!(llvm_of("\tlibc.so.6 => /lib/libc.so.6"), None);
        assert_eq!(release_number("1.97.0-nightly"), Some((1, 97)));
        assert!(release_number("1.96.0") > Some(OLDEST));
        assert_eq!(release_number("nonsense"), None);
    }
}
