//! The launcher itself: no plan, no run; no plan but the right one; nothing from the environment; nothing added to the
//! command's output.

use std::fs;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use ringfence::fence::line::digest;
use ringfence::fence::plan::{SESSION_PLAN, call_plan_name, hex, session_directory};
use ringfence_tests::person::{Person, needs_root};
use ringfence_tests::suite::{CaseResult, Suite};
use serde_json::Value;

use crate::scene::{Scene, absent, errors, own_line, text, this_process};

/// Adds this file's cases.
pub fn cases(suite: Suite) -> Suite {
    let mut suite = suite
        .case("without a plan nothing runs", no_plan)
        .case("a cut, foreign, writable or unknown plan runs nothing", bad_plans)
        .case("a plan of one's own counts for nothing where one is published", forged)
        .case("a plan of one's own counts where none is published", own_plan)
        .case("the call's plan is used for its command alone", per_call)
        .case("a failed hook line exits 2", hook_line)
        .case("output and exit code are the command's own", transparent)
        .case("D1 a strict fence does not run without Landlock, the default one says so", without_landlock)
        .case("D2 Landlock off at boot is told apart", off_at_boot)
        .case("F10 N20 inherited descriptors are closed, pipes and the streams stay", descriptors)
        .case("F15 F16 a replaced grant is left out, a replaced tree runs nothing", replaced)
        .case("a project's environment changes nothing", environment)
        .case("the launch is told with its receipt", notice)
        .case("a second person's plan is of no use", second_person)
        .case("SIGPIPE and closed streams are as they were", inherited_state);
    for cap in 1..=7 {
        suite = suite.case(format!("D3 Landlock ABI {cap}: what is lost is named"), move || abi(cap));
    }
    suite
}

fn no_plan() -> CaseResult {
    let scene = Scene::new()?;
    let output = scene.run("echo ran; touch ran")?;
    ensure!(output.status.code() == Some(125), "{output:?}");
    ensure!(output.stdout.is_empty() && errors(&output).lines().count() == 1, "{output:?}");
    ensure!(errors(&output).starts_with("ringfence-exec: plan: no plan"), "{output:?}");
    absent(&scene.tree.join("ran"))
}

