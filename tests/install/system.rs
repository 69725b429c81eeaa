//! Units, directories, accounts, the polkit action: read by the very tools that read them on a machine.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use ringfence_tests::person::needs_root;
use ringfence_tests::stage::workspace;
use ringfence_tests::suite::CaseResult;

use crate::{deploy, read, said, tool};

/// Where units say that the programs are.
const PROGRAMS: &str = "/usr/lib/ringfence/";

pub(crate) fn user_units() -> CaseResult {
    verify("systemd/user", &["--user"])
}

pub(crate) fn probe_unit() -> CaseResult {
    verify("systemd/system", &[])
}

/// `systemd-analyze verify` on copies whose programs are stand-ins: it looks for each program. It ends with 0 even when it
/// did not understand a line, so nothing may be said either.
fn verify(units: &str, flags: &[&str]) -> CaseResult {
    let room = tempfile::tempdir()?;
    let programs = room.path().join("programs");
    let stand_in = |name: &str| {
        let path = programs.join(name);
        fs::write(&path, "#!/bin/sh\n").and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
    };
    fs::create_dir(&programs)?;
    stand_in("ringfenced")?;
    stand_in("ringfence-probe")?;
    let mut command = Command::new("systemd-analyze");
    command.arg("verify").args(flags).arg("--man=no").env("XDG_RUNTIME_DIR", room.path()).env("HOME", room.path());
    for entry in fs::read_dir(deploy(units))? {
        let entry = entry?;
        let text = read(entry.path())?.replace(PROGRAMS, &format!("{}/", programs.display()));
        let copy = room.path().join(entry.file_name());
        fs::write(&copy, text)?;
        command.arg(copy);
    }
    let output = tool(&mut command, "systemd")?;
    ensure!(output.status.success() && output.stderr.is_empty() && output.stdout.is_empty(), "{}", said(&output));
    Ok(())
}

/// The settings of a unit, the last one where a key is given twice (which the units do for filters alone).
pub(crate) fn settings(unit: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let text = read(deploy(unit))?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    Ok(lines.filter_map(|line| line.split_once('=')).map(|(key, value)| (key.into(), value.into())).collect())
}

pub(crate) fn sockets() -> CaseResult {
    for (unit, name) in [("ringfenced.socket", "hook.sock"), ("ringfenced-control.socket", "control.sock")] {
        let settings = settings(&format!("systemd/user/{unit}"))?;
        let is = |key: &str, value: &str| settings.get(key).is_some_and(|found| found == value);
        ensure!(is("FileDescriptorName", name), "{unit}: the service finds its sockets by name");
        ensure!(is("ListenStream", &format!("%t/ringfence/{name}")), "{unit}: not where hook and launcher look");
        ensure!(is("SocketMode", "0600") && is("DirectoryMode", "0700"), "{unit}: others could connect");
        ensure!(is("Service", "ringfenced.service"), "{unit}: starts another service");
    }
    let service = settings("systemd/user/ringfenced.service")?;
    ensure!(service.get("Type").is_some_and(|kind| kind == "notify"), "the service says when it is ready");
    ensure!(service.contains_key("WatchdogSec"), "a service that hangs is to be noticed");
    Ok(())
}

pub(crate) fn directories() -> CaseResult {
    needs_root("making system directories in a root of its own")?;
    let room = tempfile::tempdir()?;
    let etc = room.path().join("etc");
    fs::create_dir(&etc)?;
    fs::write(etc.join("passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    fs::write(etc.join("group"), "root:x:0:\n")?;
    let root = format!("--root={}", room.path().display());
    let users = tool(Command::new("systemd-sysusers").arg(&root).arg(deploy("sysusers.d/ringfence.conf")), "systemd")?;
    ensure!(users.status.success(), "{}", said(&users));
    let groups = read(etc.join("group"))?;
    let group = groups.lines().find_map(|line| line.strip_prefix("ringfence:x:")).context("no group was made")?;
    let gid: u32 = group.trim_end_matches(':').parse()?;
    let made = tool(
        Command::new("systemd-tmpfiles").arg(&root).arg("--create").arg(deploy("tmpfiles.d/ringfence.conf")),
        "systemd",
    )?;
    ensure!(made.status.success() && made.stderr.is_empty(), "{}", said(&made));
    let expected = [("", 0o755, 0), ("u", 0o755, 0), ("plans", 0o751, gid), ("prometheus", 0o1777, 0)];
    for (below, mode, group) in expected {
        let path = room.path().join("run/ringfence").join(below);
        let meta = fs::metadata(&path).with_context(|| path.display().to_string())?;
        ensure!(meta.mode() & 0o7777 == mode, "{}: mode {:o}", path.display(), meta.mode());
        ensure!((meta.uid(), meta.gid()) == (0, group), "{}: {}:{}", path.display(), meta.uid(), meta.gid());
    }
    Ok(())
}

pub(crate) fn polkit() -> CaseResult {
    let text = read(deploy("polkit/org.ringfence.change.policy"))?;
    well_formed(&text)?;
    ensure!(text.contains("<action id=\"org.ringfence.change\">"), "the service asks for org.ringfence.change");
    for who in ["any", "inactive", "active"] {
        let line = format!("<allow_{who}>auth_self</allow_{who}>");
        ensure!(text.contains(&line), "{line} is missing: a kept or absent question would let an agent change things");
    }
    Ok(())
}

/// Every element that is opened is closed, in order: what an XML reader stumbles over first.
fn well_formed(text: &str) -> CaseResult {
    let mut open = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        let end = match rest[start..].strip_prefix("<!--") {
            Some(comment) => start + 4 + comment.find("-->").context("a comment does not end")? + 2,
            None => start + rest[start..].find('>').context("a tag does not end")?,
        };
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        match tag.as_bytes().first() {
            Some(b'?' | b'!') => {}
            Some(b'/') => ensure!(open.pop() == Some(&tag[1..]), "</{}> closes something else", &tag[1..]),
            Some(_) if tag.ends_with('/') => {}
            Some(_) => open.push(tag.split_ascii_whitespace().next().unwrap_or_default()),
            None => anyhow::bail!("an empty tag"),
        }
    }
    ensure!(open.is_empty(), "not closed: {open:?}");
    Ok(())
}

pub(crate) fn licences() -> CaseResult {
    for (file, text) in [("LICENSE-MIT", "MIT License"), ("LICENSE-APACHE", "Apache License")] {
        ensure!(read(workspace().join(Path::new(file)))?.contains(text), "{file}");
    }
    Ok(())
}
