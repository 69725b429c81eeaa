//! Puts Landlock on, and says right by right what of it holds.
//!
//! Best effort is decided here and not by the crate, which drops rights and paths without a word: the newest ABI that
//! crate, kernel and cap allow is asked for as a hard requirement, and what the plan wanted beyond it is in the receipt.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, Scope,
};

use super::plan::{LandlockPlan, PathRule, right_names, rights};
use super::receipt::{Grade, LayerReceipt};

/// The newest ABI whose rights this build knows.
pub const NEWEST_ABI: u32 = 10;
/// Rights that mean something on a file that is no directory.
const FILE_RIGHTS: u64 = AccessFs::Execute as u64
    | AccessFs::WriteFile as u64
    | AccessFs::ReadFile as u64
    | AccessFs::Truncate as u64
    | AccessFs::IoctlDev as u64
    | AccessFs::ResolveUnix as u64;

/// What this kernel offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// This ABI (1 with Linux 5.13).
    Abi(u32),
    /// ENOSYS: the kernel is older than 5.13, built without it, or somebody's filter hides it.
    Absent,
    /// EOPNOTSUPP: built in, but not among the active LSMs.
    OffAtBoot,
    /// Another errno: a filter around this process refuses the call.
    Refused(i32),
}

impl Support {
    /// Why there is none, for people; `None` where there is.
    pub fn lack(self) -> Option<String> {
        match self {
            Support::Abi(_) => None,
            Support::Absent => Some("absent: this kernel has no Landlock (Linux 5.13 brings it; ENOSYS)".into()),
            Support::OffAtBoot => Some(
                "off at boot: add landlock to the kernel's list of security modules, lsm=landlock,<current list> \
                 (/sys/kernel/security/lsm shows it; EOPNOTSUPP)"
                    .into(),
            ),
            Support::Refused(errno) => Some(format!("refused by what surrounds this process (errno {errno})")),
        }
    }
}

