//! The seccomp filter: groups of refused calls, made into a program once by libseccomp, and read back to say what it
//! refuses.
//!
//! Every rule on an `int` argument compares its low 32 bits only: the kernel ignores the high ones, so a plain equality
//! is passed by `socket(AF_UNIX | 1 << 32)`. Flags of 64 bits are compared bit by bit and never cut.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Mutex;

use libseccomp::{ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall};
use serde::Deserialize;

use super::plan::MAX_FILTER_BYTES;

/// A group of system calls that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Looking into other processes.
    Trace,
    /// io_uring: its operations pass no filter.
    IoUring,
    /// Kernel programs, performance events, page-fault handling.
    Bpf,
    /// Kernel keyrings.
    Keys,
    /// Mounts and roots.
    Mount,
    /// New namespaces, and entering others.
    Namespaces,
    /// Modules, clocks, names, ports, handles.
    Kernel,
    /// Execution domains, but for turning address randomisation off.
    Personality,
    /// Typing into a terminal.
    Terminal,
    /// Socket families and protocols that no build uses.
    Families,
    /// TCP Fast Open, which connects without `connect`.
    Fastopen,
    /// Programs without a file.
    Memfd,
    /// IPv4 and IPv6.
    Internet,
    /// Datagram and raw sockets of IPv4 and IPv6.
    Datagrams,
    /// Unix sockets; socketpair stays.
    Unix,
}

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// libseccomp says so.
    #[error("libseccomp could not make the filter ({0}): {1}")]
    Library(String, #[source] libseccomp::error::SeccompError),
    /// The memfd.
    #[error("the filter could not be exported: {0}")]
    Export(#[source] std::io::Error),
    /// More instructions than the kernel takes.
    #[error("the filter has {0} bytes, more than the kernel takes")]
    TooLarge(usize),
    /// The exported program is not one that is understood here, so nothing could be attributed to it.
    #[error("the exported filter has an instruction that is not understood: {0:#06x}")]
    Unreadable(u16),
}

/// A condition on one argument: `argument & mask == value`.
#[derive(Clone, Copy, Debug)]
struct Test {
    argument: u32,
    mask: u64,
    value: u64,
}

/// One refused call.
#[derive(Clone, Debug)]
struct Rule {
    name: &'static str,
    errno: i32,
    tests: Vec<Test>,
}

/// Numbers of calls that are younger than libseccomp 2.5; since 2019 all architectures share them.
const YOUNGER: [(&str, i32); 2] = [("open_tree_attr", 467), ("quotactl_fd", 443)];

const INT: u64 = 0xffff_ffff;
const AF_UNIX: u64 = 1;
const AF_INET: u64 = 2;
const AF_INET6: u64 = 10;
const AF_NETLINK: u64 = 16;
const SOCK_TYPE_MASK: u64 = 0xf;
const IPPROTO_MPTCP: u64 = 262;
const MSG_FASTOPEN: u64 = 0x2000_0000;
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;
const ADDR_NO_RANDOMIZE: u32 = 18;
/// CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET.
const CLONE_NAMESPACES: [u64; 7] =
    [0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];
/// CLONE_NEWTIME: only unshare takes it; in clone these bits are the exit signal.
const CLONE_NEWTIME: u64 = 0x80;

fn plain(names: &[&'static str]) -> Vec<Rule> {
    names.iter().map(|name| Rule { name, errno: libc::EPERM, tests: vec![] }).collect()
}

fn when(name: &'static str, argument: u32, mask: u64, value: u64) -> Rule {
    Rule { name, errno: libc::EPERM, tests: vec![Test { argument, mask, value }] }
}

/// The rules of a group.
fn rules(group: Group) -> Vec<Rule> {
    match group {
        Group::Trace => {
            plain(&["ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd"])
        }
        Group::IoUring => plain(&["io_uring_setup", "io_uring_enter", "io_uring_register"]),
        Group::Bpf => plain(&["bpf", "perf_event_open", "userfaultfd"]),
        Group::Keys => plain(&["keyctl", "add_key", "request_key"]),
        Group::Mount => plain(&[
            "mount",
            "umount2",
            "umount",
            "pivot_root",
            "chroot",
            "fsopen",
            "fsconfig",
            "fsmount",
            "fspick",
            "move_mount",
            "open_tree",
            "open_tree_attr",
            "mount_setattr",
        ]),
        Group::Namespaces => {
            let mut rules = plain(&["setns"]);
            for flag in CLONE_NAMESPACES {
                rules.push(when("clone", 0, flag, flag));
                rules.push(when("unshare", 0, flag, flag));
            }
            rules.push(when("unshare", 0, CLONE_NEWTIME, CLONE_NEWTIME));
            // Its flags are in memory, where no filter looks. With ENOSYS the C library falls back to clone; EPERM
            // would be the end of every thread.
            rules.push(Rule { name: "clone3", errno: libc::ENOSYS, tests: vec![] });
            rules
        }
        Group::Kernel => plain(&[
            "init_module",
            "finit_module",
            "delete_module",
            "kexec_load",
            "kexec_file_load",
            "reboot",
            "swapon",
            "swapoff",
            "acct",
            "quotactl",
            "quotactl_fd",
            "syslog",
            "iopl",
            "ioperm",
            "modify_ldt",
            "settimeofday",
            "clock_settime",
            "clock_settime64",
            "adjtimex",
            "clock_adjtime",
            "clock_adjtime64",
            "sethostname",
            "setdomainname",
            "open_by_handle_at",
        ]),
        Group::Personality => personality(),
        Group::Terminal => vec![when("ioctl", 1, INT, TIOCSTI), when("ioctl", 1, INT, TIOCLINUX)],
        Group::Families => families(),
        Group::Fastopen => vec![
            when("sendto", 3, MSG_FASTOPEN, MSG_FASTOPEN),
            when("sendmsg", 2, MSG_FASTOPEN, MSG_FASTOPEN),
            when("sendmmsg", 3, MSG_FASTOPEN, MSG_FASTOPEN),
        ],
        Group::Memfd => plain(&["memfd_create", "memfd_secret"]),
        Group::Internet => {
            let mut rules = vec![when("socket", 0, INT, AF_INET), when("socket", 0, INT, AF_INET6)];
            rules.extend(plain(&["bind", "listen"]));
            rules
        }
        Group::Datagrams => [AF_INET, AF_INET6]
            .iter()
            .flat_map(|family| [libc::SOCK_DGRAM, libc::SOCK_RAW].map(|kind| (*family, kind as u64)))
            .map(|(family, kind)| Rule {
                name: "socket",
                errno: libc::EPERM,
                tests: vec![
                    Test { argument: 0, mask: INT, value: family },
                    Test { argument: 1, mask: SOCK_TYPE_MASK, value: kind },
                ],
            })
            .collect(),
        Group::Unix => vec![when("socket", 0, INT, AF_UNIX)],
    }
}

/// Everything but 0, ADDR_NO_RANDOMIZE and the query 0xffffffff.
///
/// A rule can only ask whether bits have a value, so: walk the 31 other bits in a ring. If some are set and some are
/// not, then somewhere a set one is followed by one that is not. If all are set, only the query has bit 18 too.
fn personality() -> Vec<Rule> {
    let ring: Vec<u32> = (0..32).filter(|bit| *bit != ADDR_NO_RANDOMIZE).collect();
    let mut rules: Vec<Rule> = (0..ring.len())
        .map(|at| {
            let (this, next) = (1u64 << ring[at], 1u64 << ring[(at + 1) % ring.len()]);
            when("personality", 0, this | next, this)
        })
        .collect();
    rules.push(when("personality", 0, INT, INT & !(1 << ADDR_NO_RANDOMIZE)));
    rules
}

/// Unix, IPv4, IPv6 and routing netlink stay; every other family below 128 is refused, those that are not invented yet
/// too (the kernel knows 46).
///
/// Each pair is a pattern of bits that none of 0, 1, 2, 10 and 16 has, and together they are all others: seven
/// comparisons, where one for each family would be most of the filter. A launch pays for each instruction.
fn families() -> Vec<Rule> {
    const OTHERS: [(u64, u64); 7] = [
        (0b100_0000, 0b100_0000),
        (0b010_0000, 0b010_0000),
        (0b000_0100, 0b000_0100),
        (0b000_0011, 0b000_0011),
        (0b000_1010, 0b000_1000),
        (0b001_0010, 0b001_0010),
        (0b001_0001, 0b001_0001),
    ];
    let mut rules: Vec<Rule> = OTHERS.iter().map(|(mask, value)| when("socket", 0, *mask, *value)).collect();
    // NETLINK_ROUTE is 0: any bit of the protocol is another one, and the kernel knows 32.
    rules.extend((0..5).map(|bit| Rule {
        name: "socket",
        errno: libc::EPERM,
        tests: vec![
            Test { argument: 0, mask: INT, value: AF_NETLINK },
            Test { argument: 2, mask: 1 << bit, value: 1 << bit },
        ],
    }));
    rules.push(when("socket", 2, INT, IPPROTO_MPTCP));
    // The only other family with pairs.
    rules.push(when("socketpair", 0, INT, libc::AF_TIPC as u64));
    rules
}

/// The program for these groups: instructions of 8 bytes, in this machine's byte order. Made once per set of groups.
pub fn compile(groups: &[Group]) -> Result<Vec<u8>, FilterError> {
    static MADE: Mutex<BTreeMap<Vec<Group>, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut key = groups.to_vec();
    key.sort_unstable();
    key.dedup();
    if key.is_empty() {
        return Ok(Vec::new());
    }
    let mut made = MADE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(program) = made.get(&key) {
        return Ok(program.clone());
    }
    let program = make(&key)?;
    made.insert(key, program.clone());
    Ok(program)
}

/// What these groups refuse, by name, for people.
pub fn describe(groups: &[Group]) -> Vec<String> {
    let mut names: Vec<String> = groups
        .iter()
        .flat_map(|group| rules(*group))
        .map(
            |rule| if rule.tests.is_empty() { rule.name.to_owned() } else { format!("{} (some arguments)", rule.name) },
        )
        .collect();
    names.sort();
    names.dedup();
    names
}

fn make(groups: &[Group]) -> Result<Vec<u8>, FilterError> {
    let library = |what: &str| {
        let what = what.to_owned();
        move |error| FilterError::Library(what, error)
    };
    let mut context = ScmpFilterContext::new(ScmpAction::Allow).map_err(library("new"))?;
    // Other architectures (i386 hides the socket family in socketcall, x32 has numbers of its own) are refused.
    context.set_act_badarch(ScmpAction::Errno(libc::EPERM)).map_err(library("other architectures"))?;
    context.set_ctl_nnp(false).map_err(library("no_new_privs"))?;
    // A tree over the numbers instead of a list. An older library only makes a slower filter.
    let _ = context.set_ctl_optimize(2);
    for rule in groups.iter().flat_map(|group| rules(*group)) {
        let Some(call) = number_of(rule.name) else { continue };
        let tests: Vec<ScmpArgCompare> = rule
            .tests
            .iter()
            .map(|test| ScmpArgCompare::new(test.argument, ScmpCompareOp::MaskedEqual(test.mask), test.value))
            .collect();
        context.add_rule_conditional_exact(ScmpAction::Errno(rule.errno), call, &tests).map_err(library(rule.name))?;
    }
    let mut file = memory_file().map_err(FilterError::Export)?;
    context.export_bpf(&file).map_err(library("export"))?;
    let mut program = Vec::new();
    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut program)).map_err(FilterError::Export)?;
    if program.len() > MAX_FILTER_BYTES || !program.len().is_multiple_of(8) {
        return Err(FilterError::TooLarge(program.len()));
    }
    readable(&program)?;
    Ok(program)
}

