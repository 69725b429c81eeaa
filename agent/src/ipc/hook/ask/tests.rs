//! A service that is away, full, slow, gone, somebody else's, or talks nonsense.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread::JoinHandle;

use super::*;
use crate::clock::boottime_ms;
use crate::ipc::hook::{RequestKind, decode_request, refusal_reply};
use crate::policy::judge::Outcome;

fn request() -> Envelope {
    Envelope {
        protocol_version: PROTOCOL_VERSION,
        request_id: "r-1".into(),
        request_kind: RequestKind::HookEvent,
        adapter: "claude-code".into(),
        adapter_version: "0".into(),
        received_at_ms: 0,
        hard_deadline_ms: 0,
        host_version: None,
        invocation_nonce: "0".repeat(32),
        host_payload: serde_json::json!({}),
    }
}

struct Rig {
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        Rig { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("hook.sock")
    }

    fn listen(&self) -> UnixListener {
        let listener = UnixListener::bind(self.path()).unwrap();
        std::fs::set_permissions(self.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
        listener
    }

    /// Serves each connection with `answer`, in turn.
    fn serve(&self, times: usize, answer: impl Fn(&mut UnixStream, Vec<u8>) + Send + 'static) -> JoinHandle<()> {
        let listener = self.listen();
        std::thread::spawn(move || {
            for _ in 0..times {
                let (mut stream, _) = listener.accept().unwrap();
                let frame = frame::read(&mut stream, limits::FRAME_BYTES).unwrap_or_default();
                answer(&mut stream, frame);
            }
        })
    }

    fn ask_for(&self, ms: u64) -> Result<Reply, AskError> {
        ask(&self.path(), &request(), boottime_ms() + ms)
    }
}

fn reply(stream: &mut UnixStream, reply: &Reply) {
    frame::write(stream, &serde_json::to_vec(reply).unwrap(), limits::REPLY_BYTES).unwrap();
}

#[test]
fn an_answer_comes_back() {
    let rig = Rig::new();
    let server = rig.serve(1, |stream, frame| {
        let asked = decode_request(&frame).unwrap();
        reply(stream, &refusal_reply(&asked.request_id, Outcome::NoOverride, "none", ""));
    });
    assert_eq!(rig.ask_for(5000).unwrap().decision, Outcome::NoOverride);
    server.join().unwrap();
}

#[test]
fn nobody_there_is_down_and_nothing_else_is() {
    let rig = Rig::new();
    assert!(matches!(rig.ask_for(500), Err(AskError::Down)));
    assert!(matches!(ask(Path::new("/nonexistent/a/b.sock"), &request(), u64::MAX), Err(AskError::Down)));
    drop(rig.listen());
    assert!(matches!(rig.ask_for(500), Err(AskError::Down)), "a socket that nobody listens on any more");
}

#[test]
fn a_refusal_by_a_sandbox_is_not_down() {
    assert!(matches!(refused(Errno::EPERM), AskError::Blocked));
    assert!(matches!(refused(Errno::EACCES), AskError::Blocked));
    assert!(matches!(refused(Errno::ECONNREFUSED), AskError::Down));
    assert!(matches!(refused(Errno::EMFILE), AskError::Io(_)));
}

#[test]
fn a_service_that_hangs_or_dribbles_is_late() {
    let rig = Rig::new();
    let _holds_it = rig.listen();
    assert!(matches!(rig.ask_for(100), Err(AskError::TimedOut)));

    let rig = Rig::new();
    let server = rig.serve(1, |stream, _| {
        for byte in 0..50u8 {
            if stream.write_all(&[if byte < 3 { 0 } else { 200 }]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    assert!(matches!(rig.ask_for(120), Err(AskError::TimedOut)));
    server.join().unwrap();
}

#[test]
fn a_full_queue_is_full() {
    let rig = Rig::new();
    let _never_accepts = rig.listen();
    nix::sys::socket::listen(&_never_accepts, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    let mut held = Vec::new();
    while let Ok(stream) = connect(&rig.path(), boottime_ms() + 50) {
        held.push(stream);
        assert!(held.len() < 10_000);
    }
    assert!(matches!(rig.ask_for(50), Err(AskError::Full)));
}

#[test]
fn a_service_without_room_says_so() {
    let rig = Rig::new();
    let server = rig.serve(1, |stream, _| reply(stream, &refusal_reply("", Outcome::Deny, QUEUE_FULL, "x")));
    assert!(matches!(rig.ask_for(5000), Err(AskError::Full)));
    server.join().unwrap();
    let rig = Rig::new();
    let server = rig.serve(1, |stream, _| reply(stream, &refusal_reply("", Outcome::Deny, "launched", "not you")));
    assert!(matches!(rig.ask_for(5000), Err(AskError::Refused(why)) if why == "not you"));
    server.join().unwrap();
}

#[test]
fn a_service_that_vanishes_is_asked_once_more() {
    let rig = Rig::new();
    let server = rig.serve(2, |_, _| {});
    assert!(matches!(rig.ask_for(5000), Err(AskError::Vanished)));
    server.join().unwrap();

    // Killed between: the second try finds nobody.
    let rig = Rig::new();
    let server = rig.serve(1, |_, _| {});
    let path = rig.path();
    let server = std::thread::spawn(move || server.join().map(|()| std::fs::remove_file(path)));
    let error = rig.ask_for(5000).unwrap_err();
    assert!(matches!(error, AskError::Down | AskError::Vanished), "{error}");
    server.join().unwrap().unwrap().unwrap();

    let rig = Rig::new();
    let first = std::sync::atomic::AtomicBool::new(true);
    let server = rig.serve(2, move |stream, frame| {
        if !first.swap(false, std::sync::atomic::Ordering::Relaxed) {
            let asked = decode_request(&frame).unwrap();
            reply(stream, &refusal_reply(&asked.request_id, Outcome::Deny, "x", "y"));
        }
    });
    assert_eq!(rig.ask_for(5000).unwrap().reason_code, "x");
    server.join().unwrap();
}

#[test]
fn nonsense_is_a_protocol_fault() {
    type Answer = fn(&mut UnixStream);
    let other = |id: &str, version: u32| {
        let mut one = refusal_reply(id, Outcome::NoOverride, "none", "");
        one.protocol_version = version;
        serde_json::to_vec(&one).unwrap()
    };
    let framed: Vec<(&str, Vec<u8>)> = vec![
        ("not JSON", b"ok".to_vec()),
        ("not a reply", br#"{"protocol_version": 1, "decision": "no_override"}"#.to_vec()),
        (
            "an unknown outcome",
            other("r-1", PROTOCOL_VERSION).iter().map(|b| if *b == b'v' { b'w' } else { *b }).collect(),
        ),
        ("another request", other("r-2", PROTOCOL_VERSION)),
        ("another version", other("r-1", PROTOCOL_VERSION + 1)),
        ("too deep", b"[".repeat(100)),
        ("invalid UTF-8", b"\xff\xfe".to_vec()),
    ];
    for (what, body) in framed {
        let rig = Rig::new();
        let server = rig.serve(1, move |stream, _| frame::write(stream, &body, limits::FRAME_BYTES).unwrap());
        let error = rig.ask_for(5000).unwrap_err();
        assert!(matches!(error, AskError::Protocol(_)), "{what}: {error}");
        server.join().unwrap();
    }
    let raw: [(&str, Answer); 3] = [
        ("half a prefix", |s| s.write_all(&[0, 0]).unwrap()),
        ("half a frame", |s| s.write_all(&[0, 0, 0, 9, b'{']).unwrap()),
        ("a huge frame", |s| s.write_all(&[0xff; 4]).unwrap()),
    ];
    for (what, answer) in raw {
        let rig = Rig::new();
        let server = rig.serve(1, move |stream, _| answer(stream));
        let error = rig.ask_for(5000).unwrap_err();
        assert!(matches!(error, AskError::Protocol(ProtocolFault::Frame(_))), "{what}: {error}");
        server.join().unwrap();
    }
}

#[test]
fn what_is_not_ours_is_not_spoken_to() {
    let rig = Rig::new();
    std::fs::write(rig.path(), "").unwrap();
    assert!(matches!(rig.ask_for(100), Err(AskError::WrongPeer(PeerFault::NoSocket))));
    std::fs::remove_file(rig.path()).unwrap();
    let _listener = rig.listen();
    std::fs::set_permissions(rig.path(), std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(rig.ask_for(100), Err(AskError::WrongPeer(PeerFault::Socket { mode: 0o666, .. }))));
    std::fs::set_permissions(rig.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::set_permissions(rig.dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(rig.ask_for(100), Err(AskError::WrongPeer(PeerFault::Directory { mode: 0o777, .. }))));
}

#[test]
fn a_request_over_a_frame_is_not_sent_in_part() {
    let rig = Rig::new();
    let _listener = rig.listen();
    let mut large = request();
    large.host_payload = serde_json::json!({"x": "y".repeat(limits::FRAME_BYTES)});
    assert!(matches!(ask(&rig.path(), &large, boottime_ms() + 1000), Err(AskError::TooLarge(_))));
}
