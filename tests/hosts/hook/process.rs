//! What the hook is: two processes, and what reaches them besides their input.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringfence::host::claude_code::settings::settings;
use ringfence::policy::judge::Outcome;
use ringfence_tests::suite::CaseResult;
use serde_json::{Value, json};

use super::services::reply_to;
use super::{Rig, bash, finish, sample};

pub(super) fn guard() -> CaseResult {
    let rig = Rig::new()?;
    let call = bash("true")?.to_string();
    let prompt = sample("UserPromptSubmit")?.to_string();
    for fault in ["panic", "abort", "overflow", "exit", "hang"] {
        rig.trial(json!({"fault": fault, "guard_ms": 400}))?;
        for words in [&["claude-code", "PreToolUse"][..], &["claude-code"]] {
            let said = rig.hook(words, call.as_bytes())?;
            ensure!(said.exit == Some(2) && said.stdout.is_empty(), "{fault}: {said:?}");
            ensure!(said.stderr.contains("Ringfence denied this [hook_failed]"), "{fault}: {said:?}");
            // The standard library itself speaks when a stack overflows; nothing else may.
            ensure!(fault == "overflow" || said.denied(), "{fault}: {said:?}");
            ensure!(said.took < Duration::from_secs(3), "{fault}: {said:?}");
        }
        let said = rig.hook(&["claude-code", "UserPromptSubmit"], prompt.as_bytes())?;
        ensure!(said.exit == Some(0) && said.stdout.is_empty() && !said.stderr.is_empty(), "{fault}: {said:?}");
    }
    Ok(())
}

