//! Nothing of a tree touches Ringfence or the hosts' hook settings, wherever in the tree it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use ringfence_tests::suite::CaseResult;
use serde_json::{Value, json};

use crate::deeds::{Answers, EPERM, absent, program};
use crate::machine::needs_lsm;
use crate::stand::{Case, Stand};

/// A library that every Perl and git can be given once more.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libm.so.6";

/// This file's cases.
pub fn cases() -> Vec<Case> {
    vec![
        ("the launcher's notice reaches the service, and the command's own does not", notice),
        ("B36 a launched command touches nothing of Ringfence's", launched),
        (
            "B36 an unwrapped command and a project's hook touch nothing of Ringfence's, the host its own settings",
            unwrapped,
        ),
        ("B36 git with a preloaded library is no exception", preloaded),
    ]
}

/// The working tree as a repository, once.
pub fn repository(stand: &Stand) -> CaseResult {
    if !stand.tree.join(".git").exists() {
        let made = stand.person.command("git").args(["init", "-q", "."]).current_dir(&stand.tree).output()?;
        ensure!(made.status.success(), "{made:?}");
        // What git's template may have put there is not what is looked for.
        let hooks = stand.tree.join(".git/hooks");
        let _ = fs::remove_dir_all(&hooks);
    }
    Ok(())
}

/// Everything that is protected and can be made or changed, by a name for the answers.
fn files(stand: &Stand) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let home = stand.person.home();
    let state = stand.stage.state_directory(&stand.person)?;
    let bin = stand.stage.program("ringfence").parent().context("a directory")?.to_owned();
    let mut files: Vec<PathBuf> = [
        ".config/ringfence/policy.toml",
        ".config/systemd/user/ringfenced.service",
        ".config/systemd/user/ringfenced.service.d/own.conf",
        ".claude/settings.json",
        ".claude/settings.local.json",
        ".claude/hooks/own.sh",
        ".codex/hooks.json",
        ".bashrc",
    ]
    .map(|name| home.join(name))
    .into();
    files.extend(
        [".claude/settings.json", ".claude/settings.local.json", ".mcp.json", ".codex/config.toml"]
            .map(|name| stand.tree.join(name)),
    );
    files.extend(["plans/own", "ringfence.db", "passphrase"].map(|name| state.join(name)));
    files.push(stand.stage.plans_directory().join(stand.person.uid().to_string()).join("own"));
    files.extend(
        ["ringfence", "ringfence-hook", "ringfence-exec", "ringfenced", "ringfence-probe"].map(|name| bin.join(name)),
    );
    files.extend(
        ["/etc/systemd/system/ringfence-probe.service", "/etc/ringfence/policy.toml", "/sys/fs/bpf/ringfence/own"]
            .map(PathBuf::from),
    );
    Ok(files.into_iter().enumerate().map(|(n, path)| (format!("file{n}"), path)).collect())
}

/// What each of those holds now, `None` where it is not there.
fn held(files: &[(String, PathBuf)]) -> Vec<Option<Vec<u8>>> {
    // The database is written by the service all the while: it is enough that it is there.
    let content =
        |path: &Path| if path.ends_with("ringfence.db") { Vec::new() } else { fs::read(path).unwrap_or_default() };
    let one = |path: &Path| fs::symlink_metadata(path).ok().map(|_| content(path));
    files.iter().map(|(_, path)| one(path)).collect()
}

