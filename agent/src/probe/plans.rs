//! Published plans: files that a user can read and only root can write.
//!
//! `<root>/<uid>/<host pid>.<host start>/<name>.plan`. The directory of a uid is root's, and an ACL lets that uid in and
//! nobody else; below it everything is readable. So no group has to be trusted, and no capability beyond root's own
//! ownership is needed.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::protocol::Refusal;
use crate::process::{self, ProcessId};

/// Most plans of one uid.
pub const PLANS_PER_UID: usize = 4096;
/// Most bytes of all plans of one uid: they lie in memory.
pub const BYTES_PER_UID: u64 = 64 << 20;
/// Longest file name of a plan, in bytes, without `.plan`.
const STEM_BYTES: usize = 96;
/// `system.posix_acl_access`: who may use a file, beyond its mode.
const ACL: &str = "system.posix_acl_access";

/// Why a plan is not published.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The name is not of the shape that a plan's has.
    #[error("a plan is named <host pid>.<host start>/<lower case letters, digits, hyphens>.plan")]
    Name,
    /// Nothing to publish.
    #[error("the plan is empty")]
    Empty,
    /// Too many, or too large together.
    #[error("this user has {plans} plans of {bytes} bytes together; {PLANS_PER_UID} of {BYTES_PER_UID} are the limit")]
    Limit {
        /// How many there are.
        plans: usize,
        /// Their size together.
        bytes: u64,
    },
    /// The directory for plans is not safe: somebody but its owner could change what is in it.
    #[error("{0} must be owned by uid {1} and writable by nobody else")]
    Unsafe(PathBuf, u32),
    /// The operating system says no.
    #[error("{0}: {1}")]
    Io(PathBuf, #[source] io::Error),
}

impl PlanError {
    /// As the protocol says it.
    pub fn refusal(&self) -> Refusal {
        match self {
            PlanError::Name | PlanError::Empty => Refusal::Protocol,
            PlanError::Limit { .. } => Refusal::Limit,
            PlanError::Unsafe(..) | PlanError::Io(..) => Refusal::Unavailable,
        }
    }
}

/// A name that cannot lead anywhere but below the directory of its uid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlanName {
    host: ProcessId,
    stem: String,
}

impl PlanName {
    /// Reads a name; anything that is not exactly of its shape is an error.
    pub fn parse(name: &str) -> Result<PlanName, PlanError> {
        let (directory, file) = name.split_once('/').ok_or(PlanError::Name)?;
        let host = parse_host(directory).ok_or(PlanError::Name)?;
        let stem = file.strip_suffix(".plan").ok_or(PlanError::Name)?;
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if stem.is_empty() || stem.len() > STEM_BYTES || !stem.bytes().all(plain) {
            return Err(PlanError::Name);
        }
        Ok(PlanName { host, stem: stem.to_owned() })
    }

    fn directory(&self) -> String {
        format!("{}.{}", self.host.pid, self.host.start)
    }

    fn file(&self) -> String {
        format!("{}.plan", self.stem)
    }
}

/// `<pid>.<start>` in the one way that these numbers are written.
fn parse_host(text: &str) -> Option<ProcessId> {
    let (pid, start) = text.split_once('.')?;
    let host = ProcessId { pid: pid.parse().ok()?, start: start.parse().ok()? };
    (format!("{}.{}", host.pid, host.start) == text).then_some(host)
}

/// All published plans.
#[derive(Debug)]
pub struct Plans {
    root: PathBuf,
    owner: u32,
    published: HashMap<u32, BTreeMap<PlanName, u64>>,
    temporary: u64,
}

