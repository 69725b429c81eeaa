//! Loading the programs, attaching them and pinning what must outlive the probe.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use aya::programs::{Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};
use aya_obj::btf::BtfKind;
use aya_obj::generated::bpf_attach_type;

use ringfence_common::maps::TIER_UNIX_BY_PEER;

use super::btf::TypeInfo;
use super::{KernelError, call, log, maps, mount};
use crate::probe::protocol::ProgramState;

/// How a program meets the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hook {
    /// A BTF tracepoint, always attached.
    Tracepoint(&'static str),
    /// A BTF tracepoint that is attached only when asked.
    OnDemand(&'static str),
    /// An iterator over tasks.
    Tasks,
    /// An LSM program, by the hook's name.
    Lsm(&'static str),
    /// A cgroup socket address program.
    Cgroup(bpf_attach_type),
    /// The same, of a type that the library cannot load.
    CgroupUnix(u32),
}

struct Spec {
    name: &'static str,
    hook: Hook,
    /// Whether nothing works without it.
    required: bool,
}

/// Name of the program that watches system calls.
pub const SYS_EXIT: &str = "rf_sys_exit";
/// Name of the iterator that enrols.
pub const ENROL: &str = "rf_enrol";
/// Name of the iterator that tells how the kernel keys a file.
pub const IDENTIFY: &str = "rf_identify";

/// An LSM program: where these do not load, the cgroup programs and tracepoints refuse what they can.
const fn lsm(name: &'static str, hook: &'static str) -> Spec {
    Spec { name, hook: Hook::Lsm(hook), required: false }
}

/// All programs, in the order of attaching: marks are handed down before anything reports them. The kernel keeps fifteen
/// characters of a name: these are whole in its statistics (`kernel.bpf_stats_enabled`).
const PROGRAMS: &[Spec] = &[
    lsm("rf_task_alloc", "task_alloc"),
    Spec { name: "rf_fork", hook: Hook::Tracepoint("sched_process_fork"), required: true },
    Spec { name: "rf_exit", hook: Hook::Tracepoint("sched_process_exit"), required: true },
    Spec { name: "rf_exec", hook: Hook::Tracepoint("sched_process_exec"), required: true },
    Spec { name: IDENTIFY, hook: Hook::Tasks, required: true },
    Spec { name: ENROL, hook: Hook::Tasks, required: true },
    Spec { name: SYS_EXIT, hook: Hook::OnDemand("sys_exit"), required: false },
    Spec { name: "rf_connect4", hook: Hook::Cgroup(bpf_attach_type::BPF_CGROUP_INET4_CONNECT), required: false },
    Spec { name: "rf_connect6", hook: Hook::Cgroup(bpf_attach_type::BPF_CGROUP_INET6_CONNECT), required: false },
    Spec { name: "rf_sendmsg4", hook: Hook::Cgroup(bpf_attach_type::BPF_CGROUP_UDP4_SENDMSG), required: false },
    Spec { name: "rf_sendmsg6", hook: Hook::Cgroup(bpf_attach_type::BPF_CGROUP_UDP6_SENDMSG), required: false },
    Spec { name: "rf_bind4", hook: Hook::Cgroup(bpf_attach_type::BPF_CGROUP_INET4_BIND), required: false },
    Spec { name: "rf_bind6", hook: Hook::Cgroup(bpf_attach_type::BPF_CGROUP_INET6_BIND), required: false },
    Spec { name: "rf_connect_unix", hook: Hook::CgroupUnix(call::CGROUP_UNIX_CONNECT), required: false },
    Spec { name: "rf_sendmsg_unix", hook: Hook::CgroupUnix(call::CGROUP_UNIX_SENDMSG), required: false },
    lsm("rf_bprm", "bprm_check_security"),
    lsm("rf_mmap", "mmap_file"),
    lsm("rf_ptrace", "ptrace_access_check"),
    lsm("rf_kill", "task_kill"),
    lsm("rf_sigio", "file_send_sigiotask"),
    lsm("rf_setrlimit", "task_setrlimit"),
    lsm("rf_setsched", "task_setscheduler"),
    lsm("rf_setnice", "task_setnice"),
    lsm("rf_setioprio", "task_setioprio"),
    lsm("rf_movememory", "task_movememory"),
    lsm("rf_userns", "userns_create"),
    lsm("rf_bpf", "bpf"),
    lsm("rf_sock_create", "socket_create"),
    lsm("rf_sock_made", "socket_post_create"),
    lsm("rf_sock_connect", "socket_connect"),
    lsm("rf_sock_sendmsg", "socket_sendmsg"),
    lsm("rf_sock_bind", "socket_bind"),
    lsm("rf_sock_listen", "socket_listen"),
    lsm(UNIX_BY_PEER[0], "unix_stream_connect"),
    lsm(UNIX_BY_PEER[1], "unix_may_send"),
    lsm("rf_file_open", "file_open"),
    lsm("rf_receive", "file_receive"),
    lsm("rf_create", "inode_create"),
    lsm("rf_mknod", "inode_mknod"),
    lsm("rf_symlink", "inode_symlink"),
    lsm("rf_mkdir", "inode_mkdir"),
    lsm("rf_unlink", "inode_unlink"),
    lsm("rf_rmdir", "inode_rmdir"),
    lsm("rf_link", "inode_link"),
    lsm("rf_rename", "inode_rename"),
    lsm("rf_truncate", "path_truncate"),
    lsm("rf_ftruncate", "file_truncate"),
    lsm("rf_setattr", "inode_setattr"),
    lsm("rf_setxattr", "inode_setxattr"),
    lsm("rf_removexattr", "inode_removexattr"),
    lsm("rf_set_acl", "inode_set_acl"),
    lsm("rf_remove_acl", "inode_remove_acl"),
];

/// The programs that know the resolved peer of a unix socket.
const UNIX_BY_PEER: [&str; 2] = ["rf_unix_stream", "rf_unix_dgram"];

/// The active security modules, one line.
const SECURITY_MODULES: &str = "/sys/kernel/security/lsm";

/// Which programs decide, bits `TIER_*`. An LSM program that is attached runs only if `bpf` is an active security
/// module; where the list cannot be read, being attached has to do.
pub fn tier(programs: &[ProgramState]) -> u32 {
    let attached = |name: &&str| programs.iter().any(|state| state.program == **name && state.attached);
    let active =
        std::fs::read_to_string(SECURITY_MODULES).map_or(true, |list| list.trim().split(',').any(|one| one == "bpf"));
    if active && UNIX_BY_PEER.iter().all(attached) { TIER_UNIX_BY_PEER } else { 0 }
}

/// Names of the LSM programs.
#[cfg(test)]
pub fn lsm_programs() -> impl Iterator<Item = &'static str> {
    PROGRAMS.iter().filter(|spec| matches!(spec.hook, Hook::Lsm(_))).map(|spec| spec.name)
}

/// Maps that are only used with the mirror.
const MIRROR_MAPS: [&str; 2] = ["MIRROR", "ATTEMPTS"];

/// The first program that wants task storage in a cgroup program: it decides whether the mirror is used.
const STORAGE_PROBE: &str = "rf_connect4";

const NO_UNIX_TYPES: &str = "this kernel's type information lacks unix sockets (they are a module)";
/// Why an LSM program is absent on an older kernel, where other hooks cover what it would.
pub const NO_HOOK: &str = "this kernel has no such hook";
const NO_UNIX_HOOK: &str = "this kernel has no such hook (it came with Linux 6.7)";

/// Where things are pinned. Names have no dots: bpffs reserves them.
#[derive(Clone, Debug)]
pub struct Pins {
    root: PathBuf,
}

impl Pins {
    /// Below this directory.
    pub fn new(root: &Path) -> Pins {
        Pins { root: root.to_owned() }
    }

    /// The maps.
    pub fn maps(&self) -> PathBuf {
        self.root.join("maps")
    }

    /// The users' ring buffers.
    pub fn rings(&self) -> PathBuf {
        self.root.join("rings")
    }

    /// The link of a program.
    pub fn link(&self, program: &str) -> PathBuf {
        self.root.join("links").join(program)
    }

    /// A program that is attached on demand.
    pub fn program(&self, program: &str) -> PathBuf {
        self.root.join("programs").join(program)
    }

    /// Makes the directories.
    pub fn make(&self) -> Result<(), KernelError> {
        for directory in
            [self.root.clone(), self.maps(), self.rings(), self.root.join("links"), self.root.join("programs")]
        {
            mount::make_private_directory(&directory).map_err(|e| KernelError::Place(directory, e))?;
        }
        Ok(())
    }

    /// Removes every pin: links first, so that no program runs on maps that are going.
    pub fn remove(&self) -> Result<(), KernelError> {
        for directory in ["links", "programs", "rings", "maps"].map(|name| self.root.join(name)) {
            let Ok(entries) = std::fs::read_dir(&directory) else { continue };
            let place = |e| KernelError::Place(directory.clone(), e);
            for entry in entries {
                std::fs::remove_file(entry.map_err(place)?.path()).map_err(place)?;
            }
            std::fs::remove_dir(&directory).map_err(place)?;
        }
        // A mount point of its own stays; so does a directory that holds something else.
        let _ = std::fs::remove_dir(&self.root);
        Ok(())
    }

    /// The programs that are pinned; `None` when one is missing without which nothing works.
    pub fn usable(&self) -> Option<HashSet<&'static str>> {
        let pinned = |spec: &&Spec| match spec.hook {
            Hook::OnDemand(_) => self.program(spec.name).exists(),
            _ => self.link(spec.name).exists(),
        };
        let pinned: HashSet<_> = PROGRAMS.iter().filter(pinned).map(|spec| spec.name).collect();
        PROGRAMS.iter().all(|spec| !spec.required || pinned.contains(spec.name)).then_some(pinned)
    }

    /// Whether the programs use the mirror: without it that map has room for one.
    fn has_mirror(&self) -> bool {
        let capacity = call::open_pin(&self.maps().join(MIRROR_MAPS[0])).and_then(|map| call::map_sizes(map.as_fd()));
        capacity.is_ok_and(|(_, _, capacity)| capacity > 1)
    }

    fn on_demand(&self, name: &str) -> ProgramState {
        let attached = self.link(name).exists();
        let reason = (!attached).then(|| "attached only while a launch may live".to_owned());
        ProgramState { program: name.to_owned(), attached, reason }
    }
}

