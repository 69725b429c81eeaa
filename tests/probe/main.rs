//! The probe with its real kernel programs: what owners see, what others do not, and that nothing stays.

use std::fs::File;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::unistd::{Uid, seteuid};
use ringfence::ipc::limits::FRAME_BYTES;
use ringfence::ipc::{frame, peer};
use ringfence::probe::client::{Client, ClientError, Stream};
use ringfence::probe::frames;
use ringfence::probe::protocol::{
    Observation, ObservationKind, PROTOCOL_VERSION, Peer, Refusal, Request, Response, Role,
};
use ringfence::process::{self, ProcessId};
use ringfence_tests::person::{Person, needs_root};
use ringfence_tests::running::PINS;
use ringfence_tests::stage::Stage;
use ringfence_tests::suite::{CannotRun, CaseResult, Suite};

/// On an emulated machine, loading the kernel programs takes from half a minute to two.
const STARTING: Duration = Duration::from_secs(240);
const PATIENCE: Duration = Duration::from_secs(30);
/// A peer inside the tree says hello, and prints what it is told.
const HELLO: &str = r#"use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0); connect($s, sockaddr_un($ARGV[0])) or die $!;
    syswrite($s, pack("H*", $ARGV[1])); $/ = undef; print unpack("H*", <$s>)"#;

fn main() -> ExitCode {
    Suite::new("probe")
        .limit(Duration::from_secs(300))
        .case("a tree's owner sees its executions and connections, others see and touch nothing", owners)
        .case("a process inside the tree is refused by the probe", inside)
        .case("marks, sessions and plans outlive a probe that is killed", killed)
        .case(
            "refused system calls are watched from the announcement of a launch until nothing is behind one",
            watching,
        )
        .case("a probe ends, and unloads, with the process that it was tied to", tied)
        .case("what an earlier probe left is unloaded", unloaded)
        .run()
}

/// A probe of this suite: its flags differ from case to case.
struct Probe {
    child: Child,
    stage: Stage,
    pins: PathBuf,
}

impl Probe {
    fn start(flags: &[&str]) -> anyhow::Result<Probe> {
        needs_root("a probe")?;
        let stage = Stage::new()?;
        let name =
            stage.probe_socket().ancestors().nth(2).and_then(Path::file_name).context("a stage has a name")?.to_owned();
        let pins = Path::new(PINS).join(name);
        let child = spawn(&stage, &pins, flags)?;
        let mut probe = Probe { child, stage, pins };
        probe.wait_until_it_serves()?;
        Ok(probe)
    }

    /// After a crash.
    fn start_again(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        self.child = spawn(&self.stage, &self.pins, flags)?;
        self.wait_until_it_serves()
    }

    fn wait_until_it_serves(&mut self) -> anyhow::Result<()> {
        let log = self.log();
        within(STARTING, || {
            if let Some(status) = self.child.try_wait()? {
                let said = std::fs::read_to_string(&log)?;
                if said.contains("holds no kernel programs") {
                    return Err(CannotRun(
                        "the probe was built without kernel programs (cargo xtask build-ebpf)".into(),
                    )
                    .into());
                }
                bail!("the probe ended with {status}: {said}");
            }
            Ok(std::os::unix::net::UnixStream::connect(self.stage.probe_socket()).is_ok())
        })
    }