impl Plans {
    /// Makes the directory if it is missing, takes over what an earlier probe published there, and removes the plans
    /// of hosts that have ended.
    pub fn open(root: &Path) -> Result<Plans, PlanError> {
        let at = |error| PlanError::Io(root.to_owned(), error);
        make_directory(root, 0o755).map_err(at)?;
        let owner = nix::unistd::geteuid().as_raw();
        let meta = fs::symlink_metadata(root).map_err(at)?;
        if !meta.is_dir() || meta.uid() != owner || meta.mode() & 0o022 != 0 {
            return Err(PlanError::Unsafe(root.to_owned(), owner));
        }
        let mut plans = Plans { root: root.to_owned(), owner, published: HashMap::new(), temporary: 0 };
        for entry in fs::read_dir(root).map_err(at)? {
            let entry = entry.map_err(at)?;
            if let Some(uid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) {
                plans.take_over(uid).map_err(|error| PlanError::Io(entry.path(), error))?;
                plans.forget_ended_hosts(uid);
            }
        }
        Ok(plans)
    }

    fn take_over(&mut self, uid: u32) -> io::Result<()> {
        let mut found = BTreeMap::new();
        for host in fs::read_dir(self.directory_of(uid))? {
            let host = host?.path();
            for plan in fs::read_dir(&host)? {
                let plan = plan?;
                let relative =
                    plan.path().strip_prefix(self.directory_of(uid)).ok().and_then(Path::to_str).map(str::to_owned);
                match relative.and_then(|name| PlanName::parse(&name).ok()) {
                    Some(name) => drop(found.insert(name, plan.metadata()?.len())),
                    // Half written when an earlier probe was killed.
                    None => fs::remove_file(plan.path())?,
                }
            }
        }
        self.published.insert(uid, found);
        Ok(())
    }

    /// Where this uid's plans are; the directory exists once one was published.
    pub fn directory_of(&self, uid: u32) -> PathBuf {
        self.root.join(uid.to_string())
    }

    /// Publishes a plan in one step: a reader finds the one before, or this one whole. Answers with its path.
    /// `group` is used only where the file system knows no ACL: then that group may read too.
    pub fn publish(&mut self, uid: u32, group: u32, name: &str, plan: &[u8]) -> Result<PathBuf, PlanError> {
        let name = PlanName::parse(name)?;
        if plan.is_empty() {
            return Err(PlanError::Empty);
        }
        if self.would_exceed(uid, &name, plan.len() as u64) {
            self.forget_ended_hosts(uid);
        }
        if self.would_exceed(uid, &name, plan.len() as u64) {
            let own = self.published.entry(uid).or_default();
            return Err(PlanError::Limit { plans: own.len(), bytes: own.values().sum() });
        }
        let of_uid = self.directory_of(uid);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| PlanError::Io(path, error)
        };
        self.private_directory(&of_uid, uid, group).map_err(failed(&of_uid))?;
        let directory = of_uid.join(name.directory());
        make_directory(&directory, 0o755).map_err(failed(&directory))?;
        let path = directory.join(name.file());
        self.temporary += 1;
        // No plan's name begins with a dot.
        let temporary = directory.join(format!(".{}-{}", std::process::id(), self.temporary));
        let written = write_new(&temporary, plan).and_then(|()| fs::rename(&temporary, &path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.map_err(failed(&path))?;
        self.published.entry(uid).or_default().insert(name, plan.len() as u64);
        Ok(path)
    }

    fn would_exceed(&self, uid: u32, name: &PlanName, bytes: u64) -> bool {
        let Some(own) = self.published.get(&uid) else { return bytes > BYTES_PER_UID };
        let others = own.iter().filter(|(other, _)| *other != name);
        let (plans, sum) = others.fold((0, 0), |(plans, sum), (_, bytes)| (plans + 1, sum + bytes));
        plans >= PLANS_PER_UID || sum + bytes > BYTES_PER_UID
    }

    /// Removes a plan; one that is not there is no error.
    pub fn remove(&mut self, uid: u32, name: &str) -> Result<(), PlanError> {
        let name = PlanName::parse(name)?;
        let directory = self.directory_of(uid).join(name.directory());
        let path = directory.join(name.file());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(PlanError::Io(path, error)),
            _ => {}
        }
        // Succeeds for the last plan of a host only.
        let _ = fs::remove_dir(&directory);
        if let Some(own) = self.published.get_mut(&uid) {
            own.remove(&name);
        }
        Ok(())
    }

