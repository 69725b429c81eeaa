//! Ordinary users to run things as. Landlock, sockets and file modes act differently for root.
//!
//! As root, a test gets people of its own: uids without files or processes, each with a passwd entry and a home under `/home`.
//! Both exist only inside the test's private mount namespace, so nothing is left however it ends, and no account of the
//! machine is touched. Not as root, the one person is whoever runs the test.

use std::fs;
use std::io::Write as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt as _, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};

use crate::suite::CannotRun;

/// The first uid that is given out; above what Debian and systemd allocate by themselves (login users end at 60000,
/// dynamic services at 65519 begin at 61184 but are checked against passwd), below `nobody`.
pub(crate) const FIRST_UID: u32 = 64201;
/// How many people can live at once on one machine, over all tests that run.
const PEOPLE: u32 = 64;
const NAMES: [&str; 8] = ["ada", "ben", "cleo", "dora", "emil", "fay", "gus", "hedy"];

static HOMES: OnceLock<&'static Path> = OnceLock::new();
static PREPARED: OnceLock<Result<(), String>> = OnceLock::new();

/// Moves this process into a mount namespace where people can be made. Call it before any thread starts; without root it
/// does nothing.
pub fn prepare_this_process() {
    PREPARED.get_or_init(|| {
        if Uid::effective().is_root() { private_accounts().map_err(|e| format!("{e:#}")) } else { Ok(()) }
    });
}

fn private_accounts() -> anyhow::Result<()> {
    const NONE: Option<&str> = None;
    let homes = *HOMES.get_or_init(directory_for_homes);
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("ringfence-test"), homes, Some("tmpfs"), flags, Some("mode=755,size=2g"))?;
    // A copy over the real file: the copy is unlinked at once and lives on as the mount.
    for file in ["/etc/passwd", "/etc/group"] {
        let copy = homes.join(".copy");
        fs::copy(file, &copy)?;
        mount(Some(&copy), file, NONE, MsFlags::MS_BIND, NONE)?;
        fs::remove_file(&copy)?;
    }
    Ok(())
}

/// `/home`, or another standard directory where the sources, the caller's home or the running program lie in `/home`: what is
/// mounted over it hides what is there.
fn directory_for_homes() -> &'static Path {
    let mut needed: Vec<PathBuf> = [std::env::current_exe().ok(), std::env::current_dir().ok(), std::env::home_dir()]
        .into_iter()
        .flatten()
        .chain([crate::stage::workspace().to_owned()])
        .collect();
    needed.extend(std::env::var_os(crate::stage::PROGRAMS_VARIABLE).map(PathBuf::from));
    let hides_nothing = |directory: &&'static str| !needed.iter().any(|path| path.starts_with(directory));
    Path::new(["/home", "/srv", "/mnt", "/media"].into_iter().find(hides_nothing).unwrap_or("/home"))
}

/// An ordinary user.
#[derive(Debug)]
pub struct Person {
    uid: Uid,
    gid: Gid,
    name: String,
    home: PathBuf,
    /// Holds the uid: an abstract socket's name is free again when the process ends, however it ends.
    claim: Option<UnixListener>,
    _room: Option<tempfile::TempDir>,
}