fn bad_plans() -> CaseResult {
    let scene = Scene::new()?;
    let file = scene.publish(SESSION_PLAN, &scene.plan("default")?)?;
    let good = fs::read(&file)?;
    let mut other_version = good.clone();
    other_version[6] = 77;
    for (bytes, word) in [
        (good[..good.len() / 2].to_vec(), "cut off"),
        (b"not a plan".to_vec(), "not a plan"),
        (other_version, "version 77"),
        (vec![0; 300 << 10], "over the limit"),
    ] {
        fs::write(&file, bytes)?;
        let output = scene.run("touch ran")?;
        ensure!(output.status.code() == Some(125) && errors(&output).contains(word), "{output:?}");
    }
    fs::write(&file, &good)?;
    if needs_root("a root-owned plan").is_ok() {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
        let output = scene.run("touch ran")?;
        ensure!(errors(&output).contains("written by others"), "{output:?}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
    }
    let mut of_another = scene.plan("default")?;
    of_another.host = Some(ringfence::process::ProcessId { pid: 1, start: 1 });
    fs::write(&file, of_another.encode()?)?;
    let output = scene.run("touch ran")?;
    ensure!(output.status.code() == Some(125) && errors(&output).contains("another session"), "{output:?}");
    absent(&scene.tree.join("ran"))?;
    fs::write(&file, &good)?;
    ensure!(scene.run("touch ran")?.status.success());
    Ok(())
}

fn forged() -> CaseResult {
    needs_root("a root-owned plan")?;
    let scene = Scene::fenced("default")?;
    // The file of the session is the person's own: refused though its content is good.
    let file = scene.published()?.join(SESSION_PLAN);
    scene.person.own(&file)?;
    let output = scene.run("touch ran")?;
    ensure!(output.status.code() == Some(125) && errors(&output).contains("only root's"), "{output:?}");
    // And a looser one in the person's own state directory is not even looked at.
    fs::remove_file(&file)?;
    write_own_plan(&scene, "host")?;
    let output = scene.run("touch ran")?;
    ensure!(output.status.code() == Some(125), "{output:?}");
    absent(&scene.tree.join("ran"))
}

fn write_own_plan(scene: &Scene, fence: &str) -> anyhow::Result<()> {
    let plans = scene.stage.state_directory(&scene.person)?.join("plans");
    let session = plans.join(session_directory(this_process()?));
    fs::create_dir_all(&session)?;
    let file = session.join(SESSION_PLAN);
    fs::write(&file, scene.plan(fence)?.encode()?)?;
    for path in [&plans, &session, &file] {
        scene.person.own(path)?;
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    Ok(())
}

fn own_plan() -> CaseResult {
    let scene = Scene::new()?;
    write_own_plan(&scene, "default")?;
    let outside = scene.outside.join("new");
    let output = scene.run(&format!("touch ran; touch {}", outside.display()))?;
    ensure!(scene.tree.join("ran").exists(), "{output:?}");
    absent(&outside)
}

/// Claude Code's line around a command.
fn host_line(command: &str) -> String {
    let quoted = command.replace('\'', "'\"'\"'");
    format!("true 2>/dev/null || true && eval '{quoted}' < /dev/null && pwd -P >| {}", cwd_file())
}

/// Where such a line writes its directory.
fn cwd_file() -> String {
    format!("/tmp/claude-{:x}-cwd", std::process::id())
}

fn per_call() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let command =
        "echo x > /tmp/ringfence-call-$PPID; ls /tmp | grep -c ringfence-call-$PPID; rm -f /tmp/ringfence-call-$PPID";
    let mut plan = scene.plan("strict")?;
    plan.call = Some(digest(command.as_bytes()));
    scene.publish(&call_plan_name(&digest(command.as_bytes())), &plan)?;
    let run = |command: &str| -> anyhow::Result<String> {
        let output = scene.run(&host_line(command))?;
        let _ = fs::remove_file(cwd_file());
        Ok(text(&output))
    };
    ensure!(run(command)? == "0\n", "the call's own plan is strict");
    ensure!(run(&format!("{command} "))? == "1\n", "another command has the session's");
    Ok(())
}

fn hook_line() -> CaseResult {
    let scene = Scene::new()?;
    let line = "/opt/hook PreToolUse";
    let mut plan = scene.plan("default")?;
    plan.lines = vec![own_line(line)];
    // W is gone, which is a failed step.
    plan.landlock.as_mut().context("rules")?.paths.iter_mut().filter(|rule| rule.required).for_each(|rule| {
        rule.identity = Some((1, 1));
    });
    scene.publish(SESSION_PLAN, &plan)?;
    ensure!(scene.run(line)?.status.code() == Some(2));
    ensure!(scene.run("touch ran")?.status.code() == Some(125));
    absent(&scene.tree.join("ran"))?;
    // Without any plan one that names our hook counts as one.
    let bare = Scene::new()?;
    ensure!(bare.run("/usr/bin/ringfence-hook claude-code")?.status.code() == Some(2));
    Ok(())
}

fn transparent() -> CaseResult {
    let scene = Scene::fenced("default")?;
    for line in [
        "true",
        "false",
        "exit 3",
        "echo out; echo err >&2; exit 7",
        "printf 'a\\0b\\377'",
        "kill -TERM $$",
        "no-such-command-anywhere",
        "cat /etc/hostname; ls /usr | sort",
        "echo $0 $# \"$@\"",
        "cat <<'E'\nit's $x\nE",
        "echo to > /dev/stderr; echo so > /dev/stdout",
        "yes | head -n 2",
        "ulimit -a; umask; pwd; tty",
    ] {
        let fenced = scene.run(line)?;
        let bare = scene
            .person
            .command("/bin/bash")
            .arg("-c")
            .arg(line)
            .current_dir(&scene.tree)
            .stdin(Stdio::null())
            .output()?;
        ensure!(fenced.stdout == bare.stdout, "{line}: {fenced:?} {bare:?}");
        ensure!(fenced.stderr == bare.stderr, "{line}: {fenced:?} {bare:?}");
        ensure!(fenced.status == bare.status, "{line}: {fenced:?} {bare:?}");
    }
    Ok(())
}

/// Runs a launcher under a filter that answers `landlock_create_ruleset` with an errno.
fn without(scene: &Scene, fence: &str, errno: i32) -> anyhow::Result<std::process::Output> {
    scene.publish(SESSION_PLAN, &scene.plan(fence)?)?;
    // LD ABS nr; JEQ 444 (landlock_create_ruleset, on every architecture) → ERRNO, else ALLOW.
    let program = format!(
        "use strict; my $f = pack('SCCL SCCL SCCL SCCL', 0x20,0,0,0, 0x15,0,1,444, 6,0,0,0x50000|{errno}, 6,0,0,0x7fff0000);
         my $p = pack('Sx6P', 4, $f); syscall(157, 38, 1, 0, 0, 0) == 0 or die; syscall(157, 22, 2, $p) == 0 or die $!;
         exec @ARGV or die;"
    );
    let mut command = scene.person.command("/usr/bin/perl");
    command.arg("-e").arg(program).arg(scene.stage.launcher()).arg("echo ran; touch ran").current_dir(&scene.tree);
    Ok(command.stdin(Stdio::null()).output()?)
}

fn without_landlock() -> CaseResult {
    if !cfg!(target_arch = "x86_64") {
        return ringfence_tests::suite::skip("the numbers are those of x86_64");
    }
    let scene = Scene::new()?;
    let output = without(&scene, "strict", 38)?;
    ensure!(output.status.code() == Some(125) && errors(&output).contains("absent"), "{output:?}");
    absent(&scene.tree.join("ran"))?;
    let output = without(&scene, "default", 38)?;
    ensure!(output.status.success() && text(&output) == "ran\n", "{output:?}");
    Ok(())
}

fn off_at_boot() -> CaseResult {
    if !cfg!(target_arch = "x86_64") {
        return ringfence_tests::suite::skip("the numbers are those of x86_64");
    }
    let scene = Scene::new()?;
    let output = without(&scene, "strict", 95)?;
    ensure!(output.status.code() == Some(125) && errors(&output).contains("lsm=landlock"), "{output:?}");
    absent(&scene.tree.join("ran"))
}

fn descriptors() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let victim = fs::OpenOptions::new().read(true).write(true).open(scene.outside.join("victim"))?;
    let directory = fs::File::open(&scene.outside)?;
    let (pipe, _writer) = nix::unistd::pipe()?;
    fcntl(&victim, FcntlArg::F_SETFD(FdFlag::empty()))?;
    fcntl(&directory, FcntlArg::F_SETFD(FdFlag::empty()))?;
    fcntl(&pipe, FcntlArg::F_SETFD(FdFlag::empty()))?;
    let output = scene.run(&format!(
        "echo x > /proc/self/fd/{0}; echo y >&{0}; touch /proc/self/fd/{1}/new; ls /proc/self/fd | wc -l; \
         test -p /proc/self/fd/{2} && echo pipe",
        victim.as_raw_fd(),
        directory.as_raw_fd(),
        pipe.as_raw_fd()
    ))?;
    ensure!(text(&output).ends_with("pipe\n"), "{output:?}");
    absent(&scene.outside.join("new"))?;
    scene.victim_is_untouched()
}