/// This architecture's number of a call; `None` where it has no such call (`iopl` outside x86).
fn number_of(name: &str) -> Option<ScmpSyscall> {
    if let Ok(call) = ScmpSyscall::from_name_by_arch(name, ScmpArch::native())
        && call.as_raw_syscall() >= 0
    {
        return Some(call);
    }
    YOUNGER.iter().find(|(young, _)| *young == name).map(|(_, number)| ScmpSyscall::from(*number))
}

fn memory_file() -> std::io::Result<std::fs::File> {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is NUL-terminated; a descriptor that is not negative is ours alone.
    unsafe {
        let fd = libc::memfd_create(c"ringfence-filter".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 { Err(std::io::Error::last_os_error()) } else { Ok(std::fs::File::from_raw_fd(fd)) }
    }
}

/// What a program answers for one call: 0 lets it pass, else the errno. `None`: it does neither (kills, traps).
///
/// `program` is one that [`compile`] made; the arguments are as the kernel got them. Native ABI only.
pub fn answer(program: &[u8], syscall: i32, arguments: &[u64; 6]) -> Option<u16> {
    if program.is_empty() {
        return Some(0);
    }
    let data = seccomp_data(syscall, arguments);
    let instructions: Vec<Instruction> = program.chunks_exact(8).map(Instruction::from_bytes).collect();
    let mut accumulator = 0u32;
    let mut at = 0usize;
    // Jumps only go forward, so each instruction runs once at most.
    while let Some(Instruction { code, on_true, on_false, k }) = instructions.get(at).copied() {
        at += 1;
        let branch = |taken: bool| usize::from(if taken { on_true } else { on_false });
        match code {
            LOAD_WORD => accumulator = word(&data, k)?,
            JUMP => at += k as usize,
            JUMP_EQUAL => at += branch(accumulator == k),
            JUMP_GREATER => at += branch(accumulator > k),
            JUMP_GREATER_EQUAL => at += branch(accumulator >= k),
            JUMP_SET => at += branch(accumulator & k != 0),
            AND => accumulator &= k,
            RETURN => {
                return match k & SECCOMP_RET_ACTION_FULL {
                    SECCOMP_RET_ALLOW => Some(0),
                    SECCOMP_RET_ERRNO => Some(k as u16),
                    _ => None,
                };
            }
            _ => return None,
        }
    }
    None
}

const LOAD_WORD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const JUMP_SET: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;
const SECCOMP_RET_ACTION_FULL: u32 = 0xffff_0000;
const SECCOMP_RET_ALLOW: u32 = 0x7fff_0000;
const SECCOMP_RET_ERRNO: u32 = 0x0005_0000;

#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    on_true: u8,
    on_false: u8,
    k: u32,
}