/// Deeds against Ringfence, with these files.
fn deeds(stand: &Stand, files: &[(String, PathBuf)]) -> anyhow::Result<String> {
    let runtime = stand.stage.runtime_directory(&stand.person)?;
    let (service, probe) = (stand.service.pid(), stand.probe.pid());
    let mut deeds = String::new();
    for (name, socket) in [
        ("control", runtime.join("control.sock")),
        ("hook", runtime.join("hook.sock")),
        ("probe", stand.stage.probe_socket()),
    ] {
        let socket = socket.display();
        deeds.push_str(&format!("told '{name}', connects(AF_UNIX, path('{socket}'));\n"));
        deeds.push_str(&format!(
            "told '{name}-gone', unlink('{socket}'); told '{name}-moved', rename('{socket}', '{socket}.x');\n"
        ));
    }
    for (name, pid) in [("service", service), ("probe", probe)] {
        deeds.push_str(&signals(name, &pid.to_string()));
        deeds.push_str(&format!(
            r#"told '{name}-ptrace', calls(101, 16, {pid}, 0, 0); told '{name}-seize', calls(101, 0x4206, {pid}, 0, 0);
            {{ my $b = "\0" x 8; my $to = pack('QQ', unpack('Q', pack('p', $b)), 8); my $from = pack('QQ', 0x400000, 8);
            told '{name}-read', calls(310, {pid}, $to, 1, $from, 1, 0); }}
            told '{name}-mem', reads('/proc/{pid}/mem'); told '{name}-environ', reads('/proc/{pid}/environ');
            "#
        ));
    }
    // By a file: the owner that a pipe signals. Nothing tells the caller; that the service lives does.
    deeds.push_str(&format!(
        "if (pipe(my $r, my $w)) {{ fcntl($r, F_SETOWN, {service}); fcntl($r, 10, 9); \
         fcntl($r, F_SETFL, fcntl($r, F_GETFL, 0) | 020000); syswrite($w, 'x'); }}\n"
    ));
    for (name, path) in files {
        let path = path.display();
        deeds.push_str(&format!("told '{name}', makes('{path}');\n"));
    }
    // Where only programs are refused: with their parents, as they would be made.
    let hook = stand.tree.join(".git/hooks/pre-commit");
    deeds.push_str(&format!("told 'git-hook', makes('{}', 0755);\n", hook.display()));
    Ok(deeds)
}

fn signals(name: &str, pid: &str) -> String {
    let one = |(word, signal): (&str, u8)| format!("told '{name}-{word}', kill({signal}, {pid});\n");
    [("ZERO", 0), ("TERM", 15), ("KILL", 9)].map(one).concat()
}

/// Whoever spoke: nothing came of it.
fn untouched(stand: &Stand, files: &[(String, PathBuf)], before: &[Option<Vec<u8>>]) -> CaseResult {
    for ((_, path), (before, now)) in files.iter().zip(before.iter().zip(held(files))) {
        ensure!(*before == now, "{} was touched", path.display());
    }
    absent(&stand.tree.join(".git/hooks/pre-commit"))?;
    for name in [".codex", ".claude"] {
        let left = fs::read_dir(stand.tree.join(name)).into_iter().flatten().flatten().count();
        ensure!(left == 0, "something is left in {name}");
    }
    let status = stand.person.command("git").args(["status", "--porcelain"]).current_dir(&stand.tree).output()?;
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    ensure!(status.status.success() && !said.contains(".claude") && !said.contains(".mcp"), "{said}");
    // Both live, and answer.
    stand.service.ask(&stand.person, &["status", "--json"])?;
    Ok(())
}

fn notice(stand: &Stand) -> CaseResult {
    let ran = stand.run("/usr/bin/true")?;
    let entry = ran.entry()?;
    ensure!(entry["launch"]["receipt"]["layers"].is_array(), "no notice came: {entry:#}");
    Ok(())
}

fn launched(stand: &Stand) -> CaseResult {
    needs_lsm()?;
    repository(stand)?;
    let files = files(stand)?;
    let before = held(&files);
    let mut deeds = deeds(stand, &files)?;
    deeds.push_str(&signals("cli", "getppid()"));
    let hook = stand.stage.hook();
    deeds.push_str(&forged("launched", &hook));
    deeds.push_str("system('sleep 30 & kill $!') == 0 or die;\n");
    let ran = stand.run_behind("default", &["/usr/bin/perl", "-e", &program(&deeds)])?;
    let answers = Answers::new(&ran.printed)?;
    answers.all_refused_but(&[])?;
    answers.are(&["control", "hook", "probe", "service-TERM", "service-KILL", "service-ZERO", "cli-KILL"], &[EPERM])?;
    untouched(stand, &files, &before)?;
    let report = ran.session.to_string();
    ensure!(report.contains("against Ringfence itself"), "no finding: {:#}", ran.session);
    ensure!(!report.contains("forged-launched"), "a forged event was taken: {report}");
    Ok(())
}