fn replaced() -> CaseResult {
    let scene = Scene::new()?;
    scene.person.directory(".npm")?;
    scene.publish(SESSION_PLAN, &scene.plan("default")?)?;
    ensure!(scene.run("echo x > ~/.npm/a")?.status.success());
    // Away, and a link to the outside in its place: no longer what was granted.
    fs::remove_dir_all(scene.person.home().join(".npm"))?;
    std::os::unix::fs::symlink(&scene.outside, scene.person.home().join(".npm"))?;
    let output = scene.run("echo x > ~/.npm/victim; echo still")?;
    ensure!(text(&output) == "still\n", "{output:?}");
    scene.victim_is_untouched()?;
    fs::rename(&scene.tree, scene.person.home().join("elsewhere"))?;
    scene.person.directory("project")?;
    let output = scene.run("touch ran")?;
    ensure!(output.status.code() == Some(125) && errors(&output).contains("replaced"), "{output:?}");
    absent(&scene.tree.join("ran"))
}

fn environment() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let evil = scene.person.directory("project/evil")?;
    let outside = scene.outside.join("new");
    let script = format!("touch {}; touch {}/bash-env", outside.display(), scene.tree.display());
    fs::write(evil.join("env.sh"), script)?;
    fs::write(evil.join("bash"), format!("#!/bin/sh\ntouch {}\n", outside.display()))?;
    fs::set_permissions(evil.join("bash"), fs::Permissions::from_mode(0o755))?;
    let mut command = scene.launcher("echo ran; echo x > ~/fake; echo x > $RINGFENCE_PLAN");
    command.env("LD_PRELOAD", evil.join("no.so")).env("LD_AUDIT", evil.join("no.so")).env("LD_LIBRARY_PATH", &evil);
    command.env("PATH", format!("{}:/usr/bin:/bin", evil.display())).env("BASH_ENV", evil.join("env.sh"));
    command.env("HOME", &scene.outside).env("XDG_RUNTIME_DIR", &evil).env("XDG_STATE_HOME", &evil);
    for name in ["RINGFENCE_PLAN", "RINGFENCE_RUNTIME_DIR", "RINGFENCE_DISABLE", "RINGFENCE"] {
        command.env(name, scene.outside.join("named"));
    }
    command.env("GLIBC_TUNABLES", "glibc.malloc.check=3").env("TMPDIR", &scene.outside);
    let output = command.output()?;
    ensure!(text(&output).lines().any(|line| line == "ran"), "{output:?}");
    // BASH_ENV ran, in the shell, behind the fence: it reached the tree and not beyond.
    ensure!(scene.tree.join("bash-env").exists(), "{output:?}");
    for name in ["new", "fake", "named"] {
        absent(&scene.outside.join(name))?;
    }
    // The same without a plan: no variable makes one.
    let bare = Scene::new()?;
    let mut command = bare.launcher("touch ran");
    command.env("HOME", &bare.outside).env("XDG_RUNTIME_DIR", &bare.outside).env("RINGFENCE_DISABLE", "1");
    ensure!(command.output()?.status.code() == Some(125));
    absent(&bare.tree.join("ran"))
}

