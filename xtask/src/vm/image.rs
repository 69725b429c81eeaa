//! The first root directory of a guest: a small Debian taken from this machine, Ringfence's programs, and the tests.

use std::collections::BTreeSet;
use std::fs;
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use ringfence_tests::stage::{SERVICE_PROGRAMS, SMALL_PROGRAMS};

use super::cpio::Archive;
use super::{ALSO, SUITE};
use crate::shell;
use crate::test::programs;

const INIT: &str = include_str!("init.sh");
/// The crate whose unit tests run in guests, and which of them.
const UNIT: (&str, &str) = ("ringfence", "kernel::");

/// Programs of this machine that tests run by path, or that busybox does differently. Everything else is busybox.
const PROGRAMS: [&str; 36] = [
    "bash", "busybox", "cat", "chmod", "chown", "cp", "dash", "dd", "dirname", "echo", "env", "false", "git", "grep",
    "head", "id", "ln", "ls", "mkdir", "mkfifo", "mv", "perl", "printf", "pwd", "readlink", "rm", "rmdir", "sed",
    "setpriv", "sleep", "tail", "touch", "tr", "true", "unshare", "wc",
];
/// Directories that those programs need.
const DIRECTORIES: [&str; 2] = ["/usr/lib/x86_64-linux-gnu/perl-base", "/usr/share/git-core/templates"];

const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nada:x:1000:1000::/home/ada:/bin/bash\n\
                      ben:x:1001:1001::/home/ben:/bin/bash\nnobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nada:x:1000:\nben:x:1001:\nnogroup:x:65534:\n";
const SHADOW: &str = "root:*:20000::::::\nada:*:20000::::::\nben:*:20000::::::\n";

/// Builds the tests and puts everything into one archive in `rooms`; `staged` holds the five programs.
pub fn build(rooms: &Path, staged: &Path, filters: &[String]) -> anyhow::Result<PathBuf> {
    let file = rooms.join("initramfs.cpio");
    let out = fs::File::create(&file).with_context(|| format!("making {}", file.display()))?;
    let mut image =
        Image { archive: Archive::new(BufWriter::new(out)), has: BTreeSet::new(), libraries: BTreeSet::new() };
    image.debian()?;
    let stripped = rooms.join("stripped");
    fs::create_dir_all(&stripped)?;
    for name in SMALL_PROGRAMS.into_iter().chain(SERVICE_PROGRAMS) {
        image.program(&strip(&staged.join(name), &stripped)?, &format!("/vm/programs/{name}"))?;
    }
    let (run, tests) = tests(filters)?;
    for (name, program) in tests {
        image.program(&strip(&program, &stripped)?, &format!("/vm/{name}"))?;
    }
    image.text("/vm/run", 0o644, &run)?;
    image.finish()?;
    Ok(file)
}

/// What init runs, and the programs that it names.
fn tests(filters: &[String]) -> anyhow::Result<(String, Vec<(String, PathBuf)>)> {
    let (mut run, mut found) = (String::new(), Vec::new());
    let (krate, module) = UNIT;
    let mut built = programs::test_programs(shell::cargo().args(["test", "--no-run", "--package", krate, "--lib"]))?;
    let unit = built.remove(krate).context("cargo did not name the unit tests")?;
    let names = unit_tests(&unit, module, filters);
    if !names.is_empty() {
        run.push_str(&format!("unit {krate} /vm/unit-{krate} --exact {}\n", names.join(" ")));
        found.push((format!("unit-{krate}"), unit));
    }
    let suites: Vec<&str> = [SUITE].into_iter().chain(ALSO).collect();
    for (name, program) in programs::build(&suites)? {
        let quoted: Vec<String> =
            filters.iter().map(|filter| format!(" '{}'", filter.replace('\'', r"'\''"))).collect();
        run.push_str(&format!("suite {name} /vm/suite-{name}{}\n", quoted.concat()));
        found.push((format!("suite-{name}"), program));
    }
    Ok((run, found))
}

/// The names of the unit tests of a module; the test program itself knows only "one of these words".
fn unit_tests(program: &Path, module: &str, filters: &[String]) -> Vec<String> {
    let list = shell::output(Command::new(program).args(["--list", "--format", "terse"])).unwrap_or_default();
    let names = list.lines().filter_map(|line| line.strip_suffix(": test")).filter(|name| name.starts_with(module));
    let wanted = |name: &&str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter));
    names.filter(wanted).map(str::to_owned).collect()
}

