//! The server against a kernel side in memory, over its real socket, also as other users.

use std::collections::HashSet;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use nix::unistd::geteuid;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, LocalSet};

use super::*;
use crate::probe::backend::Source;
use crate::probe::client::{Client, ClientError};
use crate::probe::protocol::{Counters, FileId, Mark, Observation, ObservationKind, ProgramState, Role};
use crate::probe::rules::RuleSet;
use crate::process;

/// A uid that has no files and no processes here.
const SOMEBODY: u32 = 61_301;
const SOMEBODY_ELSE: u32 = 61_302;
const SECOND: Duration = Duration::from_secs(1);

/// What the kernel would hold: it outlives a probe.
#[derive(Default)]
struct World {
    last_session: u64,
    owners: HashMap<u64, u32>,
    enrolled: Vec<(u64, ProcessId)>,
    marks: HashMap<ProcessId, Mark>,
    everybody_is_marked: bool,
    marks_are_unknown: bool,
    services: Vec<PathBuf>,
    watching: bool,
    launch_lives: bool,
    rings: HashMap<u32, VecDeque<Observation>>,
    lost: u64,
    generation: u32,
    held: HashMap<u64, Vec<OwnedFd>>,
    rules: HashMap<u64, (RuleSet, RuleSet)>,
}

const RING: usize = 5000;
const MARK: Mark = Mark { session: 1, launch: 3, generation: 0, role: Role::Launched };

#[derive(Clone, Default)]
struct Fake(Rc<RefCell<World>>);

impl Fake {
    fn happens(&self, uid: u32, time_ns: u64) {
        let mut world = self.0.borrow_mut();
        let ring = world.rings.entry(uid).or_default();
        if ring.len() == RING {
            world.lost += 1;
            return;
        }
        let process = ProcessId { pid: 1, start: 1 };
        let kind = ObservationKind::Exit { code: 0, signal: 0 };
        ring.push_back(Observation { time_ns, mark: MARK, process, thread: 1, kind });
    }
}

struct FakeRings(Fake, u32, [std::os::unix::net::UnixStream; 2]);

impl Source for FakeRings {
    fn fds(&self) -> [std::os::fd::BorrowedFd<'_>; 2] {
        [self.2[0].as_fd(), self.2[1].as_fd()]
    }

    fn drain(&mut self, max: usize, sink: &mut dyn FnMut(Observation)) -> usize {
        let mut world = self.0.0.borrow_mut();
        let ring = world.rings.entry(self.1).or_default();
        let count = ring.len().min(max);
        ring.drain(..count).for_each(sink);
        count
    }
}

impl Backend for Fake {
    type Source = FakeRings;

    fn programs(&self) -> Vec<ProgramState> {
        vec![ProgramState { program: "fork".into(), attached: true, reason: None }]
    }

    fn identify_held(&mut self, session: u64, files: Vec<OwnedFd>) -> Result<Vec<FileId>, BackendError> {
        let inode = |fd: &OwnedFd| std::fs::File::from(fd.try_clone().unwrap()).metadata().unwrap().ino();
        let ids: Vec<FileId> = files.iter().map(|fd| FileId { inode: inode(fd), ..FileId::default() }).collect();
        self.0.borrow_mut().held.insert(session, files);
        Ok(ids)
    }

    fn set_rules(&mut self, session: u64, launched: &RuleSet, host: &RuleSet) -> Result<(u32, u32), BackendError> {
        let mut world = self.0.borrow_mut();
        world.generation += 2;
        world.rules.insert(session, (launched.clone(), host.clone()));
        Ok((world.generation - 1, world.generation))
    }

    fn closed_with_rules(&self) -> Result<Vec<u64>, BackendError> {
        Ok(Vec::new())
    }

    fn sweep_rules(&mut self, _: &dyn Fn(u64) -> bool) -> Result<(), BackendError> {
        Ok(())
    }

    fn open_session(&mut self, uid: u32) -> Result<u64, BackendError> {
        let mut world = self.0.borrow_mut();
        world.last_session += 1;
        let session = world.last_session;
        world.owners.insert(session, uid);
        Ok(session)
    }

    fn close_session(&mut self, session: u64) -> Result<(), BackendError> {
        self.0.borrow_mut().owners.remove(&session);
        Ok(())
    }

