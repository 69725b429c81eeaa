//! Rows of the table of escapes that the kernel layer answers: each by what did not come of it.

use std::io::Read as _;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use ringfence_tests::suite::{CaseResult, skip};

use crate::deeds::{Answers, EACCES, EPERM, absent, program};
use crate::guard::repository;
use crate::machine::needs_lsm;
use crate::stand::{Case, DOCKER_PORT, Ran, Stand};

/// This file's cases.
pub fn cases() -> Vec<Case> {
    vec![
        ("N3 N4 N6 N17 B31 a refused address is reached in no way", addresses),
        ("N6 N7 strict has no way into the network", no_network),
        ("N8 N16 B8 odd families and io_uring are not to be had, and the family for routes is", families),
        ("N10 N12 N14 B3 B10 B11 B12 brokers are refused by the socket that listens, and named", brokers),
        ("N12 N13 B14 sockets outside are refused, streams and datagrams, and those inside work", outside),
        ("K1 K2 a process outside is neither signalled nor looked into", processes),
        ("K8 B29 no namespace gives another view", namespaces),
        ("K9 B5 an executable without a name is seen as one, and strict refuses it", anonymous),
        ("K14 B27 whatever a process calls itself, its file is told", false_names),
        ("B18 what runs later is refused outside the tree and recorded in it", deferred),
    ]
}

fn tried(stand: &Stand, fence: &str, deeds: &str) -> anyhow::Result<(Answers, Ran)> {
    let ran = stand.run_behind(fence, &["/usr/bin/perl", "-e", &program(deeds)])?;
    let answers = Answers::new(&ran.printed).with_context(|| format!("{:?} {:#}", ran.code, ran.session))?;
    Ok((answers, ran))
}

fn addresses(stand: &Stand) -> CaseResult {
    let streams = [TcpListener::bind(("127.0.0.1", DOCKER_PORT))?, TcpListener::bind(("::1", DOCKER_PORT))?];
    let datagrams = [UdpSocket::bind(("127.0.0.1", DOCKER_PORT))?, UdpSocket::bind(("::1", DOCKER_PORT))?];
    streams.iter().try_for_each(|one| one.set_nonblocking(true))?;
    datagrams.iter().try_for_each(|one| one.set_nonblocking(true))?;
    let deeds = format!(
        "my $four = inet('127.0.0.1', {DOCKER_PORT}); my $any = inet('0.0.0.0', {DOCKER_PORT}); \
         my $six = pack_sockaddr_in6({DOCKER_PORT}, inet_pton(AF_INET6, '::1')); \
         my $mapped = pack_sockaddr_in6({DOCKER_PORT}, inet_pton(AF_INET6, '::ffff:127.0.0.1')); \
         sub fast {{ my ($family, $to) = @_; my $s; socket($s, $family, SOCK_STREAM, 0) && defined(send($s, 'x', 0x20000000, $to)) }} \
         sub connected {{ my ($family, $to) = @_; \
           my $s; socket($s, $family, SOCK_DGRAM, 0) && connect($s, $to) && defined(syswrite($s, 'x')) }} \
         told 'tcp', connects(AF_INET, $four); told 'tcp-any', connects(AF_INET, $any); \
         told 'tcp6', connects(AF_INET6, $six); told 'tcp-mapped', connects(AF_INET6, $mapped); \
         told 'fast', fast(AF_INET, $four); told 'fast6', fast(AF_INET6, $six); told 'fast-mapped', fast(AF_INET6, $mapped); \
         told 'mptcp', connects(AF_INET, $four, 262); \
         told 'udp', sends(AF_INET, $four); told 'udp6', sends(AF_INET6, $six); told 'udp-mapped', sends(AF_INET6, $mapped); \
         told 'udp-connected', connected(AF_INET, $four); told 'udp6-connected', connected(AF_INET6, $six);"
    );
    // The one with a filter, the other with the kernel programs alone.
    for fence in ["default", "host"] {
        let (answers, _) = tried(stand, fence, &deeds)?;
        answers.all_refused_but(&[]).context(fence)?;
        ensure!(streams.iter().all(|one| one.accept().is_err()), "{fence}: a connection came");
        ensure!(datagrams.iter().all(|one| one.recv(&mut [0; 8]).is_err()), "{fence}: a datagram came");
    }
    let (answers, _) = tried(stand, "host", "unlink 'x'; told 'tcp', connects(AF_INET, inet('127.0.0.1', 9));")?;
    answers.are(&["tcp"], &[111]).context("what is not refused is only not there")
}

