//! What the scene's commands talk to, all on loopback and outside the fence: each counts who came and what was sent.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::person::Person;

/// How often somebody connected, and how many bytes came.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    bytes: AtomicUsize,
}

impl Seen {
    fn take(&self, mut stream: impl std::io::Read) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            self.bytes.fetch_add(read, Ordering::SeqCst);
        }
    }
}

/// One TCP server.
pub struct Tcp {
    port: u16,
    seen: Arc<Seen>,
}

impl Tcp {
    fn start() -> std::io::Result<Tcp> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (port, seen) = (listener.local_addr()?.port(), Arc::new(Seen::default()));
        let counted = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
                counted.take(stream);
            }
        });
        Ok(Tcp { port, seen })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:PORT`, as reports name it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// How many connected.
    pub fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    /// Waits until somebody connected.
    pub fn wait(&self, limit: Duration) {
        let begun = Instant::now();
        while self.connections() == 0 && begun.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// All of them.
pub struct Servers {
    plain: Tcp,
    late: Tcp,
    upload: Tcp,
    unix: PathBuf,
    unix_seen: Arc<Seen>,
}

impl Servers {
    /// Starts them; the unix socket lies in the person's home, outside the project.
    ///
    /// # Errors
    /// When a loopback port or the socket cannot be had.
    pub fn start(person: &Person) -> std::io::Result<Servers> {
        let unix = person.directory("services")?.join("echo.sock");
        let listener = UnixListener::bind(&unix)?;
        std::fs::set_permissions(&unix, std::fs::Permissions::from_mode(0o666))?;
        let unix_seen = Arc::new(Seen::default());
        let counted = Arc::clone(&unix_seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
                counted.take(stream);
            }
        });
        Ok(Servers { plain: Tcp::start()?, late: Tcp::start()?, upload: Tcp::start()?, unix, unix_seen })
    }

    /// Whom the second command talks to.
    pub fn plain(&self) -> &Tcp {
        &self.plain
    }

    /// Whom the background child talks to, two seconds later.
    pub fn late(&self) -> &Tcp {
        &self.late
    }

    /// Where the credential would go.
    pub fn upload(&self) -> &Tcp {
        &self.upload
    }

    /// The unix socket's path.
    pub fn unix(&self) -> &Path {
        &self.unix
    }

    /// How many connected to the unix socket.
    pub fn unix_connections(&self) -> usize {
        self.unix_seen.connections.load(Ordering::SeqCst)
    }
}