    /// A plan is of use while its host lives: nothing else is launched by it.
    fn forget_ended_hosts(&mut self, uid: u32) {
        let own = self.published.get(&uid).cloned().unwrap_or_default();
        for name in own.into_keys() {
            let lives = process::stat(name.host.pid).is_ok_and(|stat| stat.id == name.host);
            if !lives {
                let _ = self.remove(uid, &format!("{}/{}", name.directory(), name.file()));
            }
        }
    }

    /// A directory that `uid` may read, and nobody but its owner may change.
    fn private_directory(&self, path: &Path, uid: u32, group: u32) -> io::Result<()> {
        match fs::symlink_metadata(path) {
            Ok(meta) if meta.is_dir() && meta.uid() == self.owner => return Ok(()),
            Ok(_) => return Err(io::Error::other("is there already, and is not this probe's")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        make_directory(path, 0o700)?;
        let directory = File::open(path)?;
        match rustix::fs::fsetxattr(&directory, ACL, &acl_for(uid), rustix::fs::XattrFlags::empty()) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => {
                std::os::unix::fs::fchown(&directory, None, Some(group))?;
                directory.set_permissions(Permissions::from_mode(0o750))
            }
            Err(error) => {
                let _ = fs::remove_dir(path);
                Err(error.into())
            }
        }
    }
}

/// Makes a directory with exactly this mode, whatever the umask; one that is there is left as it is.
pub(super) fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(0o644))
}

