//! Sockets: families, high bits, fast open, scopes.

use std::io::Read as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::ensure;
use ringfence_tests::suite::{CaseResult, Suite};

use crate::scene::{Scene, text};

const SOCKET: i64 = libc_socket();
const EPERM: i32 = 1;

const fn libc_socket() -> i64 {
    if cfg!(target_arch = "x86_64") { 41 } else { 198 }
}

/// Adds this file's cases.
pub fn cases(suite: Suite) -> Suite {
    suite
        .case("N4 N8 only the families that builds use can be had", families)
        .case("N9 high bits change no verdict", high_bits)
        .case("N3 TCP fast open is refused", fast_open)
        .case("N13 an abstract socket outside is refused, one inside works", abstract_sockets)
        .case("N15 socket pairs and sending without an address work", pairs)
        .case("strict has no network and no unix sockets", strict)
}

fn families() -> CaseResult {
    let scene = Scene::fenced("default")?;
    for (family, kind, protocol, expected) in [
        ("1", "1", "0", 0),
        ("2", "1", "0", 0),
        ("2", "2", "0", 0),
        ("16", "3", "0", 0),
        ("16", "3", "9", EPERM),
        ("17", "3", "0", EPERM),
        ("38", "5", "0", EPERM),
        ("40", "1", "0", EPERM),
        ("2", "1", "262", EPERM),
    ] {
        let got = scene.call(SOCKET, &[family, kind, protocol])?;
        ensure!(got == expected, "socket({family}, {kind}, {protocol}) gave {got} instead of {expected}");
    }
    Ok(())
}

fn high_bits() -> CaseResult {
    let scene = Scene::fenced("default")?;
    for (family, expected) in [("1 | (1 << 32)", 0), ("40 | (1 << 32)", EPERM), ("17 | (0xffffffff << 32)", EPERM)] {
        let got = scene.call(SOCKET, &[family, "1", "0"])?;
        ensure!(got == expected, "socket({family}) gave {got} instead of {expected}");
    }
    let strict = Scene::fenced("strict")?;
    ensure!(strict.call(SOCKET, &["1 | (1 << 32)", "1", "0"])? == EPERM);
    ensure!(strict.call(SOCKET, &["2 | (1 << 32)", "1", "0"])? == EPERM);
    Ok(())
}

fn fast_open() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let server = std::net::TcpListener::bind("127.0.0.1:0")?;
    server.set_nonblocking(true)?;
    let port = server.local_addr()?.port();
    let output = scene.perl(&format!(
        "use Socket; socket(my $s, PF_INET, SOCK_STREAM, 0) or die; \
         send($s, 'x', 0x20000000, pack_sockaddr_in({port}, inet_aton('127.0.0.1'))) or print $! + 0;"
    ))?;
    ensure!(text(&output) == "1", "{output:?}");
    ensure!(server.accept().is_err(), "a connection came");
    Ok(())
}

fn abstract_sockets() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let name = format!("ringfence-escapes-{}", std::process::id());
    let outside = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    outside.set_nonblocking(true)?;
    let output = scene.perl(&format!(
        "use Socket; socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die; \
         connect($s, pack('Sa*', 1, \"\\0{name}\")) or print 'outside ', $! + 0; \
         socket(my $l, PF_UNIX, SOCK_STREAM, 0); bind($l, pack('Sa*', 1, \"\\0{name}-in\")) or die; listen($l, 1); \
         connect($s, pack('Sa*', 1, \"\\0{name}-in\")) and print ' inside';"
    ))?;
    ensure!(text(&output) == "outside 1 inside", "{output:?}");
    ensure!(outside.accept().is_err(), "a connection came");
    Ok(())
}

fn pairs() -> CaseResult {
    let scene = Scene::fenced("strict")?;
    let output = scene.perl(
        "use Socket; socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0) or die; send($a, 'through', 0) or die; \
         recv($b, my $t, 16, 0); print $t;",
    )?;
    ensure!(text(&output) == "through", "{output:?}");
    Ok(())
}

fn strict() -> CaseResult {
    let scene = Scene::fenced("strict")?;
    let server = std::net::TcpListener::bind("127.0.0.1:0")?;
    server.set_nonblocking(true)?;
    let port = server.local_addr()?.port();
    let output = scene.run(&format!("echo x > /dev/tcp/127.0.0.1/{port}"))?;
    ensure!(!output.status.success());
    ensure!(server.accept().is_err(), "a connection came");
    let open = Scene::fenced("default")?;
    let output = open.run(&format!("echo x > /dev/tcp/127.0.0.1/{port}"))?;
    ensure!(output.status.success(), "{output:?}");
    server.set_nonblocking(false)?;
    let mut said = String::new();
    server.accept()?.0.read_to_string(&mut said)?;
    ensure!(said == "x\n");
    Ok(())
}