fn attached(name: &str) -> ProgramState {
    ProgramState { program: name.to_owned(), attached: true, reason: None }
}

fn absent(name: &str, reason: String) -> ProgramState {
    ProgramState { program: name.to_owned(), attached: false, reason: Some(reason) }
}

/// What is written into the object's read-only globals.
fn globals(mirror: bool) -> Result<Vec<(&'static str, u64)>, KernelError> {
    macro_rules! table {
        ($($name:ident: $struct:literal, $member:literal;)*) => { [$((stringify!($name), $struct, $member)),*] };
    }
    let info = TypeInfo::of_running_kernel()?;
    let fields = ringfence_common::kernel_fields!(table);
    let syscall = ringfence_common::syscall_fields!(table);
    let mut globals = Vec::with_capacity(fields.len() + syscall.len() + 1);
    for (name, structure, member) in fields.into_iter().chain(syscall) {
        globals.push((name, info.offset(structure, member)?));
    }
    let optional = ringfence_common::optional_kernel_fields!(table);
    globals.extend(optional.map(|(name, structure, member)| (name, info.offset(structure, member).unwrap_or(0))));
    globals.extend(
        ringfence_common::hook_arguments!(table)
            .map(|(name, hook, structure)| (name, info.argument(&format!("bpf_lsm_{hook}"), structure).unwrap_or(0))),
    );
    globals.push(("USE_MIRROR", u64::from(mirror)));
    Ok(globals)
}