/// The kernel's form of an ACL (acl(5), `linux/posix_acl_xattr.h`): the owner all, `uid` read and search, others nothing.
fn acl_for(uid: u32) -> Vec<u8> {
    const VERSION: u32 = 2;
    const NO_ID: u32 = u32::MAX;
    const READ_AND_SEARCH: u16 = 5;
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, NO_ID),               // the owner
        (0x02, READ_AND_SEARCH, uid),   // this user
        (0x04, 0, NO_ID),               // the group
        (0x10, READ_AND_SEARCH, NO_ID), // the mask: most that named users and groups get
        (0x20, 0, NO_ID),               // others
    ];
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn this_host() -> String {
        let id = process::stat(std::process::id()).unwrap().id;
        format!("{}.{}", id.pid, id.start)
    }

    fn readable_directory() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        dir
    }

    #[test]
    fn names_have_one_shape() {
        for good in ["1.2/session.plan", "4194304.18446744073709551615/call-0a9.plan", "0.0/-.plan"] {
            assert!(PlanName::parse(good).is_ok(), "{good}");
        }
        let long = format!("1.2/{}.plan", "a".repeat(STEM_BYTES + 1));
        for bad in [
            "",
            "/",
            "1.2",
            "1.2/",
            "1.2/.plan",
            "1.2/a",
            "1.2/a.plan/",
            "1.2/A.plan",
            "1.2/a.b.plan",
            "1.2/a/b.plan",
            "../1.2/a.plan",
            "1.2/../a.plan",
            "..",
            "./a.plan",
            "1/a.plan",
            ".1/a.plan",
            "1./a.plan",
            "-1.2/a.plan",
            "+1.2/a.plan",
            "01.2/a.plan",
            "1.02/a.plan",
            "1.2.3/a.plan",
            "1.2/a\0.plan",
            "1.2/ä.plan",
            " 1.2/a.plan",
            "1.2/a.plan\n",
            "99999999999.1/a.plan",
            "/etc/passwd",
            "1.2//a.plan",
            &long,
        ] {
            assert!(matches!(PlanName::parse(bad), Err(PlanError::Name)), "{bad:?}");
        }
    }

    #[test]
    fn a_plan_is_replaced_in_one_step_and_removed() {
        let dir = readable_directory();
        let mut plans = Plans::open(&dir.path().join("plans")).unwrap();
        let name = format!("{}/session.plan", this_host());
        let path = plans.publish(1234, 0, &name, b"one").unwrap();
        let mut held = File::open(&path).unwrap();
        assert_eq!(plans.publish(1234, 0, &name, b"two").unwrap(), path);
        let mut before = String::new();
        io::Read::read_to_string(&mut held, &mut before).unwrap();
        assert_eq!((before.as_str(), fs::read(&path).unwrap().as_slice()), ("one", b"two".as_slice()));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        plans.remove(1234, &name).unwrap();
        plans.remove(1234, &name).unwrap();
        assert!(!path.parent().unwrap().exists());
        assert!(matches!(plans.remove(1234, "../1234/x.plan"), Err(PlanError::Name)));
        assert!(matches!(plans.publish(1234, 0, &name, b""), Err(PlanError::Empty)));
    }

    #[test]
    fn size_and_number_are_bounded_per_uid() {
        let dir = readable_directory();
        let mut plans = Plans::open(&dir.path().join("plans")).unwrap();
        let host = PlanName::parse(&format!("{}/x.plan", this_host())).unwrap().host;
        let name = |stem: &str| PlanName { host, stem: stem.to_owned() };
        plans.published.insert(7, BTreeMap::from([(name("large"), BYTES_PER_UID - 2)]));
        let ours = this_host();
        assert!(matches!(plans.publish(7, 0, &format!("{ours}/b.plan"), b"xxx"), Err(PlanError::Limit { .. })));
        plans.publish(7, 0, &format!("{ours}/b.plan"), b"xx").unwrap();
        let many = (0..PLANS_PER_UID).map(|i| (name(&i.to_string()), 1)).collect();
        plans.published.insert(8, many);
        assert!(matches!(plans.publish(8, 0, &format!("{ours}/b.plan"), b"x"), Err(PlanError::Limit { .. })));
        plans.publish(8, 0, &format!("{ours}/17.plan"), b"replaces one").unwrap();
        plans.publish(9, 0, &format!("{ours}/b.plan"), b"x").unwrap();
    }

    #[test]
    fn a_restart_takes_over_and_forgets_hosts_that_ended() {
        let dir = readable_directory();
        let root = dir.path().join("plans");
        let mut plans = Plans::open(&root).unwrap();
        let ours = format!("{}/session.plan", this_host());
        let kept = plans.publish(7, 0, &ours, b"kept").unwrap();
        let ended = plans.publish(7, 0, "1.999999999/session.plan", b"ended").unwrap();
        fs::write(kept.with_file_name(".12-3"), b"half").unwrap();
        drop(plans);
        let plans = Plans::open(&root).unwrap();
        assert_eq!(fs::read(&kept).unwrap(), b"kept");
        assert!(!ended.exists() && !kept.with_file_name(".12-3").exists());
        assert_eq!(plans.published[&7].len(), 1);
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let dir = readable_directory();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(Plans::open(dir.path()), Err(PlanError::Unsafe(..))));
        let root = dir.path().join("link");
        std::os::unix::fs::symlink("/", &root).unwrap();
        assert!(matches!(Plans::open(&root), Err(PlanError::Unsafe(..))));
    }

    #[test]
    fn its_user_reads_it_and_cannot_change_it_and_others_see_nothing() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root to become other users");
            return;
        }
        let dir = readable_directory();
        let mut plans = Plans::open(&dir.path().join("plans")).unwrap();
        let path = plans.publish(61_234, 61_234, &format!("{}/session.plan", this_host()), b"whole").unwrap();
        let run = |uid: &str, script: &str| {
            let ids = ["--reuid", uid, "--regid", "61234", "--clear-groups", "sh", "-c", script, "sh"];
            Command::new("setpriv").args(ids).arg(&path).output().unwrap()
        };
        assert_eq!(run("61234", "cat \"$1\"").stdout, b"whole");
        // The group alone opens nothing.
        assert!(run("61235", "cat \"$1\"").stdout.is_empty());
        for attempt in [
            "echo x > \"$1\"",
            "rm -f \"$1\"",
            "chmod u+w \"$1\"",
            "mv \"$1\" \"$1.old\"",
            "mkdir \"${1%/*/*}/new\"",
            "touch \"${1%/*}/other.plan\"",
            "chmod 777 \"${1%/*/*}\"",
        ] {
            assert!(!run("61234", attempt).status.success(), "{attempt}");
        }
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