impl Person {
    /// A new person with an empty home (0700). As root each has a uid of its own; otherwise it is the caller, with a
    /// temporary directory for a home.
    ///
    /// # Errors
    /// [`CannotRun`] where root may not make mount namespaces, or every uid is in use.
    pub fn new() -> Result<Person, CannotRun> {
        if !Uid::effective().is_root() {
            return Person::of_the_caller().map_err(|error| CannotRun(format!("no home can be made: {error}")));
        }
        match PREPARED.get() {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                return Err(CannotRun(format!("ordinary users need a private mount namespace: {error}")));
            }
            None => return Err(CannotRun("prepare_this_process was not called before people were made".into())),
        }
        Person::with_own_uid().map_err(|error| CannotRun(format!("no ordinary user can be made: {error:#}")))
    }

    /// Two people who must not see each other: only root can be two people.
    ///
    /// # Errors
    /// [`CannotRun`] when not root.
    pub fn two() -> Result<(Person, Person), CannotRun> {
        needs_root("a second user")?;
        Ok((Person::new()?, Person::new()?))
    }

    fn of_the_caller() -> anyhow::Result<Person> {
        let room = tempfile::Builder::new().prefix("ringfence-home-").tempdir_in("/var/tmp")?;
        let name = nix::unistd::User::from_uid(Uid::current())?.map_or_else(|| "nobody".into(), |user| user.name);
        Ok(Person {
            uid: Uid::current(),
            gid: Gid::current(),
            name,
            home: room.path().into(),
            claim: None,
            _room: Some(room),
        })
    }

    fn with_own_uid() -> anyhow::Result<Person> {
        let (index, claim) = (0..PEOPLE)
            .find_map(|index| {
                let address = SocketAddr::from_abstract_name(format!("ringfence-test-person-{index}")).ok()?;
                UnixListener::bind_addr(&address).ok().map(|claim| (index, claim))
            })
            .ok_or_else(|| anyhow::anyhow!("all {PEOPLE} are in use"))?;
        let id = FIRST_UID + index;
        let name = format!("rf-{}{index}", NAMES[index as usize % NAMES.len()]);
        let home = HOMES.get().unwrap_or(&Path::new("/home")).join(&name);
        // The uid may have been somebody else's a moment ago in this very process.
        let passwd = fs::read_to_string("/etc/passwd")?;
        if !passwd.lines().any(|line| line.split(':').nth(2) == Some(id.to_string().as_str())) {
            append("/etc/passwd", &format!("{name}:x:{id}:{id}::{}:/bin/bash\n", home.display()))?;
            append("/etc/group", &format!("{name}:x:{id}:\n"))?;
        }
        if home.exists() {
            fs::remove_dir_all(&home)?;
        }
        fs::create_dir(&home)?;
        fs::set_permissions(&home, fs::Permissions::from_mode(0o700))?;
        chown(&home, Some(id), Some(id))?;
        Ok(Person { uid: Uid::from_raw(id), gid: Gid::from_raw(id), name, home, claim: Some(claim), _room: None })
    }

    /// The numeric user id.
    pub fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// The user's name, as in its passwd entry.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The home, owned by this person, mode 0700. As root it is also the passwd entry's.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Makes a directory below the home, with parents, all owned by this person, mode 0700.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn directory(&self, below_home: impl AsRef<Path>) -> std::io::Result<PathBuf> {
        let mut path = self.home.clone();
        for part in below_home.as_ref().components() {
            path.push(part);
            if !path.exists() {
                fs::create_dir(&path)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
                self.own(&path)?;
            }
        }
        Ok(path)
    }

    /// Writes a file below the home, with parents, owned by this person.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn file(&self, below_home: impl AsRef<Path>, content: impl AsRef<[u8]>) -> std::io::Result<PathBuf> {
        let below_home = below_home.as_ref();
        if let Some(parent) = below_home.parent() {
            self.directory(parent)?;
        }
        let path = self.home.join(below_home);
        fs::write(&path, content)?;
        self.own(&path)?;
        Ok(path)
    }

    /// Gives a file or directory to this person.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn own(&self, path: &Path) -> std::io::Result<()> {
        chown(path, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
    }

    /// A command that runs as this person, in the home, without supplementary groups. Its environment is `PATH`, `HOME`,
    /// `USER`, `LOGNAME`, `SHELL` and `LANG`, nothing of the caller's.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().current_dir(&self.home);
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", &self.home).env("LANG", "C.UTF-8");
        command.env("USER", &self.name).env("LOGNAME", &self.name).env("SHELL", "/bin/bash");
        if Uid::effective().is_root() {
            // With a uid given and root calling, the standard library drops all supplementary groups too.
            command.uid(self.uid.as_raw()).gid(self.gid.as_raw());
        }
        command
    }
}

impl Drop for Person {
    /// A fence gives each session a private temporary directory under the one of its user; that user is gone now.
    fn drop(&mut self) {
        let path = format!("/tmp/ringfence-{}", self.uid());
        let own = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir() && MetadataExt::uid(&meta) == self.uid());
        if own && self.claim.is_some() {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Skips a case that needs root.
///
/// # Errors
/// [`CannotRun`] when not root; `what` completes "needs root for …".
pub fn needs_root(what: &str) -> Result<(), CannotRun> {
    if Uid::effective().is_root() { Ok(()) } else { Err(CannotRun(format!("needs root for {what}"))) }
}

fn append(file: &str, line: &str) -> std::io::Result<()> {
    fs::OpenOptions::new().append(true).open(file)?.write_all(line.as_bytes())
}
