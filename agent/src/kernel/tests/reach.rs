//! What an actor does with sockets: each target one way of reaching somebody, tried once, its errno told.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use libc::{c_int, c_void, sockaddr_storage, socklen_t};

/// Tries `WAY=WHERE` and answers the errno, 0 for success.
pub fn attempt(target: &str) -> i32 {
    let (way, place) = target.split_once('=').expect("WAY=WHERE");
    match way_of(way, place) {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(-1),
    }
}

/// Connects by TCP again and again; answers how often it could.
pub fn hammer(place: &str, during: Duration) -> (u64, u64) {
    let begin = Instant::now();
    let (mut tried, mut reached) = (0, 0);
    while begin.elapsed() < during {
        tried += 1;
        reached += u64::from(attempt(&format!("tcp={place}")) == 0);
    }
    (tried, reached)
}

/// A datagram socket that was connected before somebody decided otherwise.
pub struct Connected(OwnedFd);

impl Connected {
    pub fn to(place: &str) -> Connected {
        let socket = socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0).unwrap();
        connect(&socket, &Address::unix(place)).unwrap();
        Connected(socket)
    }

    pub fn send(&self) -> i32 {
        sent(&self.0, None, 0).err().map_or(0, |error| error.raw_os_error().unwrap_or(-1))
    }
}

fn way_of(way: &str, place: &str) -> io::Result<()> {
    match way {
        "tcp" => by_connect(place, libc::SOCK_STREAM, 0),
        "mptcp" => by_connect(place, libc::SOCK_STREAM, libc::IPPROTO_MPTCP),
        "udp" => {
            let (to, family) = internet(place);
            let socket = socket(family, libc::SOCK_DGRAM, 0)?;
            connect(&socket, &to)?;
            sent(&socket, None, 0)
        }
        "sendto" => {
            let (to, family) = internet(place);
            sent(&socket(family, libc::SOCK_DGRAM, 0)?, Some(&to), 0)
        }
        // An IPv4 address without its family, which UDP takes for one.
        "nofamily" => {
            let (mut to, family) = internet(place);
            to.storage.ss_family = libc::AF_UNSPEC as u16;
            sent(&socket(family, libc::SOCK_DGRAM, 0)?, Some(&to), 0)
        }
        "sendmmsg" => {
            let (to, family) = internet(place);
            many(&socket(family, libc::SOCK_DGRAM, 0)?, &to)
        }
        "fastopen" => {
            let (to, family) = internet(place);
            sent(&socket(family, libc::SOCK_STREAM, 0)?, Some(&to), libc::MSG_FASTOPEN)
        }
        "uring" => {
            let (to, family) = internet(place);
            by_ring(&socket(family, libc::SOCK_STREAM, 0)?, &to)
        }
        "bind" => {
            let (to, family) = internet(place);
            bind(&socket(family, libc::SOCK_STREAM, 0)?, &to)
        }
        "listen" => {
            let socket = socket(internet(place).1, libc::SOCK_STREAM, 0)?;
            // SAFETY: an own descriptor.
            done(unsafe { libc::listen(socket.as_raw_fd(), 1) })
        }
        "make" => socket(place.parse().expect("a family"), libc::SOCK_DGRAM, 0).map(drop),
        "ustream" => connect(&socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)?, &Address::unix(place)),
        "useq" => connect(&socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0)?, &Address::unix(place)),
        "udgram" => {
            let socket = socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0)?;
            connect(&socket, &Address::unix(place))?;
            sent(&socket, None, 0)
        }
        "usendto" => sent(&socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0)?, Some(&Address::unix(place)), 0),
        "usendmmsg" => many(&socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0)?, &Address::unix(place)),
        "uring-unix" => by_ring(&socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)?, &Address::unix(place)),
        // A server of its own, and one who comes to it.
        "uown" => {
            let (server, at) = (socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)?, Address::unix(place));
            bind(&server, &at)?;
            // SAFETY: an own descriptor.
            done(unsafe { libc::listen(server.as_raw_fd(), 1) })?;
            connect(&socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)?, &at)
        }
        "uowndgram" => {
            let (server, at) = (socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0)?, Address::unix(place));
            bind(&server, &at)?;
            sent(&socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0)?, Some(&at), 0)
        }
        "pair" => {
            let mut pair = [0; 2];
            // SAFETY: room for two descriptors, which nobody else owns.
            let pair = unsafe {
                done(libc::socketpair(libc::AF_UNIX, place.parse().expect("a type"), 0, pair.as_mut_ptr()))?;
                pair.map(|fd| OwnedFd::from_raw_fd(fd))
            };
            sent(&pair[0], None, 0)
        }
        _ => panic!("no such way: {way}"),
    }
}

fn by_connect(place: &str, socket_type: c_int, protocol: c_int) -> io::Result<()> {
    let (to, family) = internet(place);
    connect(&socket(family, socket_type, protocol)?, &to)
}

/// An address as system calls take it.
struct Address {
    storage: sockaddr_storage,
    len: socklen_t,
}