/// A hook event that no host had, told by the installed hook itself.
fn forged(who: &str, hook: &Path) -> String {
    let event = json!({
        "session_id": format!("forged-{who}"), "transcript_path": "/nonexistent", "cwd": "/", "hook_event_name": "SessionStart",
        "source": "startup",
    });
    format!(
        "if (open(my $h, '|-', '{}', 'claude-code', 'SessionStart')) {{ print $h '{event}'; close $h }}\n",
        hook.display()
    )
}

/// The host's own process is Perl here: it tells a session by the real hook, starts what a host starts, and ends it.
fn host(stand: &Stand, deeds: &str) -> anyhow::Result<(String, Value)> {
    let session = fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned();
    let event = |name: &str, more: Value| {
        let mut event = json!({
            "session_id": session, "transcript_path": "/nonexistent", "cwd": stand.tree, "hook_event_name": name,
        });
        event.as_object_mut().into_iter().for_each(|event| event.extend(more.as_object().cloned().unwrap_or_default()));
        event.to_string()
    };
    let start = event("SessionStart", json!({"source": "startup"}));
    let end = event("SessionEnd", json!({"reason": "other"}));
    let hook = stand.stage.hook();
    let script = format!(
        "sub hook {{ my ($name, $json) = @_; pipe(my $r, my $w) or die; my $pid = fork; if (!$pid) {{ close $w; \
         open(STDIN, '<&', $r); exec '{hook}', 'claude-code', $name; exit 9 }} close $r; print $w $json; close $w; \
         waitpid($pid, 0); $? == 0 or print STDERR \"$name $?\\n\" }}\n\
         sub starts {{ my $pid = fork; if (!$pid) {{ exec @_; exit 9 }} waitpid($pid, 0); $? >> 8 }}\n\
         hook('SessionStart', '{start}');\n{deeds}\nhook('SessionEnd', '{end}');\n",
        hook = hook.display()
    );
    let mut command: Command = stand.person.command("/usr/bin/perl");
    let output = command
        .env("LC_ALL", "C")
        .args(["-e", &program(&script)])
        .current_dir(&stand.tree)
        .stdin(Stdio::null())
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success() && errors.is_empty(), "{output:?}");
    let report: Value =
        serde_json::from_str(&stand.service.ask(&stand.person, &["report", "--session", &session, "--json"])?)?;
    Ok((String::from_utf8(output.stdout)?, report))
}