impl Instruction {
    fn from_bytes(b: &[u8]) -> Instruction {
        Instruction {
            code: u16::from_ne_bytes([b[0], b[1]]),
            on_true: b[2],
            on_false: b[3],
            k: u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
        }
    }
}

/// Whether [`answer`] can read every instruction of it.
fn readable(program: &[u8]) -> Result<(), FilterError> {
    for b in program.chunks_exact(8) {
        let Instruction { code, .. } = Instruction::from_bytes(b);
        match code {
            LOAD_WORD | JUMP | JUMP_EQUAL | JUMP_GREATER | JUMP_GREATER_EQUAL | JUMP_SET | AND | RETURN => {}
            other => return Err(FilterError::Unreadable(other)),
        }
    }
    Ok(())
}

/// `struct seccomp_data`: number, architecture, instruction pointer, six arguments.
fn seccomp_data(syscall: i32, arguments: &[u64; 6]) -> [u8; 64] {
    let mut data = [0u8; 64];
    data[..4].copy_from_slice(&syscall.to_ne_bytes());
    data[4..8].copy_from_slice(&native_architecture().to_ne_bytes());
    for (index, argument) in arguments.iter().enumerate() {
        data[16 + 8 * index..24 + 8 * index].copy_from_slice(&argument.to_ne_bytes());
    }
    data
}