impl Address {
    /// A path, or `@name`.
    fn unix(place: &str) -> Address {
        // SAFETY: integers; zero is a value of all of them.
        let mut address: libc::sockaddr_un = unsafe { zeroed() };
        address.sun_family = libc::AF_UNIX as u16;
        for (to, from) in address.sun_path.iter_mut().zip(place.bytes()) {
            *to = from as i8;
        }
        let mut len = size_of::<libc::sa_family_t>() + place.len();
        if place.starts_with('@') {
            address.sun_path[0] = 0;
        } else {
            len += 1;
        }
        Self::of(address, len)
    }

    fn of<T>(from: T, len: usize) -> Address {
        assert!(size_of::<T>() <= size_of::<sockaddr_storage>());
        // SAFETY: integers; zero is a value of all of them, and the other one fits, as was just asserted.
        let storage = unsafe {
            let mut storage: sockaddr_storage = zeroed();
            (&raw mut storage).cast::<T>().write(from);
            storage
        };
        Address { storage, len: len as socklen_t }
    }

    fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }
}

fn internet(place: &str) -> (Address, c_int) {
    match place.parse().unwrap_or_else(|e| panic!("{place}: {e}")) {
        SocketAddr::V4(v4) => {
            let address = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            (Address::of(address, size_of::<libc::sockaddr_in>()), libc::AF_INET)
        }
        SocketAddr::V6(v6) => {
            let address = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: 0,
            };
            (Address::of(address, size_of::<libc::sockaddr_in6>()), libc::AF_INET6)
        }
    }
}

fn done(answer: c_int) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn socket(family: c_int, socket_type: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call has no preconditions; its descriptor belongs to nobody else.
    unsafe {
        let fd = libc::socket(family, socket_type | libc::SOCK_CLOEXEC, protocol);
        done(fd).map(|()| OwnedFd::from_raw_fd(fd))
    }
}

fn connect(socket: &OwnedFd, to: &Address) -> io::Result<()> {
    // SAFETY: an own descriptor and an address of this length.
    done(unsafe { libc::connect(socket.as_raw_fd(), to.pointer(), to.len) })
}

fn bind(socket: &OwnedFd, to: &Address) -> io::Result<()> {
    // SAFETY: as above.
    done(unsafe { libc::bind(socket.as_raw_fd(), to.pointer(), to.len) })
}

/// Sends one byte.
fn sent(socket: &OwnedFd, to: Option<&Address>, flags: c_int) -> io::Result<()> {
    let (address, len) = to.map_or((null(), 0), |to| (to.pointer(), to.len));
    // SAFETY: as above; one byte is there.
    let sent = unsafe { libc::sendto(socket.as_raw_fd(), b"x".as_ptr().cast(), 1, flags, address, len) };
    done(sent as c_int)
}

fn many(socket: &OwnedFd, to: &Address) -> io::Result<()> {
    let mut byte = *b"x";
    let mut vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: integers and pointers; zero is a value of all of them. All that is pointed to lives over the call.
    unsafe {
        let mut messages: [libc::mmsghdr; 2] = zeroed();
        for message in &mut messages {
            message.msg_hdr.msg_name = to.pointer().cast_mut().cast();
            message.msg_hdr.msg_namelen = to.len;
            message.msg_hdr.msg_iov = &raw mut vector;
            message.msg_hdr.msg_iovlen = 1;
        }
        done(libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), 2, 0))
    }
}

/// Connects through an io_uring.
fn by_ring(socket: &OwnedFd, to: &Address) -> io::Result<()> {
    const CONNECT: u8 = 16;
    const GET_EVENTS: u32 = 1;
    const ENTRIES: i64 = 0x1000_0000;
    // `struct io_uring_params`: its offsets into the submission ring begin at word 10, into the completion ring at 20.
    let mut parameters = [0u32; 30];
    let map = |ring: &OwnedFd, at: i64| {
        // SAFETY: new memory; the kernel answers with an error when it is not to be had.
        let memory = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(null_mut(), 4096, protection, libc::MAP_SHARED | libc::MAP_POPULATE, ring.as_raw_fd(), at)
        };
        if memory == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(memory.cast::<u8>()) }
    };
    // SAFETY: parameters of the size that the kernel wants; rings of one entry fit into a page each; what is written
    // lies where the kernel said.
    unsafe {
        let fd = libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) as c_int;
        done(fd)?;
        let ring = OwnedFd::from_raw_fd(fd);
        let (queue, entries): (*mut u8, *mut u8) = (map(&ring, 0)?, map(&ring, ENTRIES)?);
        let completions = map(&ring, 0x800_0000)?;
        entries.write(CONNECT);
        entries.add(4).cast::<i32>().write(socket.as_raw_fd());
        entries.add(8).cast::<u64>().write(u64::from(to.len));
        entries.add(16).cast::<u64>().write(to.pointer() as u64);
        queue.add(parameters[16] as usize).cast::<u32>().write(0);
        queue.add(parameters[11] as usize).cast::<u32>().write_volatile(1);
        let null = null::<c_void>();
        done(libc::syscall(libc::SYS_io_uring_enter, ring.as_raw_fd(), 1, 1, GET_EVENTS, null, 0) as c_int)?;
        let answer = completions.add(parameters[25] as usize + 8).cast::<i32>().read_volatile();
        if answer < 0 { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(()) }
    }
}
