//! The calls of bpf(2) that the library has no door for: pins, links, iterators, map elements by descriptor.

use std::ffi::{CString, c_char};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_insn, bpf_map_info, bpf_map_type, bpf_prog_type};

/// Attach type of `cgroup/connect_unix` (include/uapi/linux/bpf.h, kernel 6.7).
pub const CGROUP_UNIX_CONNECT: u32 = 49;
/// Attach type of `cgroup/sendmsg_unix` (kernel 6.7).
pub const CGROUP_UNIX_SENDMSG: u32 = 50;

/// Bytes kept of what the verifier says.
const LOG_BYTES: usize = 1 << 18;

fn bpf(command: bpf_cmd, attributes: &mut bpf_attr) -> io::Result<RawFd> {
    // SAFETY: the kernel reads and writes only inside the attributes and what they point to, which the callers keep
    // alive over the call; unused fields are zero.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command as u32, &raw mut *attributes, size_of::<bpf_attr>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as RawFd) }
}

fn bpf_fd(command: bpf_cmd, attributes: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: these commands answer with a new descriptor that nobody else owns.
    bpf(command, attributes).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn attributes() -> bpf_attr {
    // SAFETY: a union of integers; zero is a value of all of them.
    unsafe { std::mem::zeroed() }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Pins an object. The path must be on a bpffs, with no dot in its last part.
pub fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut a = attributes();
    a.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    a.__bindgen_anon_4.bpf_fd = fd.as_raw_fd() as u32;
    bpf(bpf_cmd::BPF_OBJ_PIN, &mut a).map(drop)
}

/// Opens a pinned object.
pub fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut a = attributes();
    a.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    bpf_fd(bpf_cmd::BPF_OBJ_GET, &mut a)
}

/// Makes a ring buffer of `bytes`, a power of two of pages.
pub fn create_ring(bytes: u32) -> io::Result<OwnedFd> {
    let mut a = attributes();
    a.__bindgen_anon_1.map_type = bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32;
    a.__bindgen_anon_1.max_entries = bytes;
    bpf_fd(bpf_cmd::BPF_MAP_CREATE, &mut a)
}

/// Key size, value size and capacity of a map.
pub fn map_sizes(map: BorrowedFd<'_>) -> io::Result<(u32, u32, u32)> {
    // SAFETY: a struct of integers; zero is a value of all of them.
    let mut info: bpf_map_info = unsafe { std::mem::zeroed() };
    let mut a = attributes();
    a.info.bpf_fd = map.as_raw_fd() as u32;
    a.info.info_len = size_of::<bpf_map_info>() as u32;
    a.info.info = &raw mut info as u64;
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut a)?;
    Ok((info.key_size, info.value_size, info.max_entries))
}

/// Copies the value of `key` to `value`; false when there is none.
///
/// # Safety
/// Key and value must have the sizes that [`map_sizes`] tells.
pub unsafe fn lookup(map: BorrowedFd<'_>, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
    let mut a = attributes();
    a.__bindgen_anon_2.map_fd = map.as_raw_fd() as u32;
    a.__bindgen_anon_2.key = key.as_ptr() as u64;
    a.__bindgen_anon_2.__bindgen_anon_1.value = value.as_mut_ptr() as u64;
    match bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut a) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Sets the value of `key`.
///
/// # Safety
/// As for [`lookup`].
pub unsafe fn update(map: BorrowedFd<'_>, key: &[u8], value: &[u8]) -> io::Result<()> {
    let mut a = attributes();
    a.__bindgen_anon_2.map_fd = map.as_raw_fd() as u32;
    a.__bindgen_anon_2.key = key.as_ptr() as u64;
    a.__bindgen_anon_2.__bindgen_anon_1.value = value.as_ptr() as u64;
    bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut a).map(drop)
}

/// Removes `key`; false when it was not there.
///
/// # Safety
/// As for [`lookup`].
pub unsafe fn delete(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<bool> {
    let mut a = attributes();
    a.__bindgen_anon_2.map_fd = map.as_raw_fd() as u32;
    a.__bindgen_anon_2.key = key.as_ptr() as u64;
    match bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, &mut a) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Copies the key after `key` (the first one for `None`) to `next`; false at the end.
///
/// # Safety
/// As for [`lookup`].
pub unsafe fn next_key(map: BorrowedFd<'_>, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<bool> {
    let mut a = attributes();
    a.__bindgen_anon_2.map_fd = map.as_raw_fd() as u32;
    a.__bindgen_anon_2.key = key.map_or(0, |key| key.as_ptr() as u64);
    a.__bindgen_anon_2.__bindgen_anon_1.next_key = next.as_mut_ptr() as u64;
    match bpf(bpf_cmd::BPF_MAP_GET_NEXT_KEY, &mut a) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Attaches a BTF tracepoint program.
pub fn attach_tracepoint(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut a = attributes();
    a.raw_tracepoint.prog_fd = program.as_raw_fd() as u32;
    bpf_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut a)
}

/// Makes a link: to a cgroup, or (`target` 0) an iterator's.
pub fn link(program: BorrowedFd<'_>, target: RawFd, attach_type: u32) -> io::Result<OwnedFd> {
    let mut a = attributes();
    a.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    a.link_create.__bindgen_anon_2.target_fd = target as u32;
    a.link_create.attach_type = attach_type;
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut a)
}

/// A new run of an iterator: reading it runs it.
pub fn iterate(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut a = attributes();
    a.iter_create.link_fd = link.as_raw_fd() as u32;
    bpf_fd(bpf_cmd::BPF_ITER_CREATE, &mut a)
}

/// Loads a cgroup socket address program of an attach type that the library does not know. On failure with what the
/// verifier said last.
pub fn load_sock_addr(name: &str, instructions: &[bpf_insn], attach_type: u32) -> Result<OwnedFd, (io::Error, String)> {
    let load = |log: &mut [u8]| {
        let mut a = attributes();
        // SAFETY: the fields of one member of a union of integers.
        let p = unsafe { &mut a.__bindgen_anon_3 };
        p.prog_type = bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR as u32;
        p.expected_attach_type = attach_type;
        p.insns = instructions.as_ptr() as u64;
        p.insn_cnt = instructions.len() as u32;
        p.license = c"Dual MIT/GPL".as_ptr() as u64;
        // The kernel keeps 15 characters.
        for (to, from) in p.prog_name.iter_mut().take(15).zip(name.bytes()) {
            *to = from as c_char;
        }
        if !log.is_empty() {
            p.log_level = 1;
            p.log_buf = log.as_mut_ptr() as u64;
            p.log_size = log.len() as u32;
        }
        bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut a)
    };
    load(&mut []).or_else(|_| {
        let mut log = vec![0u8; LOG_BYTES];
        load(&mut log).map_err(|e| {
            let len = log.iter().position(|b| *b == 0).unwrap_or(log.len());
            (e, String::from_utf8_lossy(&log[..len]).into_owned())
        })
    })
}
