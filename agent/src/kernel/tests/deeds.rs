//! What an actor does to files: one word each, `verb:argument:argument`, answered with an errno.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

/// Does it; 0, or the errno that it got.
pub fn errno(deed: &str) -> i32 {
    let words: Vec<&str> = deed.split(':').collect();
    answer(&words).err().map_or(0, |error| error.raw_os_error().unwrap_or(-1))
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn open(path: &str, flags: i32, mode: u32) -> std::io::Result<OwnedFd> {
    // SAFETY: the path is a C string; the answer is checked.
    let fd = unsafe { libc::open(c(path).as_ptr(), flags | libc::O_CLOEXEC, mode) };
    // SAFETY: a descriptor that is ours.
    if fd < 0 { Err(std::io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

fn done(answer: libc::c_long) -> std::io::Result<()> {
    if answer < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

fn answer(words: &[&str]) -> std::io::Result<()> {
    // SAFETY: has no preconditions.
    unsafe { libc::umask(0o022) };
    let (here, path) = (libc::AT_FDCWD, words.get(1).map(|path| c(path)).unwrap_or_default());
    let other = words.get(2).map(|path| c(path)).unwrap_or_default();
    let attribute = c("user.ringfence");
    // SAFETY: all paths and names are C strings, all buffers have the length that is told.
    unsafe {
        match words {
            ["read", path] => open(path, libc::O_RDONLY, 0).map(drop),
            ["write", path] => {
                let file = open(path, libc::O_WRONLY, 0)?;
                done(libc::write(file.as_raw_fd(), c"x".as_ptr().cast(), 1) as libc::c_long)
            }
            ["create", path] => open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o644).map(drop),
            ["program", path] => open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o755).map(drop),
            ["cut", path] => open(path, libc::O_RDONLY | libc::O_TRUNC, 0).map(drop),
            // By its name among our descriptors, which is not the name it has.
            ["reopen", path] => {
                let file = open(path, libc::O_PATH, 0)?;
                open(&format!("/proc/self/fd/{}", file.as_raw_fd()), libc::O_RDWR, 0).map(drop)
            }
            ["appear", directory, path] => {
                let file = open(directory, libc::O_WRONLY | libc::O_TMPFILE, 0o755)?;
                let from = c(&format!("/proc/self/fd/{}", file.as_raw_fd()));
                done(libc::linkat(here, from.as_ptr(), here, c(path).as_ptr(), libc::AT_SYMLINK_FOLLOW).into())
            }
            ["truncate", _] => done(libc::truncate(path.as_ptr(), 0).into()),
            ["unlink", _] => done(libc::unlink(path.as_ptr()).into()),
            ["rmdir", _] => done(libc::rmdir(path.as_ptr()).into()),
            ["mkdir", _] => done(libc::mkdir(path.as_ptr(), 0o755).into()),
            ["fifo", _] => done(libc::mkfifo(path.as_ptr(), 0o644).into()),
            ["socket", path] => UnixListener::bind(path).map(drop),
            ["symlink", _, _] => done(libc::symlink(path.as_ptr(), other.as_ptr()).into()),
            ["link", _, _] => done(libc::link(path.as_ptr(), other.as_ptr()).into()),
            ["rename", _, _] => done(libc::rename(path.as_ptr(), other.as_ptr()).into()),
            ["exchange", _, _] => {
                done(libc::renameat2(here, path.as_ptr(), here, other.as_ptr(), libc::RENAME_EXCHANGE).into())
            }
            ["chmod", mode, path] => done(libc::chmod(c(path).as_ptr(), u32::from_str_radix(mode, 8).unwrap()).into()),
            ["chown", _] => done(libc::chown(path.as_ptr(), libc::getuid(), libc::getgid()).into()),
            ["touch", _] => done(libc::utimensat(here, path.as_ptr(), std::ptr::null(), 0).into()),
            ["tag", _] => done(libc::setxattr(path.as_ptr(), attribute.as_ptr(), c"x".as_ptr().cast(), 1, 0).into()),
            ["untag", _] => done(libc::removexattr(path.as_ptr(), attribute.as_ptr()).into()),
            ["acl", _] => {
                let list = access_list();
                let name = c("system.posix_acl_access");
                done(libc::setxattr(path.as_ptr(), name.as_ptr(), list.as_ptr().cast(), list.len(), 0).into())
            }
            ["fchmod-pipe"] => {
                let mut ends = [0; 2];
                done(libc::pipe(ends.as_mut_ptr()).into())?;
                done(libc::fchmod(ends[0], 0o600).into())
            }
            // Just-in-time compilers do this: a hook is called without a file.
            ["jit"] => {
                let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
                let memory = libc::mmap(std::ptr::null_mut(), 4096, all, kind, -1, 0);
                done(if memory == libc::MAP_FAILED { -1 } else { 0 })
            }
            ["ring", path] => ring_open(path),
            ["receive", path] => receive(path),
            ["steer", how, pid] => steer(how, pid.parse().unwrap()),
            _ => panic!("no such deed: {words:?}"),
        }
    }
}

/// Does something to another process.
fn steer(how: &str, pid: libc::pid_t) -> std::io::Result<()> {
    /// `IOPRIO_WHO_PROCESS`, and the lowest priority of the class `IOPRIO_CLASS_BE`.
    const IO: (libc::c_int, libc::c_int) = (1, 2 << 13 | 7);
    let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    let (mut byte, here) = ([0u8; 1], std::ptr::null_mut::<libc::c_void>());
    // SAFETY: numbers, and structures that live over the call.
    unsafe {
        match how {
            "ask" => done(libc::kill(pid, 0).into()),
            "end" => done(libc::kill(pid, libc::SIGKILL).into()),
            "pidfd" => {
                let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
                done(fd)?;
                let fd = OwnedFd::from_raw_fd(fd as i32);
                done(libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), libc::SIGKILL, here, 0))
            }
            "trace" => done(libc::ptrace(libc::PTRACE_SEIZE, pid, here, here)),
            "read" => {
                let local = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
                let remote = libc::iovec { iov_base: 0x40_0000 as *mut libc::c_void, iov_len: 1 };
                done(libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) as libc::c_long)
            }
            "limit" => done(libc::prlimit(pid, libc::RLIMIT_CPU, &raw const limit, std::ptr::null_mut()).into()),
            "processor" => {
                let mut one: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(0, &mut one);
                done(libc::sched_setaffinity(pid, size_of_val(&one), &raw const one).into())
            }
            "nice" => done(libc::setpriority(libc::PRIO_PROCESS, pid as u32, 19).into()),
            "io" => done(libc::syscall(libc::SYS_ioprio_set, IO.0, pid, IO.1)),
            _ => panic!("no such way to steer: {how}"),
        }
    }
}