/// Why Landlock could not be put on.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    /// The fence requires it, or is strict.
    #[error("{0}")]
    Required(String),
    /// A rule that the fence cannot be without.
    #[error("{0} {1}")]
    RequiredPath(String, &'static str),
    /// The kernel refused a step that it says it knows.
    #[error("{0}: {1}")]
    Kernel(&'static str, String),
}

/// Asks the kernel for its ABI.
pub fn support() -> Support {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with the flag VERSION the call takes a null attribute and size 0, reads no memory and makes nothing.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    match (answer, io::Error::last_os_error().raw_os_error()) {
        (abi, _) if abi > 0 => Support::Abi(abi as u32),
        (_, Some(libc::ENOSYS)) => Support::Absent,
        (_, Some(libc::EOPNOTSUPP)) => Support::OffAtBoot,
        (_, errno) => Support::Refused(errno.unwrap_or(0)),
    }
}

/// A rule set that is filled and not yet in force.
pub struct Prepared {
    ruleset: Option<RulesetCreated>,
    receipt: LayerReceipt,
}

/// Opens every grant, checks that it is the file the plan recorded, and fills a rule set with it.
///
/// `strict`: any right that the kernel lacks and any grant that is gone refuses. `required`: a kernel without Landlock
/// refuses. `cap` is the ABI that is not exceeded, for tests. `written` is one open file more that can be
/// written.
pub fn prepare(
    plan: &LandlockPlan,
    strict: bool,
    required: bool,
    cap: Option<u32>,
    written: Option<&File>,
) -> Result<Prepared, LandlockError> {
    let support = support();
    let abi = match support {
        Support::Abi(abi) => abi.min(NEWEST_ABI).min(cap.unwrap_or(NEWEST_ABI)),
        _ => 0,
    };
    let mut receipt = LayerReceipt {
        layer: "landlock".into(),
        grade: Grade::Full,
        abi: (abi > 0).then_some(abi),
        missing: Vec::new(),
        grants: Vec::new(),
    };
    if abi == 0 {
        let lack = support.lack().unwrap_or_else(|| "held off by the tests' cap".into());
        if strict || required {
            return Err(LandlockError::Required(format!("Landlock is {lack}; this fence requires it")));
        }
        receipt.missing.push(lack);
        return Ok(not_on(receipt));
    }
    receipt.missing = lost(plan, abi);
    if strict && let Some(first) = receipt.missing.first() {
        return Err(LandlockError::Required(format!(
            "a strict fence needs every right, and this kernel lacks {first}"
        )));
    }
    if abi == 1 {
        // Under any rule set ABI 1 refuses to rename or link across directories (EXDEV), which cargo and git live by.
        return Ok(not_on(receipt));
    }
    let level = ABI::from(abi as i32);
    let mut handled = AccessFs::from_all(level);
    if !plan.outside_sockets {
        handled.remove(AccessFs::ResolveUnix);
    }
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(handled)
        .map_err(|e| LandlockError::Kernel("choosing the file rights", e.to_string()))?;
    if plan.ports.is_some() && abi >= 4 {
        ruleset = ruleset
            .handle_access(AccessNet::from_all(level))
            .map_err(|e| LandlockError::Kernel("choosing the network rights", e.to_string()))?;
    }
    if abi >= 6 {
        let scopes: BitFlags<Scope> =
            [(plan.scope_abstract_unix, Scope::AbstractUnixSocket), (plan.scope_signals, Scope::Signal)]
                .iter()
                .filter(|(wanted, _)| *wanted)
                .map(|(_, scope)| *scope)
                .collect();
        if !scopes.is_empty() {
            ruleset = ruleset.scope(scopes).map_err(|e| LandlockError::Kernel("choosing the scopes", e.to_string()))?;
        }
    }
    let mut created = ruleset.create().map_err(|e| LandlockError::Kernel("landlock_create_ruleset", e.to_string()))?;
    for rule in &plan.paths {
        match open_as_recorded(rule) {
            Ok((file, is_directory)) => {
                created = grant(created, &file, is_directory, rule.access, handled)?;
            }
            Err(reason) if rule.required || (strict && rule.identity.is_some()) => {
                return Err(LandlockError::RequiredPath(rule.path().display().to_string(), reason));
            }
            Err(_) if rule.identity.is_none() => {}
            Err(reason) => {
                receipt.grants.push(format!("left out: {} ({reason})", rule.path().display()));
            }
        }
    }
    if let Some(ports) = &plan.ports
        && abi >= 4
    {
        let connect = ports.connect.iter().map(|port| NetPort::new(*port, AccessNet::ConnectTcp));
        let bind = ports.bind.iter().map(|port| NetPort::new(*port, AccessNet::BindTcp));
        for rule in connect.chain(bind) {
            created = created.add_rule(rule).map_err(|e| LandlockError::Kernel("granting a port", e.to_string()))?;
        }
    }
    if let Some(file) = written {
        created = grant(created, file, false, rights::DEVICE, handled)?;
    }
    for descriptor in 0..=2 {
        created = grant_standard_stream(created, descriptor, handled)?;
    }
    if !receipt.missing.is_empty() {
        receipt.grade = Grade::Partial;
    }
    if !plan.reads.is_empty() {
        receipt.grants.push(format!("reads: {}", plan.reads));
    }
    Ok(Prepared { ruleset: Some(created), receipt })
}

impl Prepared {
    /// Puts it in force for this thread and all that comes of it. `no_new_privs` must be set.
    pub fn enforce(self) -> Result<LayerReceipt, LandlockError> {
        if let Some(ruleset) = self.ruleset {
            let status = ruleset.restrict_self().map_err(|e| {
                LandlockError::Kernel("landlock_restrict_self (16 nested fences at most)", e.to_string())
            })?;
            if status.ruleset == landlock::RulesetStatus::NotEnforced {
                return Err(LandlockError::Kernel("landlock_restrict_self", "nothing came into force".into()));
            }
        }
        Ok(self.receipt)
    }
}

/// A receipt that says nothing is in force.
fn not_on(mut receipt: LayerReceipt) -> Prepared {
    receipt.grade = Grade::None;
    Prepared { ruleset: None, receipt }
}

/// What the plan asks for and this ABI cannot give.
fn lost(plan: &LandlockPlan, abi: u32) -> Vec<String> {
    let mut lost = Vec::new();
    if abi < 2 {
        lost.push("every path right: no REFER (ABI 2, Linux 5.19), and without it cargo and git cannot rename".into());
    }
    if abi < 3 {
        lost.push("truncate (ABI 3, Linux 6.2)".into());
    }
    if plan.ports.is_some() && !plan.filter_covers_tcp && abi < 4 {
        lost.push("TCP ports (ABI 4, Linux 6.7)".into());
    }
    if abi < 5 {
        lost.push("ioctl_dev (ABI 5, Linux 6.10)".into());
    }
    if plan.scope_abstract_unix && abi < 6 {
        lost.push("scope of abstract unix sockets (ABI 6, Linux 6.12)".into());
    }
    if plan.scope_signals && abi < 6 {
        lost.push("scope of signals (ABI 6, Linux 6.12)".into());
    }
    if plan.outside_sockets && abi < 9 {
        lost.push("resolve_unix: pathname unix sockets (ABI 9, Linux 7.1)".into());
    }
    if plan.ports.is_some() && !plan.filter_covers_udp && abi < 10 {
        lost.push("UDP ports (ABI 10, Linux 7.2)".into());
    }
    lost
}

/// Opens a grant without following any link, and tells whether it is a directory.
fn open_as_recorded(rule: &PathRule) -> Result<(File, bool), &'static str> {
    let file = open_without_links(rule.path()).map_err(|errno| match errno {
        libc::ENOENT => "gone",
        libc::ELOOP => "a link stands in its way",
        libc::EACCES | libc::EPERM => "may not be opened",
        _ => "cannot be opened",
    })?;
    let mut now = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `file` is an open descriptor, and fstat fills the whole struct when it returns 0.
    let now = unsafe {
        if libc::fstat(file.as_raw_fd(), now.as_mut_ptr()) != 0 {
            return Err("cannot be examined");
        }
        now.assume_init()
    };
    let is_directory = now.st_mode & libc::S_IFMT == libc::S_IFDIR;
    match rule.identity {
        Some(recorded) if recorded != (now.st_dev, now.st_ino) => Err("replaced since the plan was made"),
        None if !is_directory => Err("not a directory"),
        _ => Ok((file, is_directory)),
    }
}