    fn sessions(&self, uid: u32) -> Result<Vec<u64>, BackendError> {
        let world = self.0.borrow();
        let mut own: Vec<u64> = world.owners.iter().filter(|(_, owner)| **owner == uid).map(|(id, _)| *id).collect();
        own.sort_unstable();
        Ok(own)
    }

    fn owner(&self, session: u64) -> Option<u32> {
        self.0.borrow().owners.get(&session).copied()
    }

    fn enrol(&mut self, session: u64, root: ProcessId, _role: Role) -> Result<u32, BackendError> {
        let mut world = self.0.borrow_mut();
        world.enrolled.push((session, root));
        world.marks.insert(root, MARK);
        Ok(1)
    }

    fn mark_of(&self, process: ProcessId) -> Result<Option<Mark>, BackendError> {
        let world = self.0.borrow();
        if world.marks_are_unknown {
            return Err(BackendError { kind: Refusal::Kernel, reason: "no map".into() });
        }
        Ok(if world.everybody_is_marked { Some(MARK) } else { world.marks.get(&process).copied() })
    }

    fn counters(&self, _session: u64) -> Result<Counters, BackendError> {
        Ok(Counters { attempted: 3, reported: 2, lost: 1, ..Counters::default() })
    }

    fn watch_refusals(&mut self, on: bool) -> Result<(), BackendError> {
        self.0.borrow_mut().watching = on;
        Ok(())
    }

    fn watching_refusals(&self) -> bool {
        self.0.borrow().watching
    }

    fn rings(&mut self, uid: u32) -> Result<FakeRings, BackendError> {
        let pair = std::os::unix::net::UnixStream::pair().unwrap();
        Ok(FakeRings(self.clone(), uid, pair.into()))
    }

    fn a_launch_lives(&self) -> bool {
        self.0.borrow().launch_lives
    }
}

struct Running {
    dir: Rc<TempDir>,
    options: Options,
    fake: Fake,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
    shared: std::rc::Weak<Shared<Fake>>,
}

impl Running {
    fn start() -> Running {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        Running::start_in(Rc::new(dir), Fake::default())
    }

    fn start_in(dir: Rc<TempDir>, fake: Fake) -> Running {
        let options = Options {
            socket: dir.path().join("run/probe.sock"),
            plans_dir: dir.path().join("plans"),
            runtime_root: dir.path().join("runtime"),
            pin_dir: dir.path().join("pins"),
            services: fake.0.borrow().services.clone(),
            refusals_idle: Duration::from_millis(300),
            peer_patience: Duration::from_millis(400),
            subscriber_patience: Duration::from_millis(300),
        };
        let server = Claim::take(options.clone()).unwrap().bind(fake.clone()).unwrap();
        let shared = Rc::downgrade(&server.shared);
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::task::spawn_local(async move { drop(server.serve(async { drop(stopped.await) }).await) });
        Running { dir, options, fake, stop: Some(stop), served, shared }
    }

    async fn client(&self) -> Client {
        Client::connect(&self.options.socket, 2 * SECOND).await.unwrap()
    }

    async fn raw(&self) -> UnixStream {
        UnixStream::connect(&self.options.socket).await.unwrap()
    }

    /// How many connections the server counts for this test's uid.
    fn held(&self) -> usize {
        let shared = self.shared.upgrade().expect("the server runs");
        let accounts = shared.accounts.borrow();
        accounts.get(&geteuid().as_raw()).map_or(0, |account| account.connections)
    }

    async fn stop(mut self) -> (Rc<TempDir>, Fake) {
        drop(self.stop.take());
        self.served.await.unwrap();
        (self.dir, self.fake)
    }