/// Has a pipe send SIGKILL to its owner, which it tells nobody; sockets do it from an interrupt.
pub fn signal_by_file(pid: libc::pid_t) {
    const F_SETSIG: libc::c_int = 10;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    for fd in [reader.as_raw_fd(), socket.as_raw_fd()] {
        // SAFETY: our own descriptors, and numbers.
        unsafe {
            done(libc::fcntl(fd, libc::F_SETOWN, pid).into()).unwrap();
            done(libc::fcntl(fd, F_SETSIG, libc::SIGKILL).into()).unwrap();
            done(libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC).into()).unwrap();
        }
    }
    std::io::Write::write_all(&mut writer, b"x").unwrap();
    socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
}

/// `u::rwx g::r-x o::r-x` as the kernel takes it (include/uapi/linux/posix_acl_xattr.h).
fn access_list() -> Vec<u8> {
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions) in [(1u16, 7u16), (4, 5), (0x20, 5)] {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(u32::MAX.to_le_bytes());
    }
    list
}

/// Opens for writing through io_uring, without a library; `EOPNOTSUPP` where there is none.
fn ring_open(path: &str) -> std::io::Result<()> {
    const OPENAT: u8 = 18;
    const SUBMISSION: libc::off_t = 0;
    const ENTRIES: libc::off_t = 0x1000_0000;
    const GETEVENTS: libc::c_uint = 1;
    let all = libc::PROT_READ | libc::PROT_WRITE;
    let mut parameters = [0u32; 30];
    // SAFETY: the parameters have their 120 bytes; offsets into the mapped rings are the kernel's.
    unsafe {
        let ring = libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr());
        if ring < 0 {
            return Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let ring = OwnedFd::from_raw_fd(ring as i32);
        let map = |len, offset| {
            let memory = libc::mmap(std::ptr::null_mut(), len, all, libc::MAP_SHARED, ring.as_raw_fd(), offset);
            if memory == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(memory.cast::<u8>()) }
        };
        // One mapping for both rings (IORING_FEAT_SINGLE_MMAP, Linux 5.4).
        let completions = parameters[25] as usize;
        let rings = map(completions + 16 * parameters[1] as usize, SUBMISSION)?;
        let entries = map(4096, ENTRIES)?;
        let path = c(path);
        entries.write(OPENAT);
        entries.add(4).cast::<i32>().write(libc::AT_FDCWD);
        entries.add(16).cast::<u64>().write(path.as_ptr() as u64);
        entries.add(24).cast::<u32>().write(0);
        entries.add(28).cast::<u32>().write(libc::O_WRONLY as u32);
        // sq_off: head, tail, mask, entries, flags, dropped, array; cq_off begins ten words later.
        let (tail, array) = (parameters[11] as usize, parameters[16] as usize);
        rings.add(array).cast::<u32>().write(0);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        rings.add(tail).cast::<u32>().write_volatile(1);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let none = std::ptr::null::<libc::c_void>();
        done(libc::syscall(libc::SYS_io_uring_enter, ring.as_raw_fd(), 1, 1, GETEVENTS, none, 0))?;
        let answer = rings.add(completions + 8).cast::<i32>().read_volatile();
        if answer < 0 { Err(std::io::Error::from_raw_os_error(-answer)) } else { Ok(()) }
    }
}

/// Takes over a descriptor that whoever listens at `path` sends; `EACCES` when the kernel left it out.
fn receive(path: &str) -> std::io::Result<()> {
    let stream = UnixStream::connect(path)?;
    let mut byte = [0u8; 1];
    let mut buffer = nix::cmsg_space!([std::os::fd::RawFd; 1]);
    let mut room = [std::io::IoSliceMut::new(&mut byte)];
    let flags = nix::sys::socket::MsgFlags::empty();
    let got = nix::sys::socket::recvmsg::<()>(stream.as_raw_fd(), &mut room, Some(&mut buffer), flags)?;
    // One that was refused is left out, and the rest is said to be cut off.
    let file = got.cmsgs().ok().into_iter().flatten().find_map(|one| match one {
        nix::sys::socket::ControlMessageOwned::ScmRights(files) => files.first().copied(),
        _ => None,
    });
    match file {
        Some(_) => Ok(()),
        None => Err(std::io::Error::from_raw_os_error(libc::EACCES)),
    }
}