/// The only child of `pid`, once there is one.
fn child_of(pid: u32) -> anyhow::Result<i32> {
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        if let Some(child) = children.split_whitespace().next() {
            return Ok(child.parse()?);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("the hook has no second process")
}

pub(super) fn signals() -> CaseResult {
    let rig = Rig::new()?;
    rig.trial(json!({"fault": "hang"}))?;
    let start = || rig.command(&["claude-code", "PreToolUse"]).spawn();
    for signal in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGABRT] {
        let hook = start()?;
        let child = child_of(hook.id())?;
        kill(Pid::from_raw(child), signal)?;
        let said = finish(hook, Some(b""))?;
        ensure!(said.denied(), "child, {signal}: {said:?}");
    }
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let hook = start()?;
        let child = child_of(hook.id())?;
        kill(Pid::from_raw(hook.id() as i32), signal)?;
        let said = finish(hook, Some(b""))?;
        ensure!(said.denied(), "guard, {signal}: {said:?}");
        ensure!(!Path::new(&format!("/proc/{child}")).exists(), "{signal}: the child lives on");
    }
    // A guard that is killed takes the child with it: no answer comes from a hook that nobody guards.
    let hook = start()?;
    let child = child_of(hook.id())?;
    kill(Pid::from_raw(hook.id() as i32), Signal::SIGKILL)?;
    finish(hook, Some(b""))?;
    let until = Instant::now() + Duration::from_secs(5);
    while Path::new(&format!("/proc/{child}")).exists() {
        ensure!(Instant::now() < until, "the child lives on");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

pub(super) fn environment() -> CaseResult {
    let rig = Rig::new()?;
    let (tell, told) = std::sync::mpsc::channel();
    rig.serve(move |stream, frame| {
        let _ = tell.send(());
        reply_to(stream, frame, Outcome::Deny, |_| {});
    })?;
    let trap = rig.person.directory("trap/run")?;
    let trap = trap.parent().context("parent")?.display().to_string();
    let names = [
        "LD_PRELOAD",
        "LD_AUDIT",
        "LD_LIBRARY_PATH",
        "LD_DEBUG",
        "LD_BIND_NOW",
        "LD_PROFILE",
        "PATH",
        "BASH_ENV",
        "ENV",
        "HOME",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
        "XDG_DATA_HOME",
        "RINGFENCE_RUNTIME_DIR",
        "RINGFENCE_SOCKET",
        "RINGFENCE_MODE",
        "RINGFENCE_PAUSE",
        "RINGFENCE_LEVEL",
        "TMPDIR",
        "GCONV_PATH",
        "LOCPATH",
        "NODE_OPTIONS",
        "RUST_BACKTRACE",
        "RUST_MIN_STACK",
        "RUST_LOG",
        "USER",
        "LOGNAME",
    ];
    let input = bash("true")?.to_string();
    let usual = rig.hook(&["claude-code", "PreToolUse"], input.as_bytes())?;
    ensure!(usual.denied(), "{usual:?}");
    let values = [trap.clone(), format!("{trap}/no.so"), "1".into(), "99999999999999999999".into(), String::new()];
    let mut asked = 1;
    for value in values {
        let mut hook = rig.command(&["claude-code", "PreToolUse"]);
        hook.envs(names.iter().map(|name| (name, &value)));
        let said = finish(hook.spawn()?, Some(input.as_bytes()))?;
        ensure!((said.exit, &said.stdout, &said.stderr) == (usual.exit, &usual.stdout, &usual.stderr), "{said:?}");
        asked += 1;
    }
    for tunables in [
        "glibc.malloc.top_pad=18446744073709551615",
        "glibc.malloc.mmap_max=0:glibc.malloc.hugetlb=2",
        "glibc.rtld.optional_static_tls=99999999999999",
        "glibc.malloc.check=3:glibc.mem.tagging=3",
    ] {
        let mut hook = rig.command(&["claude-code", "PreToolUse"]);
        let said = finish(hook.env("GLIBC_TUNABLES", tunables).spawn()?, Some(input.as_bytes()))?;
        ensure!(said.exit == Some(2) && said.stdout.is_empty(), "{tunables}: {said:?}");
    }
    ensure!(told.try_iter().count() >= asked, "the service at its own place was asked every time");
    ensure!(std::fs::read_dir(format!("{trap}/run"))?.next().is_none());
    Ok(())
}

pub(super) fn descriptors_and_session_end() -> CaseResult {
    let rig = Rig::new()?;
    let _hangs = rig.listen()?;
    // A write end that leaks into the hook: it ends for the reader as soon as the hook has closed it.
    let (reading, writing) = nix::unistd::pipe()?;
    let mut hook = rig.command(&["claude-code", "PreToolUse"]).spawn()?;
    drop(writing);
    hook.stdin.take().context("stdin")?.write_all(bash("true")?.to_string().as_bytes())?;
    let mut nothing = Vec::new();
    std::fs::File::from(reading).read_to_end(&mut nothing)?;
    ensure!(nothing.is_empty() && hook.try_wait()?.is_none(), "the hook still waits, without what it was given");
    let child = child_of(hook.id())?;
    // It opens a file now and then on its way; while it waits it holds its three and the socket.
    let open = || Ok::<_, std::io::Error>(std::fs::read_dir(format!("/proc/{child}/fd"))?.count());
    let until = Instant::now() + Duration::from_secs(5);
    while open()? > 4 {
        let listed = || {
            let entries = std::fs::read_dir(format!("/proc/{child}/fd")).into_iter().flatten().flatten();
            entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect::<Vec<_>>()
        };
        ensure!(Instant::now() < until, "descriptors in the hook: {:?}", listed());
        std::thread::sleep(Duration::from_millis(2));
    }
    kill(Pid::from_raw(child), Signal::SIGKILL)?;
    ensure!(finish(hook, None)?.denied());

    let said = rig.hook(&["claude-code", "SessionEnd"], sample("SessionEnd")?.to_string().as_bytes())?;
    ensure!(said.silent() && said.took < Duration::from_millis(1500), "{said:?}");
    Ok(())
}

pub(super) fn config_change() -> CaseResult {
    let rig = Rig::new()?;
    let ours = settings(&rig.stage.hook(), &rig.stage.launcher(), "2.1.332")?;
    let change = |source: &str, content: &Value| {
        let file = rig.person.file("settings.json", content.to_string())?;
        let mut input = sample("ConfigChange")?;
        input["source"] = source.into();
        input["file_path"] = file.display().to_string().into();
        rig.hook(&["claude-code", "ConfigChange"], input.to_string().as_bytes())
    };
    ensure!(change("user_settings", &ours)?.silent());
    let said = change("user_settings", &json!({}))?;
    ensure!(said.denied() && said.stderr.contains("[TR-POLICY-TAMPER]"), "{said:?}");
    ensure!(change("project_settings", &json!({"permissions": {}}))?.silent());
    for wrong in [
        json!({"disableAllHooks": true}),
        json!({"env": {"CLAUDE_CODE_SHELL_PREFIX": ""}}),
        json!({"env": {"LD_PRELOAD": "/x.so"}}),
    ] {
        let said = change("project_settings", &wrong)?;
        ensure!(said.denied(), "{wrong}: {said:?}");
    }
    Ok(())
}

pub(super) fn words() -> CaseResult {
    let rig = Rig::new()?;
    for words in [&["--version"][..], &["--protocol-version"], &["--self-test"]] {
        let said = rig.hook(words, b"")?;
        ensure!(said.exit == Some(0) && !said.stdout.is_empty() && said.stderr.is_empty(), "{words:?}: {said:?}");
    }
    for words in
        [&[][..], &["codex"], &["claude-code", "Stop"], &["claude-code", "--socket", "/x"], &["--version", "x"]]
    {
        let said = rig.hook(words, bash("true")?.to_string().as_bytes())?;
        ensure!(said.denied(), "{words:?}: {said:?}");
    }
    ensure!(std::fs::read_dir(rig.runtime()?)?.next().is_none(), "these change nothing");
    Ok(())
}