    /// Makes these requests, after a Hello, as another user; answers with what came until the server closed.
    async fn asked_by(&self, uid: u32, requests: &[Request]) -> Vec<Response> {
        // Copies between its standard streams and the socket, as a process of that user.
        const RELAY: &str = r#"
            use Socket; $SIG{ALRM} = sub { exit 1 }; alarm 20;
            socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die; connect($s, sockaddr_un($ARGV[0])) or die "connect: $!";
            local $/; my $in = <STDIN>; syswrite($s, $in); shutdown($s, 1);
            while (sysread($s, my $part, 65536)) { syswrite(STDOUT, $part) }
        "#;
        let mut wire = Vec::new();
        let hello = Request::Hello { protocol_version: PROTOCOL_VERSION };
        for request in std::iter::once(&hello).chain(requests) {
            frame::write(&mut wire, &frames::encode(request).unwrap(), FRAME_BYTES).unwrap();
        }
        let socket = self.options.socket.clone();
        let received = tokio::task::spawn_blocking(move || {
            let id = uid.to_string();
            let mut child = Command::new("setpriv")
                .args(["--reuid", &id, "--regid", &id, "--clear-groups", "perl", "-e", RELAY])
                .arg(socket)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(&wire).unwrap();
            child.wait_with_output().unwrap().stdout
        });
        let received = received.await.unwrap();
        let mut left = received.as_slice();
        let mut responses = Vec::new();
        while !left.is_empty() {
            responses.push(frames::decode(&frame::read(&mut left, FRAME_BYTES).unwrap()).unwrap());
        }
        assert!(matches!(responses[0], Response::Welcome { .. }), "{responses:?}");
        responses.split_off(1)
    }
}

fn inside<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bounded = async { tokio::time::timeout(60 * SECOND, test()).await.expect("the test hangs") };
    runtime.block_on(LocalSet::new().run_until(bounded));
}

fn needs_root() -> bool {
    let root = geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root to act as other users");
    }
    root
}

fn refusal(response: &Response) -> Option<Refusal> {
    match response {
        Response::Refused { kind, .. } => Some(*kind),
        _ => None,
    }
}

fn refusal_of<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Refusal {
    match result {
        Err(ClientError::Refused { kind, .. }) => kind,
        other => panic!("not refused: {other:?}"),
    }
}

async fn raw_answer(socket: &mut UnixStream) -> Option<Response> {
    let body = frame::read_async(socket, FRAME_BYTES, 2 * SECOND).await.ok()?;
    Some(frames::decode(&body).unwrap())
}

async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..400 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not come to that");
}

struct Sleeper(Child, ProcessId);

