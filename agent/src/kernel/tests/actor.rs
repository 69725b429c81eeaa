//! What the tests watch: this test binary, started again as an ordinary user, doing one thing when told to.

use std::ffi::CString;
use std::io::{BufRead, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Barrier};

use super::deeds;
use super::reach;
use crate::process::{self, ProcessId};

/// Names the thing to do; the test harness leaves no other way to hand it over.
const ACT: &str = "RINGFENCE_KERNEL_TEST_ACT";

/// A started actor, waiting for its word.
pub struct Actor {
    child: Child,
    output: std::io::BufReader<ChildStdout>,
}

impl Actor {
    /// Starts `program`, a copy of this test binary, as `uid`, to do `act`. It returns once the actor is ready.
    pub fn start(program: &Path, uid: u32, act: &[&str]) -> Actor {
        let mut child = command(program, act)
            .uid(uid)
            .gid(uid)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What an actor complains of is no line of the test's own: its status tells.
            .stderr(Stdio::null())
            .spawn()
            .expect("the actor starts");
        let output = std::io::BufReader::new(child.stdout.take().expect("piped"));
        let mut actor = Actor { child, output };
        actor.wait_for("ready");
        actor
    }

    /// Reads lines (the harness prints too) until one begins with `word`; gives the rest of it.
    pub fn wait_for(&mut self, word: &str) -> String {
        for line in self.output.by_ref().lines() {
            let line = line.expect("output is text");
            if let Some(at) = line.find(&format!("@{word}")) {
                return line[at + 1 + word.len()..].trim().to_owned();
            }
        }
        panic!("the actor ended before it said {word}");
    }

    /// Who it is.
    pub fn id(&self) -> ProcessId {
        process::stat(self.child.id()).expect("it lives").id
    }

    /// Tells it to act.
    pub fn go(&mut self) {
        self.child.stdin.as_mut().expect("piped").write_all(b"go\n").expect("it listens");
    }

    /// Waits for its end.
    pub fn end(&mut self) -> std::process::ExitStatus {
        let mut rest = Vec::new();
        let _ = self.output.read_to_end(&mut rest);
        self.child.wait().expect("it ends")
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How this test binary is started to do `act`.
pub fn command(program: &Path, act: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(["kernel::tests::actor::act", "--exact", "--nocapture"]).env(ACT, act.join(" "));
    command
}

fn say(word: &str) {
    let mut out = std::io::stdout();
    out.write_all(format!("\n@{word}\n").as_bytes()).expect("somebody reads");
    out.flush().expect("somebody reads");
}

/// Not a test: what a started actor runs. In the ordinary run it has nothing to do.
#[test]
fn act() {
    let Ok(act) = std::env::var(ACT) else { return };
    say("ready");
    let words: Vec<&str> = act.split(' ').collect();
    let wait = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("the test speaks");
    };
    match words[..] {
        ["threads", port] => threads(port.parse().unwrap(), wait),
        ["daemon", port] => {
            wait();
            daemon(port.parse().unwrap());
        }
        ["connect", v4, v6, closed, path, name] => {
            wait();
            connect([v4, v6, closed].map(|port| port.parse().unwrap()), path, name);
        }
        ["flood", port, count] => {
            wait();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            for _ in 0..count.parse::<u32>().unwrap() {
                let _ = socket.send_to(b"x", ("127.0.0.1", port.parse().unwrap()));
            }
        }
        ["reach", ref targets @ ..] => {
            wait();
            for target in targets {
                say(&format!("did {target} {}", reach::attempt(target)));
            }
        }
        ["hammer", place, milliseconds] => {
            wait();
            let (tried, reached) =
                reach::hammer(place, std::time::Duration::from_millis(milliseconds.parse().unwrap()));
            say(&format!("hammered {tried} {reached}"));
        }
        ["connected", path] => {
            wait();
            let connected = reach::Connected::to(path);
            say("connected");
            wait();
            say(&format!("sent {} {}", connected.send(), connected.send()));
        }
        ["open", ref paths @ ..] => {
            wait();
            for path in paths {
                let _ = std::fs::File::open(path);
            }
        }
        ["exec", program, ref arguments @ ..] => {
            wait();
            panic!("{}", Command::new(program).args(arguments).env_remove(ACT).exec());
        }
        ["many", program, runs, forks] => {
            wait();
            many(program, runs.parse().unwrap(), forks.parse().unwrap());
        }
        ["traced", program, ref arguments @ ..] => {
            wait();
            assert!(traced(Command::new(program).args(arguments).env_remove(ACT)));
        }
        ["exec-in-thread", program] => {
            wait();
            let program = program.to_owned();
            let thread = std::thread::spawn(move || panic!("{}", Command::new(program).env_remove(ACT).exec()));
            let _ = thread.join();
        }
        ["vfork-and-spawn", program] => {
            wait();
            vfork(program);
            assert!(Command::new(program).env_remove(ACT).status().unwrap().success());
        }
        ["deeds", ref deeds @ ..] => {
            wait();
            let answers: Vec<String> = deeds.iter().map(|deed| deeds::errno(deed).to_string()).collect();
            say(&format!("done {}", answers.join(" ")));
        }
        ["signal-by-file", pid] => {
            wait();
            deeds::signal_by_file(pid.parse().unwrap());
            say("sent");
        }
        ["memfd"] => {
            wait();
            memfd();
        }
        // The program that is started acts by itself; the first word after it is its act.
        ["become", program, ref then @ ..] => {
            wait();
            panic!("{}", command(Path::new(program), then).stdin(Stdio::null()).exec());
        }
        ["spawn", program, ref then @ ..] => {
            wait();
            let status = command(Path::new(program), then).stdin(Stdio::null()).status().unwrap();
            assert!(status.success());
        }
        ["exit", code] => {
            wait();
            // A second thread that is still running must not make a second event.
            std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(60)));
            std::process::exit(code.parse().unwrap());
        }
        ["sleep"] => wait(),
        _ => panic!("no such act: {act}"),
    }
}