fn no_network(stand: &Stand) -> CaseResult {
    let name_server = UdpSocket::bind("127.0.0.1:53")?;
    name_server.set_nonblocking(true)?;
    let deeds = "told 'udp', sends(AF_INET, inet('127.0.0.1', 53)); told 'tcp', connects(AF_INET, inet('127.0.0.1', 53)); \
         my $s; told 'listens', socket($s, AF_INET, SOCK_STREAM, 0) && listen($s, 1);";
    let ran = stand.run_behind("strict", &["/usr/bin/perl", "-e", &program(deeds)])?;
    if ran.code == Some(125) {
        return skip("the fence strict does not run with this kernel's Landlock");
    }
    Answers::new(&ran.printed)?.all_refused_but(&[])?;
    ensure!(name_server.recv(&mut [0; 8]).is_err(), "a datagram came");
    Ok(())
}

fn families(stand: &Stand) -> CaseResult {
    let deeds = "sub of { my ($family, $type, $protocol) = @_; socket(my $s, $family, $type, $protocol) } \
         told 'vsock', of(40, SOCK_STREAM, 0); told 'audit', of(16, SOCK_RAW, 9); told 'alg', of(38, 5, 0); \
         told 'packet', of(17, SOCK_RAW, 0); told 'bluetooth', of(31, SOCK_RAW, 1); told 'io_uring', calls(425, 1, \"\\0\" x 120); told 'route', of(16, SOCK_RAW, 0);";
    let (answers, _) = tried(stand, "default", deeds)?;
    answers.are(&["route"], &[0])?;
    answers.all_refused_but(&["route"])
}

/// A socket of the person's that somebody outside the tree listens on.
fn stand_in(stand: &Stand, path: &Path) -> anyhow::Result<UnixListener> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
        for made in parent.ancestors().take_while(|made| made.starts_with(stand.person.home())) {
            stand.person.own(made)?;
        }
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o777))?;
    Ok(listener)
}

fn brokers(stand: &Stand) -> CaseResult {
    needs_lsm()?;
    let (home, uid) = (stand.person.home(), stand.person.uid());
    let places: [(&str, PathBuf); 5] = [
        ("docker", home.join(".docker/run/docker.sock")),
        ("ssh-agent", home.join(".ssh/agent/own")),
        ("gpg-agent", home.join(".gnupg/S.gpg-agent")),
        ("session bus", PathBuf::from(format!("/run/user/{uid}/bus"))),
        ("tmux", PathBuf::from(format!("/tmp/tmux-{uid}/default"))),
    ];
    let listening: Vec<UnixListener> =
        places.iter().map(|(_, path)| stand_in(stand, path)).collect::<anyhow::Result<_>>()?;
    let datagrams = UnixDatagram::bind(home.join(".gnupg/S.datagrams"))?;
    datagrams.set_nonblocking(true)?;
    std::fs::set_permissions(home.join(".gnupg/S.datagrams"), PermissionsExt::from_mode(0o777))?;
    let link = home.join("innocent");
    std::os::unix::fs::symlink(&places[0].1, &link)?;
    let mut deeds = format!(
        "told 'link', connects(AF_UNIX, path('{}')); told 'datagram', sends(AF_UNIX, path('{}'));",
        link.display(),
        home.join(".gnupg/S.datagrams").display()
    );
    for (name, path) in &places {
        deeds.push_str(&format!("told '{}', connects(AF_UNIX, path('{}'));", name.replace(' ', "-"), path.display()));
    }
    // In `host` every other socket outside is open.
    for fence in ["default", "host"] {
        let (answers, ran) = tried(stand, fence, &deeds)?;
        answers
            .are(&["link", "datagram", "docker", "ssh-agent", "gpg-agent", "session-bus", "tmux"], &[EPERM])
            .context(fence)?;
        ensure!(listening.iter().all(|one| one.accept().is_err()), "{fence}: a connection came");
        ensure!(datagrams.recv(&mut [0; 8]).is_err(), "{fence}: a datagram came");
        let report = ran.session.to_string();
        for (name, _) in &places {
            ensure!(report.contains(&format!("unix {name}")), "{fence}: {name} is not named in {:#}", ran.session);
        }
    }
    for (_, path) in places {
        std::fs::remove_file(path)?;
    }
    std::fs::remove_file(link)?;
    std::fs::remove_dir_all(format!("/run/user/{uid}"))?;
    std::fs::remove_dir_all(format!("/tmp/tmux-{uid}"))?;
    Ok(())
}