/// Launches one line while a stand-in service listens, and gives back the frame's JSON.
fn told(scene: &Scene, line: &str) -> anyhow::Result<Value> {
    let socket = scene.stage.runtime_directory(&scene.person)?.join("hook.sock");
    let listener = UnixListener::bind(&socket)?;
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777))?;
    let output = scene.run(line)?;
    listener.set_nonblocking(true)?;
    let (mut peer, _) = listener.accept().with_context(|| format!("nobody connected: {output:?}"))?;
    peer.set_nonblocking(false)?;
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes)?;
    let (length, body) = bytes.split_at_checked(4).context("a frame")?;
    ensure!(u32::from_be_bytes(length.try_into()?) as usize == body.len());
    Ok(serde_json::from_slice(body)?)
}

fn notice() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let envelope = told(&scene, &host_line("true"))?;
    let _ = fs::remove_file(cwd_file());
    ensure!(envelope["request_kind"] == "launch_notice", "{envelope}");
    let notice = &envelope["host_payload"];
    ensure!(notice["parent"]["pid"] == std::process::id(), "{notice}");
    ensure!(notice["command_digest"] == hex(&digest(b"true")), "{notice}");
    ensure!(notice["fence"] == "default" && notice["per_call"] == false, "{notice}");
    ensure!(notice["cwd"] == scene.tree.to_string_lossy().as_ref(), "{notice}");
    let layers = notice["receipt"]["layers"].as_array().context("layers")?;
    ensure!(layers.iter().map(|layer| layer["layer"].as_str()).eq([Some("landlock"), Some("seccomp")]), "{notice}");
    ensure!(layers[1]["grade"] == "full", "{notice}");
    Ok(())
}