/// Loads, attaches and pins everything; maps that are pinned already are used. Programs that are attached already are
/// replaced only once their successors run, so no fork goes unmarked.
///
/// The pinned programs in `kept` are of this object and stay as they are: only what this kernel refused then is tried
/// again. `mirror` is only for tests: it forces what kernels without task storage in cgroup programs need.
pub fn load(
    object: &[u8],
    pins: &Pins,
    cgroup: &Path,
    mirror: bool,
    kept: &HashSet<&str>,
) -> Result<Vec<ProgramState>, KernelError> {
    let pinned = |spec: &Spec| match spec.hook {
        Hook::OnDemand(_) => pins.on_demand(spec.name),
        _ => attached(spec.name),
    };
    if PROGRAMS.iter().all(|spec| kept.contains(spec.name)) {
        return Ok(PROGRAMS.iter().map(pinned).collect());
    }
    let types = Btf::from_sys_fs().map_err(|e| KernelError::Btf(e.to_string()))?;
    let mirror = mirror || (!kept.is_empty() && pins.has_mirror());
    let mut loading = Loading::new(object, pins, mirror)?;
    let mut probe = Err("it is attached already".into());
    if !kept.contains(STORAGE_PROBE) {
        probe = loading.load(STORAGE_PROBE, &types);
    }
    if probe.is_err() && kept.is_empty() && !mirror {
        let mut second = Loading::new(object, pins, true)?;
        let again = second.load(STORAGE_PROBE, &types);
        if again.is_ok() {
            (loading, probe) = (second, again);
        }
    }
    let mut programs: HashMap<&str, Result<OwnedFd, String>> = HashMap::from([(STORAGE_PROBE, probe)]);
    for spec in PROGRAMS.iter().filter(|spec| spec.name != STORAGE_PROBE && !kept.contains(spec.name)) {
        let loaded = match spec.hook {
            Hook::CgroupUnix(kind) => loading.load_unix(spec.name, kind),
            _ => loading.load(spec.name, &types),
        };
        programs.insert(spec.name, loaded);
    }
    if log::is_in(object) {
        log::follow(&mut loading.programs);
    }
    let cgroup = File::open(cgroup).map_err(|e| format!("{}: {e}", cgroup.display()));
    let mut states = Vec::with_capacity(PROGRAMS.len());
    for spec in PROGRAMS {
        if kept.contains(spec.name) {
            states.push(pinned(spec));
            continue;
        }
        let program = programs.remove(spec.name).unwrap_or_else(|| Err("it was not loaded".into()));
        let done =
            program.and_then(|program| place(spec, program.as_fd(), pins, cgroup.as_ref().map_err(String::as_str)));
        states.push(match done {
            Ok(()) if matches!(spec.hook, Hook::OnDemand(_)) => pins.on_demand(spec.name),
            Ok(()) => attached(spec.name),
            Err(reason) if spec.required => return Err(KernelError::Refused(spec.name.to_owned(), reason)),
            Err(reason) => {
                // A predecessor that cannot be replaced would run on with old assumptions.
                let _ = std::fs::remove_file(pins.link(spec.name));
                absent(spec.name, reason)
            }
        });
    }
    Ok(states)
}