fn outside(stand: &Stand) -> CaseResult {
    needs_lsm()?;
    let home = stand.person.home();
    let (path, datagram) = (home.join("listens"), home.join("receives"));
    let stream = stand_in(stand, &path)?;
    let receiver = UnixDatagram::bind(&datagram)?;
    receiver.set_nonblocking(true)?;
    std::fs::set_permissions(&datagram, PermissionsExt::from_mode(0o777))?;
    let name = format!("ringfence-vm-{}", std::process::id());
    let hidden = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    hidden.set_nonblocking(true)?;
    let inside = stand.tree.join("inside.sock");
    let deeds = format!(
        "told 'stream', connects(AF_UNIX, path('{stream}')); told 'datagram', sends(AF_UNIX, path('{datagram}')); \
         socket(my $d, AF_UNIX, SOCK_DGRAM, 0); told 'datagram-connected', connect($d, path('{datagram}')); \
         told 'abstract', connects(AF_UNIX, hidden('{name}')); \
         for (['inside', path('{inside}')], ['inside-abstract', hidden('{name}-in')]) {{ my ($of, $at) = @$_; \
           socket(my $l, AF_UNIX, SOCK_STREAM, 0); bind($l, $at) && listen($l, 1) or die $!; told $of, connects(AF_UNIX, $at) }} \
         socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0); told 'pair', defined(send($a, 'x', 0));",
        stream = path.display(),
        datagram = datagram.display(),
        inside = inside.display(),
    );
    let (answers, _) = tried(stand, "default", &deeds)?;
    answers.are(&["inside", "inside-abstract", "pair"], &[0])?;
    answers.are(&["stream", "datagram", "datagram-connected", "abstract"], &[EPERM])?;
    ensure!(stream.accept().is_err() && hidden.accept().is_err(), "a connection came");
    ensure!(receiver.recv(&mut [0; 8]).is_err(), "a datagram came");
    for path in [path, datagram, inside] {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

fn processes(stand: &Stand) -> CaseResult {
    let mut sibling = stand.person.command("/bin/sleep").arg("120").env("SECRET", "of the sibling").spawn()?;
    let pid = sibling.id();
    let deeds = format!(
        "told 'term', kill(15, {pid}); told 'kill', kill(9, {pid}); told 'asks', kill(0, {pid}); \
         told 'thread', calls(234, {pid}, {pid}, 9); \
         my $fd = syscall(434, {pid}, 0); if ($fd >= 0) {{ told 'pidfd', calls(424, $fd, 9, 0, 0); told 'takes', calls(438, $fd, 0, 0) }} \
         told 'attach', calls(101, 16, {pid}, 0, 0); told 'seize', calls(101, 0x4206, {pid}, 0, 0); \
         told 'mem', reads('/proc/{pid}/mem'); told 'environ', reads('/proc/{pid}/environ'); \
         {{ my $b = \"\\0\" x 8; my $to = pack('QQ', unpack('Q', pack('p', $b)), 8); \
            told 'memory', calls(310, {pid}, $to, 1, $to, 1, 0); }} \
         my $child = fork; if (!$child) {{ sleep 60; exit }} told 'child', kill(9, $child);"
    );
    let tried = tried(stand, "default", &deeds);
    let alive = sibling.try_wait()?.is_none();
    sibling.kill()?;
    sibling.wait()?;
    let (answers, _) = tried?;
    ensure!(alive, "the sibling was ended");
    answers.are(&["child"], &[0])?;
    if crate::machine::is_guest() || crate::machine::is_at_least(6, 12)? {
        answers.all_refused_but(&["child"])?;
    }
    Ok(())
}

fn namespaces(stand: &Stand) -> CaseResult {
    let secret = stand.person.file("outside/secret", "untouched")?;
    let ran = stand.run(&format!(
        "unshare -Ur true && echo made; unshare -Urm sh -c 'mount --bind {}/outside . && echo x > secret && echo mounted'; \
         perl -e 'exit(syscall(56, 0x10000011, 0, 0, 0, 0) == -1 ? 0 : 1)' || echo cloned",
        stand.person.home().display()
    ))?;
    ensure!(ran.printed.is_empty(), "{}", ran.printed);
    ensure!(std::fs::read_to_string(secret)? == "untouched");
    Ok(())
}

fn anonymous(stand: &Stand) -> CaseResult {
    // A memfd, and a file that was deleted.
    let deeds = "sub ended { $? & 127 ? 128 + ($? & 127) : $? >> 8 } $^F = 9; open(my $f, '<', '/usr/bin/true'); binmode $f; my $b; sysread($f, $b, 1 << 22); \
         my $name = 'x'; my $m = syscall(319, $name, 0); if ($m >= 0) { syscall(1, $m, $b, length $b); \
           my $c = fork; if (!$c) { exec \"/proc/self/fd/$m\" or exit 77 } waitpid($c, 0); print 'memfd ', ended(), \"\\n\" } \
         else { print 'memfd 77', \"\\n\" } \
         system('cp /usr/bin/true gone && chmod 755 gone'); open(my $g, '<', 'gone') or die; unlink 'gone'; \
         my $c = fork; if (!$c) { exec '/proc/self/fd/' . fileno($g) or exit 77 } waitpid($c, 0); print 'gone ', ended(), \"\\n\";";
    let (answers, ran) = tried(stand, "default", deeds)?;
    answers.are(&["memfd", "gone"], &[0]).with_context(|| ran.account())?;
    let entry = ran.entry()?;
    let executions = entry["executions"].as_array().context("executions")?;
    let unnamed = executions.iter().filter(|one| one["anonymous"] == true).count();
    ensure!(unnamed == 2, "{unnamed} of 2 are told as without a name: {executions:#?}");
    let ran = stand.run_behind("strict", &["/usr/bin/perl", "-e", &program(deeds)])?;
    if ran.code != Some(125) {
        let answers = Answers::new(&ran.printed)?;
        answers.are(&["memfd", "gone"], &[77, 137]).with_context(|| ran.account())?;
    }
    Ok(())
}

fn false_names(stand: &Stand) -> CaseResult {
    let ran = stand.run_behind(
        "default",
        &["/bin/bash", "-c", "exec -a innocent perl -e '$0 = q(innocent); system(q(/usr/bin/id > /dev/null))'"],
    )?;
    let entry = ran.entry()?;
    let executions = entry["executions"].as_array().context("executions")?;
    for path in ["/usr/bin/perl", "/usr/bin/id"] {
        ensure!(executions.iter().any(|one| one["path"] == path), "no {path} in {executions:#?}");
    }
    Ok(())
}

fn deferred(stand: &Stand) -> CaseResult {
    needs_lsm()?;
    repository(stand)?;
    let home = stand.person.home();
    let outside = [
        ".bashrc",
        ".profile",
        ".gitconfig",
        ".ssh/authorized_keys",
        ".config/systemd/user/own.service",
        ".config/autostart/own.desktop",
        ".local/bin/git",
    ];
    let mut deeds: String =
        outside.iter().map(|name| format!("told '{name}', makes('{}/{name}');", home.display())).collect();
    let tree = stand.tree.display();
    deeds.push_str(&format!(
        "told 'hook', makes('{tree}/.git/hooks/post-checkout', 0755); told 'envrc', makes('{tree}/.envrc'); \
         told 'plain', makes('{tree}/plain'); told 'moved', rename('{tree}/plain', '{tree}/.mcp.json'); \
         told 'linked', symlink('{tree}', '{tree}/.claude');"
    ));
    let (answers, ran) = tried(stand, "default", &deeds)?;
    answers.are(&outside, &[EACCES, EPERM])?;
    answers.are(&["envrc", "plain"], &[0]).with_context(|| ran.account())?;
    answers.are(&["hook", "moved", "linked"], &[EACCES])?;
    outside.iter().try_for_each(|name| absent(&home.join(name)))?;
    [".git/hooks/post-checkout", ".mcp.json"].iter().try_for_each(|name| absent(&stand.tree.join(name)))?;
    ensure!(ran.session.to_string().contains("another program may run what is in it later"), "{:#}", ran.session);
    let mut made = String::new();
    std::fs::File::open(stand.tree.join(".envrc"))?.read_to_string(&mut made)?;
    ensure!(made == "#!/bin/sh\n");
    for name in [".envrc", "plain"] {
        std::fs::remove_file(stand.tree.join(name))?;
    }
    Ok(())
}
