//! A person with a working tree, a place outside, a credential and a published plan.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, ensure};
use ringfence::fence::Fences;
use ringfence::fence::compile::{FenceRequest, ToolPlaces, compile, temporary_directory};
use ringfence::fence::plan::{LineKind, Plan, SESSION_PLAN, session_directory};
use ringfence::fence::tree;
use ringfence::process::{self, ProcessId};
use ringfence_tests::person::Person;
use ringfence_tests::stage::Stage;

/// See the module.
pub struct Scene {
    /// Who runs everything.
    pub person: Person,
    /// The programs.
    pub stage: Stage,
    /// W.
    pub tree: PathBuf,
    /// O: outside, the person's own, with `secret` and `victim`.
    pub outside: PathBuf,
    session: String,
}

impl Scene {
    /// With the newest Landlock there is.
    pub fn new() -> anyhow::Result<Scene> {
        Scene::with_abi_cap(None)
    }

    /// With a launcher that goes no further than this ABI.
    pub fn with_abi_cap(cap: Option<u32>) -> anyhow::Result<Scene> {
        let person = Person::new()?;
        let stage = Stage::with_abi_cap(cap)?;
        let tree = person.directory("project")?;
        let outside = person.directory("outside")?;
        person.file("outside/secret", "the secret")?;
        person.file("outside/victim", "untouched")?;
        person.file(".ssh/id_test", "PRIVATE KEY")?;
        person.file(".ssh/known_hosts", "a host")?;
        person.file(".aws/credentials", "aws secret")?;
        person.file(".config/git/ignore", "*.o")?;
        person.file(".config/gh/hosts.yml", "token")?;
        person.file(".claude/.credentials.json", "token")?;
        let session = format!("escapes-{}", std::process::id());
        Ok(Scene { person, stage, tree, outside, session })
    }

    /// A plan of a shipped fence for this tree.
    pub fn plan(&self, fence: &str) -> anyhow::Result<Plan> {
        let fences = Fences::load()?;
        let tree = tree::resolve(&self.tree, self.person.home())?;
        let socket = self.stage.runtime_directory(&self.person)?.join("hook.sock");
        let plan = compile(&FenceRequest {
            fence: fences.get(fence)?,
            tree: &tree,
            tree_writable: true,
            home: self.person.home(),
            uid: self.person.uid(),
            session: &self.session,
            host: Some(this_process()?),
            call: None,
            policy: "sha256:test",
            places: &ToolPlaces::from_environment(self.person.home(), |_| None),
            host_directories: &[self.person.home().join(".claude")],
            credentials_by_lsm: false,
            notice_socket: Some(&socket),
            lines: &[],
        })?;
        Ok(plan)
    }

    /// Where the probe would publish this person's plans of this session.
    pub fn published(&self) -> anyhow::Result<PathBuf> {
        let directory = self.stage.plans_directory().join(self.person.uid().to_string());
        let session = directory.join(session_directory(this_process()?));
        fs::create_dir_all(&session)?;
        Ok(session)
    }

    /// Publishes a plan, root-owned, as the plan of this process's session.
    pub fn publish(&self, name: &str, plan: &Plan) -> anyhow::Result<PathBuf> {
        let file = self.published()?.join(name);
        fs::write(&file, plan.encode()?)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
        Ok(file)
    }

    /// A scene whose session runs under this shipped fence.
    pub fn fenced(fence: &str) -> anyhow::Result<Scene> {
        let scene = Scene::new()?;
        scene.publish(SESSION_PLAN, &scene.plan(fence)?)?;
        Ok(scene)
    }

    /// The launcher with one shell line, as a host starts it, in W.
    pub fn launcher(&self, line: &str) -> Command {
        let mut command = self.person.command(self.stage.launcher());
        command.arg(line).current_dir(&self.tree).stdin(Stdio::null());
        command
    }

    /// Runs a shell line behind the fence.
    pub fn run(&self, line: &str) -> anyhow::Result<Output> {
        self.launcher(line).output().context("starting the launcher")
    }

    /// Runs a Perl program behind the fence: the one language of every Debian that makes raw system calls.
    pub fn perl(&self, program: &str) -> anyhow::Result<Output> {
        let file = self.tree.join("act.pl");
        fs::File::create(&file)?.write_all(program.as_bytes())?;
        self.person.own(&file)?;
        self.run("/usr/bin/perl act.pl")
    }

    /// What one raw system call behind the fence gives: 0 for success, else its errno.
    pub fn call(&self, number: i64, arguments: &[&str]) -> anyhow::Result<i32> {
        let arguments: String = arguments.iter().map(|argument| format!(", {argument}")).collect();
        let program = format!("$! = 0; my $r = syscall({number}{arguments}); print $r == -1 ? $! + 0 : 0;");
        let output = self.perl(&program)?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim().parse().with_context(|| format!("{output:?}"))
    }

    /// The victim outside is what it was.
    pub fn victim_is_untouched(&self) -> anyhow::Result<()> {
        let now = fs::read_to_string(self.outside.join("victim"))?;
        ensure!(now == "untouched", "the victim now holds {now:?}");
        Ok(())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let temporary = temporary_directory(self.person.uid(), &self.session);
        let _ = fs::remove_dir_all(&temporary);
        if let Some(parent) = temporary.parent() {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// The process that stands for the host: this one.
pub fn this_process() -> anyhow::Result<ProcessId> {
    Ok(process::stat(std::process::id())?.id)
}

/// A line of a person's own hook, in a plan.
pub fn own_line(line: &str) -> (LineKind, [u8; 32]) {
    (LineKind::Own, ringfence::fence::line::digest(line.as_bytes()))
}

/// Standard output as text.
pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error as text.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Fails unless a path is absent.
pub fn absent(path: &Path) -> anyhow::Result<()> {
    ensure!(path.symlink_metadata().is_err(), "{} is there", path.display());
    Ok(())
}