fn abi(cap: u32) -> CaseResult {
    let ringfence::fence::landlock::Support::Abi(offered) = ringfence::fence::landlock::support() else {
        return ringfence_tests::suite::skip("this kernel has no Landlock");
    };
    if offered < cap {
        return ringfence_tests::suite::skip(format!("this kernel offers ABI {offered}"));
    }
    let scene = Scene::with_abi_cap(Some(cap))?;
    scene.publish(SESSION_PLAN, &scene.plan("default")?)?;
    let victim = scene.outside.join("victim");
    let envelope = told(
        &scene,
        &format!(
            "mkdir a b; echo x > a/x; mv a/x b/x; echo x > {}/new; truncate -s 0 {}",
            scene.outside.display(),
            victim.display()
        ),
    )?;
    let landlock = &envelope["host_payload"]["receipt"]["layers"][0];
    let missing = landlock["missing"].as_array().context("missing")?;
    let names = |word: &str| missing.iter().any(|one| one.as_str().is_some_and(|one| one.contains(word)));
    ensure!(landlock["abi"] == cap, "{landlock}");
    for (word, from) in [("REFER", 2), ("truncate", 3), ("ioctl_dev", 5), ("signals", 6), ("abstract", 6)] {
        ensure!(names(word) == (cap < from), "{word}: {landlock}");
    }
    ensure!(landlock["grade"] == if cap == 1 { "none" } else { "partial" }, "{landlock}");
    ensure!(scene.tree.join("b/x").exists(), "a rename inside the tree must work on every ABI");
    ensure!(scene.outside.join("new").exists() == (cap == 1), "the write outside");
    if cap >= 3 {
        scene.victim_is_untouched()?;
    }
    // Strict refuses where a right is missing.
    scene.publish(SESSION_PLAN, &scene.plan("strict")?)?;
    let output = scene.run("touch ran")?;
    ensure!(output.status.success() == (cap >= 6), "{output:?}");
    ensure!(scene.tree.join("ran").exists() == (cap >= 6));
    Ok(())
}

fn second_person() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let (other, _) = Person::two()?;
    let mut command = other.command(scene.stage.launcher());
    let output = command.arg("touch ran").stdin(Stdio::null()).output()?;
    ensure!(output.status.code() == Some(125), "{output:?}");
    absent(&other.home().join("ran"))
}

fn inherited_state() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let status = "grep -E 'Sig(Ign|Blk|Cgt)' /proc/self/status";
    let fenced = scene.run(&format!("exec {status}"))?;
    let bare = |line: &str| -> anyhow::Result<Vec<u8>> {
        let mut command: Command = scene.person.command("/bin/bash");
        Ok(command.arg("-c").arg(line).stdin(Stdio::null()).output()?.stdout)
    };
    ensure!(fenced.stdout == bare(&format!("exec {status}"))?, "{fenced:?}");
    // Closed streams stay closed: what is opened next gets their numbers, as without a launcher.
    let launcher = scene.stage.launcher();
    let mut command = scene.person.command("/bin/bash");
    command.current_dir(&scene.tree).arg("-c");
    let output = command.arg(format!("exec {} 'exec ls /proc/self/fd' 0<&- 2>&-", launcher.display())).output()?;
    // But for the copy that bash keeps of a stream that it closes, which is one that the launcher does not pass on.
    let expected = bare("exec ls /proc/self/fd 0<&- 2>&-")?;
    let expected = String::from_utf8_lossy(&expected).lines().filter(|fd| *fd != "10").collect::<Vec<_>>().join("\n");
    ensure!(text(&output).trim() == expected, "{output:?} {expected}");
    Ok(())
}