/// Attaches a program and pins it in the place of its predecessor.
fn place(spec: &Spec, program: BorrowedFd<'_>, pins: &Pins, cgroup: Result<&File, &str>) -> Result<(), String> {
    match spec.hook {
        Hook::Tracepoint(_) | Hook::Lsm(_) => attach_pinned(program, &pins.link(spec.name)),
        Hook::OnDemand(_) => {
            replace(program, &pins.program(spec.name))?;
            let link = pins.link(spec.name);
            if link.exists() { attach_pinned(program, &link) } else { Ok(()) }
        }
        Hook::Tasks => link_pinned(program, 0, bpf_attach_type::BPF_TRACE_ITER as u32, &pins.link(spec.name)),
        Hook::Cgroup(kind) => link_pinned(program, cgroup?.as_raw_fd(), kind as u32, &pins.link(spec.name)),
        Hook::CgroupUnix(kind) => link_pinned(program, cgroup?.as_raw_fd(), kind, &pins.link(spec.name)),
    }
}

/// Attaches a tracepoint program and pins its link at `path`.
pub fn attach_pinned(program: BorrowedFd<'_>, path: &Path) -> Result<(), String> {
    let link = call::attach_tracepoint(program).map_err(|e| format!("attaching: {e}"))?;
    replace(link.as_fd(), path)
}