/// Forks; the child does `work` and ends without running anything of the harness.
fn fork(work: impl FnOnce()) -> i32 {
    // SAFETY: the child only makes system calls and exits.
    match unsafe { libc::fork() } {
        0 => {
            work();
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(0) }
        }
        pid => pid,
    }
}

fn wait_for_child(pid: i32) {
    // SAFETY: a null status is allowed.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

/// `runs` children that execute `program`, among `forks` that only end.
fn many(program: &str, runs: u32, forks: u32) {
    let program = CString::new(program).unwrap();
    let arguments = [program.as_ptr(), std::ptr::null()];
    let per_run = forks / runs;
    for _ in 0..runs {
        wait_for_child(fork(|| {
            // SAFETY: the array ends with a null pointer; what returns has failed, and its parent sees no exec.
            let _failed = unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) };
        }));
        for _ in 0..per_run {
            wait_for_child(fork(|| {}));
        }
    }
}

/// Runs a command whose parent could write into it; whether it succeeded.
fn traced(command: &mut Command) -> bool {
    // SAFETY: the call in the child asks nothing of memory.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let pid = command.spawn().expect("it starts").id() as libc::pid_t;
    let mut status = 0;
    // SAFETY: our own child, and a number to write to.
    unsafe {
        while libc::waitpid(pid, &raw mut status, 0) == pid && libc::WIFSTOPPED(status) {
            // The stop after its exec is not a signal of its own.
            let signal = if libc::WSTOPSIG(status) == libc::SIGTRAP { 0 } else { libc::WSTOPSIG(status) };
            libc::ptrace(libc::PTRACE_CONT, pid, 0, signal);
        }
    }
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[expect(deprecated, reason = "programs use it, and so it is tested")]
fn vfork(program: &str) {
    let program = CString::new(program).unwrap();
    let arguments = [program.as_ptr(), std::ptr::null()];
    // SAFETY: the child makes one system call, and ends if that fails.
    let child = unsafe { libc::vfork() };
    if child == 0 {
        // SAFETY: as above; both arrays end with a null pointer.
        unsafe {
            libc::execv(program.as_ptr(), arguments.as_ptr());
            libc::_exit(1);
        }
    }
    wait_for_child(child);
}

fn threads(port: u16, wait: impl Fn()) {
    let barrier = Arc::new(Barrier::new(9));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let barrier = barrier.clone();
            std::thread::spawn(move || {
                barrier.wait();
                barrier.wait();
                let child = fork(|| drop(TcpStream::connect(("127.0.0.1", port))));
                wait_for_child(child);
                let _ = TcpStream::connect(("127.0.0.1", port));
            })
        })
        .collect();
    barrier.wait();
    say("threads");
    wait();
    barrier.wait();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn daemon(port: u16) {
    let child = fork(|| {
        nix::unistd::setsid().unwrap();
        fork(|| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            let _ = TcpStream::connect(("127.0.0.1", port));
        });
    });
    wait_for_child(child);
}

fn connect([v4, v6, closed]: [u16; 3], path: &str, name: &str) {
    let _ = TcpStream::connect(("127.0.0.1", v4));
    let _ = TcpStream::connect(("::1", v6));
    let _ = TcpStream::connect(("127.0.0.1", closed));
    let _ = UnixStream::connect(path);
    let _ = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap());
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let _ = udp.send_to(b"x", ("127.0.0.1", v4));
    // No address: neither a connect nor a result of one.
    let _ = UnixDatagram::unbound().unwrap().send(b"x");
}

fn memfd() {
    let name = CString::new("hidden").unwrap();
    // SAFETY: the name is a C string; the answer is checked.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    std::fs::write(format!("/proc/self/fd/{fd}"), std::fs::read("/bin/true").unwrap()).unwrap();
    panic!("{}", Command::new(format!("/proc/self/fd/{fd}")).env_remove(ACT).exec());
}