fn unwrapped(stand: &Stand) -> CaseResult {
    needs_lsm()?;
    repository(stand)?;
    let files = files(stand)?;
    let before = held(&files);
    let mut tried = deeds(stand, &files)?;
    tried.push_str(&forged("internal", &stand.stage.hook()));
    let tried = stand.person.file("deeds.pl", program(&tried))?;
    // A hook of the project's in exec form: a program of its own, started by the host with the event as its input.
    let own_hook = stand.person.file("project/hook.pl", format!("#!/usr/bin/perl\n{}", fs::read_to_string(&tried)?))?;
    fs::set_permissions(&own_hook, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let (service, control) = (stand.service.pid(), stand.stage.runtime_directory(&stand.person)?.join("control.sock"));
    let (mine, of_tree) = (stand.person.home().join(".claude/settings.json"), stand.tree.join(".claude/settings.json"));
    let deeds = format!(
        "starts('/usr/bin/perl', '{tried}'); print \"--\\n\";\n\
         starts('{own_hook}'); print \"--\\n\";\n\
         told 'own-settings', makes('{mine}'); told 'own-project-settings', makes('{of_tree}');\n\
         {{ my $child = fork; if (!$child) {{ exec '/bin/sleep', '30' }} told 'own-child', kill('TERM', $child); waitpid($child, 0); }}\n\
         told 'host-control', connects(AF_UNIX, path('{control}')); told 'host-service', kill('KILL', {service});\n",
        tried = tried.display(),
        own_hook = own_hook.display(),
        mine = mine.display(),
        of_tree = of_tree.display(),
        control = control.display(),
    );
    let (printed, report) = host(stand, &deeds)?;
    let parts: Vec<&str> = printed.split("--\n").collect();
    let [command, hook, own] = parts[..] else { anyhow::bail!("{printed}") };
    for part in [command, hook] {
        let answers = Answers::new(part)?;
        answers.are(&["control", "hook", "probe", "service-TERM", "service-KILL", "service-ZERO"], &[EPERM])?;
        // The host's fence lets what starts with it change what later runs in the person's name; it is recorded.
        let bashrc = files.iter().find(|(_, path)| path.ends_with(".bashrc")).map_or("", |(name, _)| name);
        answers.all_refused_but(&[bashrc])?;
    }
    let own = Answers::new(own)?;
    own.are(&["own-settings", "own-project-settings", "own-child"], &[0])?;
    own.are(&["host-control", "host-service"], &[EPERM])?;
    for path in [&mine, &of_tree] {
        ensure!(fs::read(path)? == b"#!/bin/sh\n", "{}", path.display());
        fs::remove_file(path)?;
    }
    fs::remove_file(own_hook)?;
    fs::remove_file(stand.person.home().join(".bashrc"))?;
    untouched(stand, &files, &before)?;
    let report = report.to_string();
    ensure!(report.contains("against Ringfence itself"), "no finding: {report}");
    ensure!(!report.contains("forged-internal"), "a forged event was taken: {report}");
    Ok(())
}

fn preloaded(stand: &Stand) -> CaseResult {
    needs_lsm()?;
    repository(stand)?;
    let library = stand.person.file("project/own.so", fs::read(LIBRARY).context(LIBRARY)?)?;
    let runtime = stand.stage.runtime_directory(&stand.person)?;
    let setup = "set -e; g='git -c user.name=a -c user.email=a@b'; \
         blob=$(echo '{}' | $g hash-object -w --stdin); \
         $g update-index --add --cacheinfo 100644,$blob,.claude/settings.json; $g commit -q -m settings; ";
    let checkout = "git checkout -q -f HEAD -- .claude/settings.json";
    let ran = stand.run(&format!("{setup} LD_PRELOAD={} {checkout} || echo refused", library.display()))?;
    ensure!(ran.printed == "refused\n", "{} {:#}", ran.printed, ran.session);
    absent(&stand.tree.join(".claude/settings.json"))?;
    // The same by git alone: it is what checks out.
    let ran = stand.run(checkout)?;
    ensure!(ran.code == Some(0), "{:#}", ran.session);
    ensure!(fs::read_to_string(stand.tree.join(".claude/settings.json"))? == "{}\n");
    // Git speaks to a unix socket itself, where it is told to trace.
    for name in ["control.sock", "hook.sock"] {
        let socket = runtime.join(name);
        let ran = stand.run(&format!(
            "GIT_TRACE2_DST_DEBUG=1 GIT_TRACE2_EVENT=af_unix:stream:{} LD_PRELOAD={} git version 2>&1",
            socket.display(),
            library.display()
        ))?;
        ensure!(ran.printed.contains("Operation not permitted"), "{name}: {} {:#}", ran.printed, ran.session);
        ensure!(ran.session.to_string().contains("against Ringfence itself"), "{:#}", ran.session);
    }
    stand.run("git rm -q --cached .claude/settings.json")?;
    fs::remove_file(library)?;
    fs::remove_file(stand.tree.join(".claude/settings.json"))?;
    Ok(())
}