impl Sleeper {
    fn of(uid: Option<u32>) -> Sleeper {
        let child = match uid {
            None => Command::new("sleep").arg("60").spawn().unwrap(),
            Some(uid) => {
                let ids = ["--reuid", &uid.to_string(), "--clear-groups", "sleep", "60"];
                Command::new("setpriv").args(ids).spawn().unwrap()
            }
        };
        let id = process::stat(child.id()).unwrap().id;
        for _ in 0..200 {
            let uids = peer::restrictions(id).unwrap().uids;
            if uid.is_none_or(|uid| uids == [uid; 4]) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Sleeper(child, id)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_session_is_opened_enrolled_asked_about_and_closed() {
    inside(|| async {
        let running = Running::start();
        let mut client = running.client().await;
        assert_eq!(client.version(), env!("CARGO_PKG_VERSION"));
        assert_eq!(client.status().await.unwrap().programs.len(), 1);
        let session = client.open_session().await.unwrap();
        assert_eq!(client.sessions().await.unwrap(), [session]);
        let sleeper = Sleeper::of(None);
        assert_eq!(client.mark_of(sleeper.1).await.unwrap(), None);
        assert_eq!(client.enrol(session, sleeper.1, Role::Host).await.unwrap(), 1);
        assert_eq!(client.mark_of(sleeper.1).await.unwrap(), Some(MARK));
        assert_eq!(client.counters(session).await.unwrap().lost, 1);
        client.close_session(session).await.unwrap();
        assert_eq!(client.sessions().await.unwrap(), [0; 0]);
        assert_eq!(refusal_of(client.counters(session).await), Refusal::NotYours);
    });
}

#[test]
fn a_pidfd_that_is_passed_names_the_process() {
    inside(|| async {
        let running = Running::start();
        let mut client = running.client().await;
        let sleeper = Sleeper::of(None);
        let pidfd = peer::open_pidfd_of(sleeper.1).unwrap();
        assert_eq!(client.mark_behind(pidfd.as_fd()).await.unwrap(), None);
        running.fake.0.borrow_mut().marks.insert(sleeper.1, MARK);
        assert_eq!(client.mark_behind(pidfd.as_fd()).await.unwrap(), Some(MARK));
        // The same connection goes on, and no descriptor of an earlier request counts for a later one.
        assert_eq!(refusal_of(client.request(&Request::MarkOfPassed).await), Refusal::Protocol);
        let not_a_pidfd = File::open("/dev/null").unwrap();
        assert_eq!(refusal_of(client.mark_behind(not_a_pidfd.as_fd()).await), Refusal::Unavailable);
        drop(sleeper);
        assert_eq!(refusal_of(client.mark_behind(pidfd.as_fd()).await), Refusal::Gone);
        assert!(client.status().await.is_ok());
    });
}

#[test]
fn a_process_that_is_gone_or_another_by_now_is_said_to_be() {
    inside(|| async {
        let running = Running::start();
        let mut client = running.client().await;
        let session = client.open_session().await.unwrap();
        let sleeper = Sleeper::of(None);
        let reused = ProcessId { start: sleeper.1.start + 1, ..sleeper.1 };
        assert_eq!(refusal_of(client.mark_of(reused).await), Refusal::Gone);
        assert_eq!(refusal_of(client.enrol(session, reused, Role::Host).await), Refusal::Gone);
        assert!(running.fake.0.borrow().enrolled.is_empty());
    });
}

#[test]
fn users_do_not_see_or_touch_each_others_sessions_processes_and_plans() {
    if !needs_root() {
        return;
    }
    inside(|| async {
        let running = Running::start();
        let own = process::stat(std::process::id()).unwrap().id;
        let name = format!("{}.{}/session.plan", own.pid, own.start);
        let publish = Request::PublishPlan { name: name.clone(), plan: b"somebody's".to_vec() };
        let theirs = Sleeper::of(Some(SOMEBODY));
        let opened = running.asked_by(SOMEBODY, &[Request::OpenSession, publish]).await;
        let [Response::Session { session }, Response::Published { path }] = &opened[..] else { panic!("{opened:?}") };
        let session = *session;

        let enrol = Request::Enrol { session, root: theirs.1, role: Role::Host };
        let else_asks = [
            Request::Sessions,
            Request::Counters { session },
            Request::ExpectLaunch { session },
            enrol.clone(),
            Request::CloseSession { session },
            Request::MarkOf { process: theirs.1 },
            Request::OpenSession,
            Request::Enrol { session: session + 1, root: theirs.1, role: Role::Host },
            Request::RemovePlan { name },
            Request::PublishPlan { name: format!("../{SOMEBODY}/x.plan"), plan: vec![1] },
        ];
        let answers = running.asked_by(SOMEBODY_ELSE, &else_asks).await;
        assert_eq!(answers[0], Response::Sessions { sessions: vec![] });
        for (asked, answer) in else_asks[1..6].iter().zip(&answers[1..6]) {
            assert_eq!(refusal(answer), Some(Refusal::NotYours), "{asked:?}");
        }
        assert_eq!(answers[6], Response::Session { session: session + 1 });
        assert_eq!(refusal(&answers[7]), Some(Refusal::NotYours));
        // There is none of that name of this user's.
        assert_eq!(answers[8], Response::Done);
        assert_eq!(fs::read(path).unwrap(), b"somebody's");
        assert_eq!(refusal(&answers[9]), Some(Refusal::Protocol));
        {
            let world = running.fake.0.borrow();
            assert!(world.enrolled.is_empty() && !world.watching && world.owners[&session] == SOMEBODY);
        }
        // Root is a user like any other here.
        let mut root = running.client().await;
        assert_eq!(refusal_of(root.close_session(session).await), Refusal::NotYours);

        let answers = running.asked_by(SOMEBODY, &[enrol, Request::Sessions]).await;
        assert_eq!(answers, [Response::Enrolled { threads: 1 }, Response::Sessions { sessions: vec![session] }]);
        assert_eq!(running.fake.0.borrow().enrolled, [(session, theirs.1)]);
    });
}

#[test]
fn observations_reach_their_owner_and_nobody_else() {
    if !needs_root() {
        return;
    }
    inside(|| async {
        let running = Running::start();
        running.fake.happens(SOMEBODY, 1);
        running.fake.happens(0, 2);
        let mut stream = running.client().await.stream().await.unwrap();
        let seen = stream.next().await.unwrap();
        assert_eq!(seen.iter().map(|o| o.time_ns).collect::<Vec<_>>(), [2]);
        assert_eq!(running.fake.0.borrow().rings[&SOMEBODY].len(), 1);
    });
}

#[test]
fn a_marked_peer_is_refused_everything_also_when_it_becomes_marked_while_connected() {
    inside(|| async {
        let running = Running::start();
        let mut before = running.client().await;
        let mut streaming = running.client().await.stream().await.unwrap();
        running.fake.0.borrow_mut().everybody_is_marked = true;
        assert_eq!(refusal_of(before.open_session().await), Refusal::MarkedPeer);
        assert!(matches!(before.open_session().await, Err(ClientError::Vanished)));
        assert_eq!(refusal_of(Client::connect(&running.options.socket, SECOND).await), Refusal::MarkedPeer);
        running.fake.happens(geteuid().as_raw(), 1);
        assert!(matches!(streaming.next().await, Err(ClientError::Vanished)));
        assert_eq!(running.fake.0.borrow().last_session, 0);

        // What it would have got is kept for one that is not marked.
        running.fake.0.borrow_mut().everybody_is_marked = false;
        assert_eq!(running.client().await.stream().await.unwrap().next().await.unwrap().len(), 1);
    });
}

#[test]
fn a_peer_whose_mark_is_not_known_is_refused() {
    inside(|| async {
        let running = Running::start();
        running.fake.0.borrow_mut().marks_are_unknown = true;
        assert_eq!(refusal_of(Client::connect(&running.options.socket, SECOND).await), Refusal::Kernel);
    });
}

#[test]
fn only_an_installed_service_may_change_anything() {
    inside(|| async {
        for (service, may) in [(std::env::current_exe().unwrap(), true), (PathBuf::from("/bin/true"), false)] {
            let fake = Fake::default();
            fake.0.borrow_mut().services = vec![service];
            let dir = tempfile::tempdir().unwrap();
            fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
            let running = Running::start_in(Rc::new(dir), fake);
            let mut client = running.client().await;
            assert!(client.status().await.is_ok(), "looking is for everybody");
            match client.open_session().await {
                Ok(_) => assert!(may),
                Err(error) => assert!(!may && refusal_of::<u64>(Err(error)) == Refusal::NotYours),
            }
            assert!(client.status().await.is_ok(), "a refusal does not end the connection");
        }
    });
}

#[test]
fn what_is_not_the_protocol_is_refused_and_ends_the_connection() {
    inside(|| async {
        let running = Running::start();
        let framed = |request: &Request| {
            let mut wire = Vec::new();
            frame::write(&mut wire, &frames::encode(request).unwrap(), FRAME_BYTES).unwrap();
            wire
        };
        let hello = framed(&Request::Hello { protocol_version: PROTOCOL_VERSION });
        let mut trailing = frames::encode(&Request::Status).unwrap();
        trailing.push(0);
        let mut trailing_frame = hello.clone();
        frame::write(&mut trailing_frame, &trailing, FRAME_BYTES).unwrap();
        let wires: [Vec<u8>; 7] = [
            framed(&Request::Status),
            framed(&Request::Hello { protocol_version: PROTOCOL_VERSION + 1 }),
            [hello.clone(), vec![0, 0, 0, 0]].concat(),
            [hello.clone(), vec![0xff; 4]].concat(),
            [hello.clone(), vec![0, 0, 0, 2, 0xee, 0xee]].concat(),
            trailing_frame,
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        ];
        for wire in wires {
            let mut socket = running.raw().await;
            socket.write_all(&wire).await.unwrap();
            let mut last = None;
            while let Some(response) = raw_answer(&mut socket).await {
                last = Some(response);
            }
            assert_eq!(last.as_ref().and_then(refusal), Some(Refusal::Protocol), "{wire:?}: {last:?}");
        }
        // A second Hello and an idle connection are fine.
        let mut client = running.client().await;
        tokio::time::sleep(2 * running.options.peer_patience).await;
        assert!(client.request(&Request::Hello { protocol_version: PROTOCOL_VERSION }).await.is_ok());
    });
}

#[test]
fn slow_and_vanishing_peers_hold_nothing() {
    inside(|| async {
        let running = Running::start();
        let says_nothing = running.raw().await;
        let mut half = running.raw().await;
        half.write_all(&[0, 0, 0, 9, 1, 2]).await.unwrap();
        let mut gone = running.raw().await;
        gone.write_all(&[0, 0, 0, 9, 1, 2]).await.unwrap();
        drop(gone);
        until(|| running.held() == 2).await;
        until(|| running.held() == 0).await;
        drop((says_nothing, half));
    });
}

#[test]
fn connections_and_sessions_are_bounded_per_uid() {
    inside(|| async {
        let running = Running::start();
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS_PER_UID {
            open.push(running.client().await);
        }
        assert_eq!(refusal_of(Client::connect(&running.options.socket, SECOND).await), Refusal::Limit);
        open.pop();
        until(|| running.held() < CONNECTIONS_PER_UID).await;
        let mut client = running.client().await;
        for _ in 0..SESSIONS_PER_UID {
            client.open_session().await.unwrap();
        }
        assert_eq!(refusal_of(client.open_session().await), Refusal::Limit);
        client.close_session(1).await.unwrap();
        client.open_session().await.unwrap();
    });
}

#[test]
fn one_subscriber_at_a_time() {
    inside(|| async {
        let running = Running::start();
        let first = running.client().await.stream().await.unwrap();
        assert_eq!(refusal_of(running.client().await.stream().await), Refusal::Limit);
        drop(first);
        until(|| running.held() == 0).await;
        let mut second = running.client().await.stream().await.unwrap();
        running.fake.happens(geteuid().as_raw(), 5);
        assert_eq!(second.next().await.unwrap()[0].time_ns, 5);
    });
}

#[test]
fn a_subscriber_that_does_not_read_is_dropped_and_the_next_one_misses_nothing_that_was_kept() {
    inside(|| async {
        let running = Running::start();
        let uid = geteuid().as_raw();
        let mut deaf = running.client().await.stream().await.unwrap();
        let mut happened = 0;
        // Far more than socket buffers and ring hold.
        for _ in 0..100 {
            for _ in 0..1000 {
                running.fake.happens(uid, happened);
                happened += 1;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        until(|| running.held() == 0).await;
        let lost_before = running.fake.0.borrow().lost;
        assert!(lost_before > 0);
        // What lies in its socket it may still read: whole frames, then the end.
        let mut seen = HashSet::new();
        let mut frames_read = 0;
        while let Ok(batch) = deaf.next().await {
            frames_read += 1;
            assert!(batch.iter().all(|o| seen.insert(o.time_ns)), "twice");
        }
        assert!(frames_read > 0);
        let mut next = running.client().await.stream().await.unwrap();
        while seen.len() as u64 + lost_before < happened {
            for observation in next.next().await.unwrap() {
                assert!(seen.insert(observation.time_ns), "{} twice", observation.time_ns);
            }
        }
        assert_eq!(running.fake.0.borrow().lost, lost_before);
    });
}

#[test]
fn a_subscriber_that_speaks_is_dropped() {
    inside(|| async {
        let running = Running::start();
        let mut socket = running.raw().await;
        for request in [Request::Hello { protocol_version: PROTOCOL_VERSION }, Request::Stream, Request::Status] {
            let body = frames::encode(&request).unwrap();
            frame::write_async(&mut socket, &body, FRAME_BYTES, SECOND).await.unwrap();
        }
        assert!(matches!(raw_answer(&mut socket).await, Some(Response::Welcome { .. })));
        assert_eq!(raw_answer(&mut socket).await, Some(Response::Done));
        assert_eq!(raw_answer(&mut socket).await, None);
    });
}

#[test]
fn refusals_are_watched_while_a_launch_is_expected_or_lives() {
    inside(|| async {
        let running = Running::start();
        let mut client = running.client().await;
        let session = client.open_session().await.unwrap();
        assert!(!client.status().await.unwrap().syscall_refusals_observed);
        client.expect_launch(session).await.unwrap();
        assert!(client.status().await.unwrap().syscall_refusals_observed);
        running.fake.0.borrow_mut().launch_lives = true;
        tokio::time::sleep(3 * running.options.refusals_idle).await;
        assert!(running.fake.0.borrow().watching);
        running.fake.0.borrow_mut().launch_lives = false;
        let begun = Instant::now();
        until(|| !running.fake.0.borrow().watching).await;
        assert!(begun.elapsed() >= running.options.refusals_idle / 2, "{:?}", begun.elapsed());
        client.expect_launch(session).await.unwrap();
        assert!(running.fake.0.borrow().watching);
    });
}

#[test]
fn a_restart_keeps_sessions_plans_and_watching() {
    inside(|| async {
        let running = Running::start();
        let mut client = running.client().await;
        let session = client.open_session().await.unwrap();
        let own = process::stat(std::process::id()).unwrap().id;
        let name = format!("{}.{}/session.plan", own.pid, own.start);
        let plan = client.publish_plan(name, b"plan".to_vec()).await.unwrap();
        assert!(plan.starts_with(client.plan_directory()));
        let socket = running.options.socket.clone();
        let (dir, fake) = running.stop().await;
        assert!(matches!(client.status().await, Err(ClientError::Vanished)));
        assert!(matches!(Client::connect(&socket, SECOND).await, Err(ClientError::Absent(_))));

        fake.0.borrow_mut().launch_lives = true;
        let running = Running::start_in(dir, fake);
        until(|| running.fake.0.borrow().watching).await;
        let mut client = running.client().await;
        assert_eq!(client.sessions().await.unwrap(), [session]);
        assert_eq!(fs::read(plan).unwrap(), b"plan");
    });
}

#[test]
fn a_killed_probe_leaves_a_socket_that_the_next_one_replaces() {
    inside(|| async {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("run/probe.sock");
        fs::create_dir(dir.path().join("run")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        assert!(matches!(Client::connect(&socket, SECOND).await, Err(ClientError::NobodyListens(_))));
        let running = Running::start_in(Rc::new(dir), Fake::default());
        assert!(running.client().await.status().await.is_ok());
    });
}

#[test]
fn one_probe_per_socket_and_it_can_be_found() {
    inside(|| async {
        let running = Running::start();
        let own = process::stat(std::process::id()).unwrap().id;
        let found = super::running(&running.options.socket);
        assert_eq!(found, Some((own, running.options.pin_dir.clone())));
        let second = Claim::take(running.options.clone());
        assert!(matches!(second.map(drop), Err(ServerError::Running(pid, _)) if pid == own.pid));
        assert!(running.client().await.status().await.is_ok());
        let socket = running.options.socket.clone();
        let (dir, _fake) = running.stop().await;
        assert_eq!(super::running(&socket), None);
        assert_eq!(fs::read_dir(dir.path().join("run")).unwrap().count(), 0);
    });
}

#[test]
fn a_directory_that_others_can_change_holds_no_socket() {
    inside(|| async {
        let running = Running::start();
        let open = running.dir.path().join("open");
        make_directory(&open, 0o777).unwrap();
        let options = Options { socket: open.join("probe.sock"), ..running.options.clone() };
        assert!(matches!(Claim::take(options).map(drop), Err(ServerError::Unsafe(..))));
    });
}

#[test]
fn a_user_without_a_login_gets_a_runtime_directory() {
    if !needs_root() {
        return;
    }
    inside(|| async {
        let running = Running::start();
        for _ in 0..2 {
            let answers = running.asked_by(SOMEBODY, &[Request::RuntimeDirectory]).await;
            let path = running.options.runtime_root.join(format!("u/{SOMEBODY}"));
            assert_eq!(answers, [Response::RuntimeDirectory { path: path.display().to_string() }]);
            assert!(places::is_private(&path, SOMEBODY));
        }
        let taken = running.options.runtime_root.join(format!("u/{SOMEBODY_ELSE}"));
        std::os::unix::fs::symlink("/", taken).unwrap();
        let answers = running.asked_by(SOMEBODY_ELSE, &[Request::RuntimeDirectory]).await;
        assert_eq!(refusal(&answers[0]), Some(Refusal::Unavailable));
    });
}

#[test]
fn a_client_does_not_believe_a_socket_of_another_user() {
    if !needs_root() {
        return;
    }
    inside(|| async {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        const LISTEN: &str = "use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0);
            bind($s, sockaddr_un($ARGV[0])); listen($s, 1); sleep 20";
        let id = SOMEBODY.to_string();
        let ids = ["--reuid", &id, "--clear-groups", "perl", "-e", LISTEN];
        let child = Command::new("setpriv").args(ids).arg(&socket).spawn().unwrap();
        let _impostor = Sleeper(child, ProcessId { pid: 0, start: 0 });
        let mut said = None;
        for _ in 0..200 {
            match Client::connect(&socket, SECOND).await {
                Err(ClientError::Absent(_) | ClientError::NobodyListens(_)) => tokio::time::sleep(SECOND / 50).await,
                other => {
                    said = Some(other.map(drop));
                    break;
                }
            }
        }
        assert!(matches!(said, Some(Err(ClientError::Impostor(_, SOMEBODY)))), "{said:?}");
    });
}
