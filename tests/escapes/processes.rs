//! Processes: signals, namespaces, terminals, and that what is left behind stays fenced.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::ensure;
use ringfence_tests::suite::{CaseResult, Suite, skip};

use crate::scene::{Scene, absent, text};

/// Adds this file's cases.
pub fn cases(suite: Suite) -> Suite {
    suite
        .case("K1 no signal leaves the fence, and children can be signalled", signals)
        .case("K2 K12 tracing, keys, bpf, io_uring and userfaultfd are refused", refused_calls)
        .case("K3 K4 typing into a terminal is refused, with high bits too", terminal)
        .case("K7 threads work without clone3", threads)
        .case("K8 F26 namespaces and mounts are refused", namespaces)
        .case("K9 memfd works by default and not in strict", memfd)
        .case("K11 a setuid program gets nothing", setuid)
        .case("K15 what is left behind stays fenced", left_behind)
        .case("K5 32-bit calls are refused", other_architecture)
        .case("F20 a process outside cannot be looked into", looking)
}

fn signals() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let mut sibling = scene.person.command("/bin/sleep").arg("30").spawn()?;
    let output =
        scene.run(&format!("kill -9 {} || echo refused; sleep 30 & kill $! && wait $!; echo $?", sibling.id()))?;
    let alive = sibling.try_wait()?.is_none();
    sibling.kill()?;
    sibling.wait()?;
    ensure!(text(&output) == "refused\n143\n", "{output:?}");
    ensure!(alive, "the sibling was killed");
    Ok(())
}

fn refused_calls() -> CaseResult {
    if !cfg!(target_arch = "x86_64") {
        return skip("the numbers are those of x86_64");
    }
    let scene = Scene::fenced("default")?;
    for (number, name) in [
        (101, "ptrace"),
        (310, "process_vm_readv"),
        (438, "pidfd_getfd"),
        (425, "io_uring_setup"),
        (321, "bpf"),
        (298, "perf_event_open"),
        (323, "userfaultfd"),
        (250, "keyctl"),
        (248, "add_key"),
        (304, "open_by_handle_at"),
        (175, "init_module"),
        (467, "open_tree_attr"),
    ] {
        let got = scene.call(number, &["0", "0", "0", "0", "0"])?;
        ensure!(got == 1, "{name} gave {got}");
    }
    ensure!(scene.call(435, &["0", "0"])? == 38, "clone3 must be ENOSYS");
    for (value, expected) in [("0", 0), ("0x40000", 0), ("0xffffffff", 0), ("0x400000", 1), ("8", 1), ("0x40008", 1)] {
        let got = scene.call(135, &[value])?;
        ensure!(got == expected, "personality({value}) gave {got}");
    }
    Ok(())
}

fn terminal() -> CaseResult {
    if !cfg!(target_arch = "x86_64") {
        return skip("the numbers are those of x86_64");
    }
    let scene = Scene::fenced("default")?;
    // On anything that is no terminal the kernel says ENOTTY: EPERM is the filter's.
    for request in ["0x5412", "0x5412 | (1 << 32)", "0x541c", "0x541c | (1 << 40)"] {
        let got = scene.call(16, &["0", request, "0"])?;
        ensure!(got == 1, "ioctl({request}) gave {got}");
    }
    ensure!(scene.call(16, &["0", "0x5401", "0"])? == 25, "other requests reach the kernel");
    Ok(())
}

fn threads() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let python = "import threading\nr=[]\nt=[threading.Thread(target=lambda i=i: r.append(i)) for i in range(8)]\n\
                  [x.start() for x in t]; [x.join() for x in t]; print(len(r))";
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return skip("no /usr/bin/python3, whose threads are the C library's");
    }
    fs::write(scene.tree.join("t.py"), python)?;
    let output = scene.run("/usr/bin/python3 t.py")?;
    ensure!(text(&output) == "8\n", "{output:?}");
    Ok(())
}

fn namespaces() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let output = scene.run("unshare -U true; echo $?; unshare -r true; echo $?; mount -t tmpfs x . ; echo $?")?;
    ensure!(text(&output).lines().all(|line| line != "0"), "{output:?}");
    if cfg!(target_arch = "x86_64") {
        for flag in ["0x10000000", "0x20000", "0x40000000", "0x20000000", "0x10000000 | (1 << 32)"] {
            ensure!(scene.call(272, &[flag])? == 1, "unshare({flag})");
        }
        ensure!(scene.call(308, &["0", "0"])? == 1, "setns");
    }
    Ok(())
}

fn memfd() -> CaseResult {
    if !cfg!(target_arch = "x86_64") {
        return skip("the numbers are those of x86_64");
    }
    ensure!(Scene::fenced("default")?.call(319, &["my $n = 'x'", "0"])? == 0);
    ensure!(Scene::fenced("strict")?.call(319, &["my $n = 'x'", "0"])? == 1);
    Ok(())
}

fn setuid() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let output = scene.run("grep NoNewPrivs /proc/self/status; /bin/su -c id root < /dev/null; echo $?")?;
    let said = text(&output);
    ensure!(said.starts_with("NoNewPrivs:\t1\n") && !said.contains("uid=0") && !said.ends_with("\n0\n"), "{output:?}");
    Ok(())
}

fn left_behind() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let outside = scene.outside.display();
    let mut launcher = scene.launcher(&format!(
        "setsid sh -c 'sleep 0.3; echo x > {outside}/new; echo tried > tried' > /dev/null 2>&1 & disown; exit 0"
    ));
    let status = launcher.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    ensure!(status.success());
    let begun = Instant::now();
    while !scene.tree.join("tried").exists() && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(50));
    }
    ensure!(scene.tree.join("tried").exists(), "the child did not run");
    absent(&scene.outside.join("new"))
}

fn other_architecture() -> CaseResult {
    if !cfg!(target_arch = "x86_64") {
        return skip("the x32 numbers are those of x86_64");
    }
    let scene = Scene::fenced("default")?;
    ensure!(scene.call(0x4000_0000 + 39, &[])? == 1, "an x32 number passed");
    Ok(())
}

fn looking() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let mut sibling = scene.person.command("/bin/sleep").arg("30").env("SECRET", "of the sibling").spawn()?;
    let output = scene.run(&format!(
        "cat /proc/{0}/environ; ls /proc/{0}/root/; cat /proc/{0}/cwd/.ssh/known_hosts; cat /proc/self/environ > /dev/null && echo own",
        sibling.id()
    ))?;
    sibling.kill()?;
    sibling.wait()?;
    ensure!(text(&output) == "own\n", "{output:?}");
    Ok(())
}