/// `openat2` with O_PATH and RESOLVE_NO_SYMLINKS.
fn open_without_links(path: &Path) -> Result<File, i32> {
    use std::os::unix::ffi::OsStrExt;
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
    // SAFETY: `open_how` is plain integers, for which all zeroes is a value; the kernel requires unknown fields zero.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_NO_SYMLINKS;
    // SAFETY: `name` is NUL-terminated and `how` is a valid open_how of the given size, both alive over the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, name.as_ptr(), &raw const how, size_of::<libc::open_how>())
    };
    if fd < 0 {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    // SAFETY: the kernel has just given this descriptor to us and nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd as RawFd) })
}

/// One grant, cut to the rights that this ABI handles and this kind of file can have.
fn grant(
    created: RulesetCreated,
    file: impl AsFd,
    is_directory: bool,
    access: u64,
    handled: BitFlags<AccessFs>,
) -> Result<RulesetCreated, LandlockError> {
    let meaningful = if is_directory { access } else { access & FILE_RIGHTS };
    let access = BitFlags::<AccessFs>::from_bits_truncate(meaningful) & handled;
    if access.is_empty() {
        return Ok(created);
    }
    created
        .add_rule(PathBeneath::new(file, access))
        .map_err(|e| LandlockError::Kernel("granting a path", e.to_string()))
}

/// What a host opened for the command stays usable when it is opened again (`/dev/stdout`), as it was opened.
fn grant_standard_stream(
    created: RulesetCreated,
    descriptor: RawFd,
    handled: BitFlags<AccessFs>,
) -> Result<RulesetCreated, LandlockError> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat fills the struct when it returns 0 and answers EBADF for a closed descriptor.
    let (mode, flags) = unsafe {
        if libc::fstat(descriptor, status.as_mut_ptr()) != 0 {
            return Ok(created);
        }
        (status.assume_init().st_mode, libc::fcntl(descriptor, libc::F_GETFL))
    };
    let kind = mode & libc::S_IFMT;
    if flags < 0 || flags & libc::O_PATH != 0 || (kind != libc::S_IFREG && kind != libc::S_IFCHR) {
        return Ok(created);
    }
    let write = AccessFs::WriteFile as u64 | AccessFs::Truncate as u64;
    let mut access = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => AccessFs::ReadFile as u64,
        libc::O_WRONLY => write,
        _ => AccessFs::ReadFile as u64 | write,
    };
    if kind == libc::S_IFCHR {
        access |= AccessFs::IoctlDev as u64;
    }
    // SAFETY: fstat has just answered for this descriptor, and this single-threaded program closes none of 0 to 2.
    let stream = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
    grant(created, stream, false, access, handled)
}

/// The rights of a set by name, for messages.
pub fn describe(access: u64) -> String {
    if access == rights::READ {
        return "read".into();
    }
    right_names(access).join("+")
}