fn link_pinned(program: BorrowedFd<'_>, target: RawFd, kind: u32, path: &Path) -> Result<(), String> {
    let link = call::link(program, target, kind).map_err(|e| format!("attaching: {e}"))?;
    replace(link.as_fd(), path)
}

/// Pins in one step in the place of what was there.
fn replace(fd: BorrowedFd<'_>, path: &Path) -> Result<(), String> {
    let mut new = path.as_os_str().to_owned();
    new.push("-new");
    let new = PathBuf::from(new);
    let _ = std::fs::remove_file(&new);
    call::pin(fd, &new).map_err(|e| format!("pinning: {e}"))?;
    std::fs::rename(&new, path).map_err(|e| format!("pinning: {e}"))
}

/// An object whose maps exist and whose programs are not loaded yet.
struct Loading<'a> {
    object: &'a [u8],
    pins: &'a Pins,
    globals: Vec<(&'static str, u64)>,
    programs: Ebpf,
}

impl<'a> Loading<'a> {
    fn new(object: &'a [u8], pins: &'a Pins, mirror: bool) -> Result<Self, KernelError> {
        let globals = globals(mirror)?;
        let pid_max =
            std::fs::read_to_string("/proc/sys/kernel/pid_max").ok().and_then(|text| text.trim().parse().ok());
        let mut loader = EbpfLoader::new();
        loader.allow_unsupported_maps();
        for (name, value) in &globals {
            loader.override_global(name, value, true);
        }
        if mirror {
            // A map of an attempt without the mirror has room for one, and nothing in it.
            for pin in MIRROR_MAPS.map(|name| pins.maps().join(name)) {
                let capacity = call::open_pin(&pin).and_then(|map| call::map_sizes(map.as_fd()));
                if capacity.is_ok_and(|(_, _, capacity)| capacity == 1) {
                    std::fs::remove_file(&pin).map_err(|e| KernelError::Place(pin, e))?;
                }
            }
            // As many as there can be processes: then it cannot fill. Not allocated beforehand.
            let pid_max =
                pid_max.ok_or_else(|| KernelError::Refused("MIRROR".into(), "pid_max is not known".into()))?;
            for name in MIRROR_MAPS {
                loader.map_max_entries(name, pid_max);
            }
        }
        for name in maps::NAMES {
            loader.map_pin_path(name, pins.maps().join(name));
        }
        let programs = loader.load(object).map_err(|e| KernelError::Refused("the maps".into(), chain(&e)))?;
        Ok(Loading { object, pins, globals, programs })
    }

    fn lacks(&self, field: &str) -> bool {
        self.globals.iter().any(|(name, offset)| *name == field && *offset == 0)
    }