    fn log(&self) -> PathBuf {
        self.stage.probe_socket().with_file_name("probe.log")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// A connection in the name of a person, or of root.
    async fn client(&self, person: Option<&Person>) -> anyhow::Result<Client> {
        let socket = self.stage.probe_socket();
        let connecting = Client::connect(&socket, PATIENCE);
        let Some(person) = person else { return Ok(connecting.await?) };
        // The kernel notes the effective uid when the socket is connected.
        seteuid(Uid::from_raw(person.uid()))?;
        let connected = connecting.await;
        seteuid(Uid::from_raw(0))?;
        Ok(connected?)
    }

    /// `ringfence-probe --unload` for these pins; what it printed.
    fn unload(&self) -> anyhow::Result<String> {
        let mut command = Command::new(self.stage.program("ringfence-probe"));
        command.arg("--unload").arg("--pin-dir").arg(&self.pins).arg("--socket").arg(self.stage.probe_socket());
        let output = command.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Err(error) = self.unload() {
            eprintln!("unloading: {error:#}");
        }
    }
}

fn spawn(stage: &Stage, pins: &Path, flags: &[&str]) -> anyhow::Result<Child> {
    let log = File::options().create(true).append(true).open(stage.probe_socket().with_file_name("probe.log"))?;
    let mut command = Command::new(stage.program("ringfence-probe"));
    command.arg("--socket").arg(stage.probe_socket()).arg("--pin-dir").arg(pins);
    command
        .arg("--plans-dir")
        .arg(stage.plans_directory())
        .arg("--runtime-root")
        .arg(stage.plans_directory().with_file_name("root"));
    command.arg("--launcher").arg(stage.launcher()).arg("--hook").arg(stage.hook()).args(flags);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Ok(command.spawn()?)
}

fn until(condition: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    within(PATIENCE, condition)
}

fn within(most: Duration, mut condition: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !condition()? {
        ensure!(begun.elapsed() < most, "it did not come to that within {} s", most.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn inside_a_runtime(test: impl Future<Output = CaseResult>) -> CaseResult {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(test)
}

/// A shell of a person that waits for its script on standard input.
struct Shell(Child, ProcessId);

impl Shell {
    fn of(person: &Person) -> anyhow::Result<Shell> {
        let child = person.command("/bin/sh").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let id = process::stat(child.id())?.id;
        until(|| Ok(peer::restrictions(id)?.uids == [person.uid(); 4]))?;
        Ok(Shell(child, id))
    }

    /// Runs a script to its end; what it printed.
    fn run(mut self, script: &str) -> anyhow::Result<String> {
        self.0.stdin.take().context("piped")?.write_all(script.as_bytes())?;
        let mut output = String::new();
        std::io::Read::read_to_string(&mut self.0.stdout.take().context("piped")?, &mut output)?;
        self.0.wait()?;
        Ok(output)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn refusal<T>(result: Result<T, ClientError>) -> anyhow::Result<Refusal> {
    match result {
        Err(ClientError::Refused { kind, .. }) => Ok(kind),
        Err(other) => Err(other.into()),
        Ok(_) => bail!("it was not refused"),
    }
}

/// Everything on the stream up to the end of a process.
async fn seen_until_exit(stream: &mut Stream, of: ProcessId) -> anyhow::Result<Vec<Observation>> {
    let mut seen = Vec::new();
    let ended =
        |seen: &[Observation]| seen.iter().any(|o| o.process == of && matches!(o.kind, ObservationKind::Exit { .. }));
    while !ended(&seen) {
        seen.extend(tokio::time::timeout(PATIENCE, stream.next()).await.context("the stream is silent")??);
    }
    Ok(seen)
}

fn executes(seen: &[Observation], program: &str) -> bool {
    seen.iter()
        .any(|o| matches!(&o.kind, ObservationKind::Exec { filename, .. } if filename.bytes == program.as_bytes()))
}

fn owners() -> CaseResult {
    let (ada, ben) = Person::two()?;
    let probe = Probe::start(&["--unload-on-exit"])?;
    inside_a_runtime(async {
        let mut of_ada = probe.client(Some(&ada)).await?;
        let session = of_ada.open_session().await?;
        let shell = Shell::of(&ada)?;
        ensure!(of_ada.enrol(session, shell.1, Role::Host).await? >= 1);
        let mark = of_ada.mark_of(shell.1).await?.context("it is marked")?;
        ensure!(mark.session == session && mark.role == Role::Host, "{mark:?}");

        let mut of_ben = probe.client(Some(&ben)).await?;
        let mut stream_of_ben = probe.client(Some(&ben)).await?.stream().await?;
        ensure!(of_ben.sessions().await?.is_empty());
        ensure!(refusal(of_ben.counters(session).await)? == Refusal::NotYours);
        ensure!(refusal(of_ben.close_session(session).await)? == Refusal::NotYours);
        ensure!(refusal(of_ben.mark_of(shell.1).await)? == Refusal::NotYours);
        let session_of_ben = of_ben.open_session().await?;
        ensure!(refusal(of_ben.enrol(session_of_ben, shell.1, Role::Host).await)? == Refusal::NotYours);

        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let mut stream_of_ada = probe.client(Some(&ada)).await?.stream().await?;
        let id = shell.1;
        let connecting = format!("use IO::Socket::INET; IO::Socket::INET->new(PeerAddr => \"127.0.0.1:{port}\")");
        shell.run(&format!("/bin/true; setsid /usr/bin/perl -e '{connecting}'"))?;
        let seen = seen_until_exit(&mut stream_of_ada, id).await?;
        ensure!(executes(&seen, "/bin/true") && executes(&seen, "/usr/bin/perl"), "{seen:?}");
        let connects = |o: &&Observation| matches!(o.kind, ObservationKind::Connect { peer: Peer::V4([127, 0, 0, 1], p), .. } if p == port);
        let connect = seen.iter().find(connects).with_context(|| format!("no connect among {seen:?}"))?;
        ensure!(connect.process != id && connect.mark.session == session);
        ensure!(seen.iter().all(|o| o.mark.session == session), "{seen:?}");
        let counters = of_ada.counters(session).await?;
        ensure!(counters.attempted == counters.reported + counters.lost, "{counters:?}");
        ensure!(counters.reported >= seen.len() as u64 && counters.lost == 0, "{counters:?} for {}", seen.len());

        let nothing = tokio::time::timeout(Duration::from_secs(1), stream_of_ben.next()).await;
        ensure!(nothing.is_err(), "somebody else's observations: {nothing:?}");
        ensure!(of_ada.sessions().await? == [session]);
        of_ada.close_session(session).await?;
        Ok(())
    })
}

fn inside() -> CaseResult {
    let ada = Person::new()?;
    let probe = Probe::start(&["--unload-on-exit"])?;
    inside_a_runtime(async {
        let mut client = probe.client(Some(&ada)).await?;
        let session = client.open_session().await?;
        let mut hello = Vec::new();
        let body = frames::encode(&Request::Hello { protocol_version: PROTOCOL_VERSION })?;
        frame::write(&mut hello, &body, FRAME_BYTES)?;
        let hello: String = hello.iter().map(|byte| format!("{byte:02x}")).collect();
        // setsid and a parent that is gone lead nowhere.
        let socket = probe.stage.probe_socket();
        let script = format!("(setsid perl -e '{HELLO}' {} {hello} &) ; sleep 1", socket.display());
        let answer = |printed: String| -> anyhow::Result<Response> {
            let bytes: Result<Vec<u8>, _> =
                (0..printed.len() / 2).map(|at| u8::from_str_radix(&printed[2 * at..2 * at + 2], 16)).collect();
            Ok(frames::decode(&frame::read(&mut bytes?.as_slice(), FRAME_BYTES)?)?)
        };
        let marked = Shell::of(&ada)?;
        client.enrol(session, marked.1, Role::Host).await?;
        // The server must go on while the script runs: it is another process.
        let told = answer(marked.run(&script)?)?;
        ensure!(matches!(told, Response::Refused { kind: Refusal::MarkedPeer, .. }), "{told:?}");
        Ok(())
    })
}

fn killed() -> CaseResult {
    let ada = Person::new()?;
    let mut probe = Probe::start(&[])?;
    inside_a_runtime(async {
        let mut client = probe.client(Some(&ada)).await?;
        let session = client.open_session().await?;
        let shell = Shell::of(&ada)?;
        client.enrol(session, shell.1, Role::Host).await?;
        let name = format!("{}.{}/session.plan", shell.1.pid, shell.1.start);
        let plan = client.publish_plan(name, b"a plan".to_vec()).await?;
        let read = ada.command("cat").arg(&plan).output()?;
        ensure!(read.stdout == b"a plan", "{read:?}");
        let write = ada.command("sh").args(["-c", "echo x >> \"$1\"", "sh"]).arg(&plan).output()?;
        ensure!(!write.status.success() && std::fs::read(&plan)? == b"a plan");

        probe.child.kill()?;
        probe.child.wait()?;
        ensure!(matches!(client.status().await, Err(ClientError::Vanished)));
        let socket = probe.stage.probe_socket();
        ensure!(matches!(Client::connect(&socket, PATIENCE).await, Err(ClientError::NobodyListens(_))));
        let id = shell.1;
        // Seen by the pinned programs while no probe runs.
        shell.run("/bin/true")?;

        probe.start_again(&[])?;
        let mut client = probe.client(Some(&ada)).await?;
        ensure!(client.sessions().await? == [session]);
        ensure!(std::fs::read(&plan).is_err(), "its host has ended while no probe ran");
        let mut stream = probe.client(Some(&ada)).await?.stream().await?;
        let seen = seen_until_exit(&mut stream, id).await?;
        ensure!(executes(&seen, "/bin/true"), "{seen:?}");
        Ok(())
    })
}

fn watching() -> CaseResult {
    let ada = Person::new()?;
    let probe = Probe::start(&["--unload-on-exit", "--refusals-idle", "1"])?;
    inside_a_runtime(async {
        let mut client = probe.client(Some(&ada)).await?;
        let session = client.open_session().await?;
        ensure!(!client.status().await?.syscall_refusals_observed);
        let begun = Instant::now();
        client.expect_launch(session).await?;
        eprintln!("attached after {:?}", begun.elapsed());
        ensure!(client.status().await?.syscall_refusals_observed);
        let shell = Shell::of(&ada)?;
        client.enrol(session, shell.1, Role::Launched).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        ensure!(client.status().await?.syscall_refusals_observed, "a launch lives");
        let id = shell.1;
        shell.run("cat /etc/shadow 2>/dev/null; kill -0 1 2>/dev/null; true")?;
        let mut stream = probe.client(Some(&ada)).await?.stream().await?;
        let seen = seen_until_exit(&mut stream, id).await?;
        let refused = |o: &Observation| matches!(&o.kind, ObservationKind::SyscallRefused { path, .. } if path.bytes == b"/etc/shadow");
        ensure!(seen.iter().any(refused), "{seen:?}");
        let begun = Instant::now();
        while client.status().await?.syscall_refusals_observed {
            ensure!(begun.elapsed() < PATIENCE, "still watched");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    })
}

fn tied() -> CaseResult {
    let mut tied_to = Command::new("sleep").arg("600").spawn()?;
    let probe = Probe::start(&["--exit-with", &tied_to.id().to_string()]);
    let checked = probe.and_then(|mut probe| {
        ensure!(probe.pins.exists(), "nothing is pinned: {}", probe.said());
        tied_to.kill()?;
        tied_to.wait()?;
        until(|| Ok(probe.child.try_wait()?.is_some()))?;
        ensure!(!probe.pins.exists() && !probe.stage.probe_socket().exists(), "{}", probe.said());
        Ok(())
    });
    let _ = tied_to.kill();
    tied_to.wait()?;
    checked
}

fn unloaded() -> CaseResult {
    let mut probe = Probe::start(&[])?;
    // One that runs is stopped first; its pins stay, by its own doing.
    let printed = probe.unload()?;
    ensure!(printed.contains("stopped the probe") && printed.contains("links/rf_exec"), "{printed}");
    ensure!(probe.child.try_wait()?.is_some() && !probe.pins.exists());
    ensure!(probe.unload()?.contains("nothing was pinned"));
    Ok(())
}