/// A copy without debug information, made only when the program changed.
fn strip(program: &Path, into: &Path) -> anyhow::Result<PathBuf> {
    let copy = into.join(program.file_name().context("a program has a name")?);
    let built = fs::metadata(program).and_then(|meta| meta.modified());
    let built = built.with_context(|| format!("looking at {}", program.display()))?;
    if fs::metadata(&copy).and_then(|meta| meta.modified()).is_ok_and(|copied| copied == built) {
        return Ok(copy);
    }
    if !shell::succeeds(Command::new("strip").arg("-o").arg(&copy).arg(program)) {
        fs::copy(program, &copy).with_context(|| format!("copying {}", program.display()))?;
    }
    fs::File::options().write(true).open(&copy)?.set_modified(built)?;
    Ok(copy)
}

struct Image {
    archive: Archive<BufWriter<fs::File>>,
    has: BTreeSet<String>,
    libraries: BTreeSet<PathBuf>,
}

impl Image {
    fn debian(&mut self) -> anyhow::Result<()> {
        for (path, mode) in [
            ("/dev", 0o755),
            ("/etc", 0o755),
            ("/home/ada", 0o700),
            ("/home/ben", 0o700),
            ("/proc", 0o555),
            ("/root", 0o700),
            ("/run", 0o755),
            ("/sys", 0o555),
            ("/tmp", 0o1777),
            ("/usr/bin", 0o755),
            ("/usr/lib", 0o755),
            ("/usr/lib64", 0o755),
            ("/usr/sbin", 0o755),
            ("/usr/local/bin", 0o755),
            ("/var/lib", 0o755),
            ("/var/log", 0o755),
            ("/var/tmp", 0o1777),
            ("/vm", 0o755),
        ] {
            self.directory(path, mode)?;
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            self.archive.link(name, &format!("usr/{name}"))?;
        }
        self.text("/init", 0o755, INIT)?;
        self.text("/etc/passwd", 0o644, PASSWD)?;
        self.text("/etc/group", 0o644, GROUP)?;
        self.text("/etc/shadow", 0o600, SHADOW)?;
        self.text("/etc/hosts", 0o644, "127.0.0.1 localhost guest\n::1 localhost\n")?;
        self.text("/etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nhosts: files\n")?;
        for name in PROGRAMS {
            if let Some(path) = on_path(name) {
                self.program(&path, &place(&path))?;
            }
        }
        self.archive.link("usr/bin/sh", "dash")?;
        self.has.insert("/usr/bin/sh".into());
        // A hard link in Debian; what git starts of itself is this one.
        if let Some(git) = on_path("git") {
            self.program(&git, "/usr/lib/git-core/git")?;
        }
        DIRECTORIES.iter().try_for_each(|directory| self.tree(Path::new(directory)))
    }

    /// A directory, and its parents.
    fn directory(&mut self, path: &str, mode: u32) -> anyhow::Result<()> {
        if !self.has.insert(path.to_owned()) {
            return Ok(());
        }
        if let Some((parent, _)) = path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            self.directory(parent, 0o755)?;
        }
        Ok(self.archive.directory(path, mode)?)
    }

    fn text(&mut self, path: &str, mode: u32, text: &str) -> anyhow::Result<()> {
        self.content(path, mode, text.as_bytes())
    }

    fn content(&mut self, path: &str, mode: u32, content: &[u8]) -> anyhow::Result<()> {
        if let Some((parent, _)) = path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            self.directory(parent, 0o755)?;
        }
        if self.has.insert(path.to_owned()) {
            self.archive.file(path, mode, content)?;
        }
        Ok(())
    }

    /// A program; its libraries follow at the end.
    fn program(&mut self, from: &Path, to: &str) -> anyhow::Result<()> {
        let content = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
        self.content(to, 0o755, &content)?;
        self.libraries.extend(libraries(from));
        Ok(())
    }

    fn tree(&mut self, directory: &Path) -> anyhow::Result<()> {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                self.tree(&path)?;
            } else {
                let mode = fs::metadata(&path)?.permissions().mode() & 0o777;
                self.content(&place(&path), mode, &fs::read(&path)?)?;
                self.libraries.extend(libraries(&path));
            }
        }
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<()> {
        for library in std::mem::take(&mut self.libraries) {
            let content = fs::read(&library).with_context(|| format!("reading {}", library.display()))?;
            self.content(&place(&library), 0o755, &content)?;
        }
        self.archive.finish()?;
        Ok(())
    }
}

/// What `ldd` names; nothing for a static program.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = shell::output(Command::new("ldd").arg(program)).unwrap_or_default();
    let words = listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    words.map(PathBuf::from).collect()
}

/// Where a file of this machine is in the guest: there `/bin` and `/lib` are links into `/usr`, as Debian has them.
fn place(path: &Path) -> String {
    let text = path.display().to_string();
    if text.starts_with("/usr/") { text } else { format!("/usr{text}") }
}

fn on_path(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|f| f.is_file())
}