    fn load(&mut self, name: &str, types: &Btf) -> Result<OwnedFd, String> {
        if UNIX_BY_PEER.contains(&name) && self.lacks("OFF_UNIX_DENTRY") {
            return Err(NO_UNIX_TYPES.into());
        }
        let hook = PROGRAMS.iter().find(|spec| spec.name == name).map(|spec| spec.hook);
        let program = self.programs.program_mut(name).ok_or("the object has no such program")?;
        match (program, hook) {
            (Program::BtfTracePoint(program), Some(Hook::Tracepoint(point) | Hook::OnDemand(point))) => {
                program.load(point, types)
            }
            (Program::Lsm(_), Some(Hook::Lsm(hook)))
                if types.id_by_type_name_kind(&format!("bpf_lsm_{hook}"), BtfKind::Func).is_err() =>
            {
                return Err(NO_HOOK.into());
            }
            (Program::Lsm(program), Some(Hook::Lsm(hook))) => program.load(hook, types),
            (Program::Iter(program), Some(Hook::Tasks)) => program.load("task", types),
            (Program::CgroupSockAddr(program), Some(Hook::Cgroup(_))) => program.load(),
            _ => return Err("the object has another kind of program by this name".into()),
        }
        .map_err(|e| refusal(&e))?;
        let program = self.programs.program(name).ok_or("the object has no such program")?;
        let fd = program.fd().map_err(|e| refusal(&e))?;
        fd.as_fd().try_clone_to_owned().map_err(|e| e.to_string())
    }

    /// The library relocates programs only on its way to load them itself: this takes the object apart once more.
    fn load_unix(&self, name: &str, kind: u32) -> Result<OwnedFd, String> {
        if self.lacks("OFF_SOCK_ADDR_UADDRLEN") {
            return Err(NO_UNIX_HOOK.into());
        }
        let mut object = aya_obj::Object::parse(self.object).map_err(|e| chain(&e))?;
        let values: Vec<_> = self.globals.iter().map(|(name, value)| (*name, value.to_ne_bytes())).collect();
        object
            .patch_map_data(values.iter().map(|(name, value)| (*name, (value.as_slice(), true))).collect())
            .map_err(|e| chain(&e))?;
        let open = |name: &str| match self.programs.map(name) {
            _ if maps::NAMES.contains(&name) => {
                call::open_pin(&self.pins.maps().join(name)).map_err(|e| format!("map {name}: {e}"))
            }
            // Not pinned: the globals, and log lines.
            Some(aya::maps::Map::Array(map) | aya::maps::Map::RingBuf(map)) => {
                map.fd().as_fd().try_clone_to_owned().map_err(|e| e.to_string())
            }
            _ => Err(format!("map {name} is unknown")),
        };
        let maps: Vec<(String, aya_obj::Map)> = object.maps.drain().collect();
        let fds: Vec<OwnedFd> = maps.iter().map(|(name, _)| open(name)).collect::<Result<_, _>>()?;
        let sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        let known = maps.iter().zip(&fds).map(|((name, map), fd)| (name.as_str(), fd.as_raw_fd(), map));
        object.relocate_maps(known, &sections).map_err(|e| chain(&e))?;
        object.relocate_calls(&sections).map_err(|e| chain(&e))?;
        object.sanitize_functions(aya::features());
        let program = object.programs.get(name).ok_or("the object has no such program")?;
        let function = object.functions.get(&program.function_key()).ok_or("the object has no such program")?;
        call::load_sock_addr(name, &function.instructions, kind).map_err(|(error, log)| match error.raw_os_error() {
            Some(libc::EINVAL) if log.is_empty() => NO_UNIX_HOOK.into(),
            _ => said(&error, &log),
        })
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn refusal(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError { io_error, verifier_log } => said(io_error, &verifier_log.to_string()),
        other => chain(other),
    }
}

/// The error, and the last lines of what the verifier said but its statistics.
fn said(error: &std::io::Error, log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    let end = lines.iter().rposition(|line| !line.starts_with("processed ")).map_or(0, |last| last + 1);
    let last = lines[end.saturating_sub(3)..end].join(" / ");
    if last.is_empty() { error.to_string() } else { format!("{error}: {last}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_in_the_kernel_s_statistics() {
        assert!(PROGRAMS.iter().all(|spec| spec.name.len() <= 15));
    }
}