fn word(data: &[u8; 64], offset: u32) -> Option<u32> {
    let at = offset as usize;
    let bytes = data.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// AUDIT_ARCH of this machine, from audit.h: the ELF machine, 64-bit and little-endian flags.
fn native_architecture() -> u32 {
    if cfg!(target_arch = "x86_64") {
        0xc000_003e
    } else if cfg!(target_arch = "aarch64") {
        0xc000_00b7
    } else if cfg!(target_arch = "riscv64") {
        0xc000_00f3
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: [Group; 11] = [
        Group::Trace,
        Group::IoUring,
        Group::Bpf,
        Group::Keys,
        Group::Mount,
        Group::Namespaces,
        Group::Kernel,
        Group::Personality,
        Group::Terminal,
        Group::Families,
        Group::Fastopen,
    ];

    fn says(groups: &[Group], call: i64, arguments: [u64; 6]) -> u16 {
        answer(&compile(groups).unwrap(), call as i32, &arguments).unwrap()
    }

    fn default_says(call: i64, first: &[u64]) -> u16 {
        let mut arguments = [0; 6];
        arguments[..first.len()].copy_from_slice(first);
        says(&DEFAULT, call, arguments)
    }

    const EPERM: u16 = libc::EPERM as u16;
    const HIGH: u64 = 1 << 32;

    #[test]
    fn ordinary_calls_pass_and_the_named_ones_do_not() {
        for call in [libc::SYS_read, libc::SYS_openat, libc::SYS_execve, libc::SYS_fork, libc::SYS_memfd_create] {
            assert_eq!(default_says(call, &[]), 0, "{call}");
        }
        for call in [libc::SYS_ptrace, libc::SYS_bpf, libc::SYS_io_uring_setup, libc::SYS_mount, libc::SYS_keyctl, 467]
        {
            assert_eq!(default_says(call, &[]), EPERM, "{call}");
        }
        assert_eq!(default_says(libc::SYS_clone3, &[]), libc::ENOSYS as u16);
    }

    #[test]
    fn every_int_is_judged_by_its_low_half() {
        for high in [0, HIGH, u64::MAX << 32] {
            for family in 0..128u64 {
                let expected = if [0, 1, 2, 10, 16].contains(&family) { 0 } else { EPERM };
                assert_eq!(default_says(libc::SYS_socket, &[family | high, 1, 0]), expected, "{family:#x} {high:#x}");
            }
            assert_eq!(default_says(libc::SYS_ioctl, &[0, TIOCSTI | high]), EPERM);
            assert_eq!(default_says(libc::SYS_ioctl, &[0, TIOCLINUX | high]), EPERM);
            assert_eq!(default_says(libc::SYS_ioctl, &[0, 0x5401 | high]), 0);
            assert_eq!(default_says(libc::SYS_socket, &[2 | high, 1, IPPROTO_MPTCP | high]), EPERM);
            assert_eq!(default_says(libc::SYS_socket, &[AF_NETLINK | high, 3, high]), 0);
            for protocol in 1..32 {
                assert_eq!(default_says(libc::SYS_socket, &[AF_NETLINK | high, 3, protocol | high]), EPERM);
            }
        }
    }

    #[test]
    fn namespaces_are_refused_in_every_flag_and_threads_are_not() {
        const THREAD: u64 = 0x3d_0f00;
        for flag in CLONE_NAMESPACES {
            assert_eq!(default_says(libc::SYS_clone, &[THREAD | flag]), EPERM);
            assert_eq!(default_says(libc::SYS_unshare, &[flag]), EPERM);
            assert_eq!(default_says(libc::SYS_unshare, &[flag | HIGH]), EPERM);
        }
        assert_eq!(default_says(libc::SYS_unshare, &[CLONE_NEWTIME]), EPERM);
        assert_eq!(default_says(libc::SYS_clone, &[THREAD]), 0);
        assert_eq!(default_says(libc::SYS_clone, &[libc::SIGCHLD as u64]), 0);
        assert_eq!(default_says(libc::SYS_unshare, &[libc::CLONE_FILES as u64]), 0);
    }

    #[test]
    fn three_personalities_pass_and_no_other() {
        for high in [0, HIGH] {
            for passes in [0u64, 0x4_0000, 0xffff_ffff] {
                assert_eq!(default_says(libc::SYS_personality, &[passes | high]), 0, "{passes:#x}");
            }
            for bit in 0..32 {
                for other in 0..32 {
                    let value = 1u64 << bit | 1 << other;
                    if value != 0x4_0000 {
                        assert_eq!(default_says(libc::SYS_personality, &[value | high]), EPERM, "{value:#x}");
                        let rest = 0xffff_ffff & !value;
                        assert_eq!(default_says(libc::SYS_personality, &[rest | high]), EPERM, "{rest:#x}");
                    }
                }
            }
            assert_eq!(default_says(libc::SYS_personality, &[0xfffb_ffff | high]), EPERM);
        }
    }

    #[test]
    fn fast_open_is_refused_and_sending_is_not() {
        assert_eq!(default_says(libc::SYS_sendto, &[3, 0, 0, MSG_FASTOPEN]), EPERM);
        assert_eq!(default_says(libc::SYS_sendmsg, &[3, 0, MSG_FASTOPEN | 0x4000]), EPERM);
        assert_eq!(default_says(libc::SYS_sendto, &[3, 0, 0, 0x4000, 0, 0]), 0);
    }

    #[test]
    fn x32_numbers_are_refused() {
        assert_eq!(default_says(0x4000_0000 | 39, &[]), EPERM);
    }

    #[test]
    fn no_network_leaves_unix_sockets_and_no_unix_leaves_pairs() {
        assert_eq!(says(&[Group::Internet], libc::SYS_socket, [2, 1, 0, 0, 0, 0]), EPERM);
        assert_eq!(says(&[Group::Internet], libc::SYS_socket, [1, 1, 0, 0, 0, 0]), 0);
        assert_eq!(says(&[Group::Unix], libc::SYS_socket, [1 | HIGH, 1, 0, 0, 0, 0]), EPERM);
        assert_eq!(says(&[Group::Unix], libc::SYS_socketpair, [1, 1, 0, 0, 0, 0]), 0);
        assert_eq!(says(&[Group::Datagrams], libc::SYS_socket, [2, 2 | 0x8_0000, 0, 0, 0, 0]), EPERM);
        assert_eq!(says(&[Group::Datagrams], libc::SYS_socket, [2, 1, 0, 0, 0, 0]), 0);
    }

    #[test]
    fn the_program_is_made_once_and_fits() {
        let first = compile(&DEFAULT).unwrap();
        assert!(first.len() < 400 * 8, "{} instructions", first.len() / 8);
        assert_eq!(compile(&DEFAULT).unwrap(), first);
    }
}
