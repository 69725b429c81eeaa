//! Files: outside the tree nothing changes, inside everything works, credentials cannot be read.

use std::fs;

use anyhow::ensure;
use ringfence_tests::suite::{CaseResult, Suite};

use crate::scene::{Scene, absent, errors, text};

/// Adds this file's cases.
pub fn cases(suite: Suite) -> Suite {
    suite
        .case("F1 F2 F3 nothing is created outside, by any path", nothing_is_created)
        .case("F6 F7 no hardlink or rename crosses the tree's border", nothing_crosses)
        .case("F8 renames inside the tree work", renames_inside)
        .case("F9 truncation outside is refused", truncation)
        .case("F11 removing and making special files outside is refused", removing)
        .case("F14 a path that flips to a link never leads outside", flipping)
        .case("F18 an ioctl on a device without the right is refused", ioctl)
        .case("F22 credentials cannot be read, and what lies beside them can", credentials)
        .case("a private TMPDIR, /tmp and /dev/shm can be written", temporary)
        .case("strict writes nothing but the tree and its TMPDIR", strict)
}

fn nothing_is_created() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let (outside, tree) = (scene.outside.display(), scene.tree.display());
    let line = format!(
        "echo x > {outside}/new; echo x > /proc/self/root{outside}/new; echo x > {tree}/../outside/new; \
         ln -s {outside} out; echo x > out/new; echo x >> out/victim; echo done"
    );
    let output = scene.run(&line)?;
    ensure!(text(&output) == "done\n", "{output:?}");
    ensure!(errors(&output).matches("Permission denied").count() == 5, "{}", errors(&output));
    absent(&scene.outside.join("new"))?;
    scene.victim_is_untouched()
}

fn nothing_crosses() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let outside = scene.outside.display();
    let line = format!("echo x > x; ln {outside}/victim in; ln x {outside}/out; mv x {outside}/moved; ls");
    let output = scene.run(&line)?;
    ensure!(text(&output) == "x\n", "{output:?}");
    absent(&scene.tree.join("in"))?;
    absent(&scene.outside.join("out"))?;
    absent(&scene.outside.join("moved"))?;
    scene.victim_is_untouched()
}

fn renames_inside() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let output = scene.run("mkdir a b && echo x > a/x && mv a/x b/y && ln b/y a/z && mv b c && cat c/y a/z")?;
    ensure!(output.status.success() && text(&output) == "x\nx\n", "{output:?}");
    Ok(())
}

fn truncation() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let victim = scene.outside.join("victim");
    let program = format!(
        "truncate('{0}', 0) or print \"truncate $!\\n\"; sysopen(my $f, '{0}', 512) or print \"open $!\\n\";",
        victim.display()
    );
    let output = scene.perl(&program)?;
    ensure!(text(&output) == "truncate Permission denied\nopen Permission denied\n", "{output:?}");
    scene.victim_is_untouched()
}

fn removing() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let outside = scene.outside.display();
    let output = scene.run(&format!(
        "rm -f {outside}/victim; rm -rf {outside}; mkdir {outside}/d; mkfifo {outside}/f; ln -s a {outside}/l; echo done"
    ))?;
    ensure!(text(&output) == "done\n", "{output:?}");
    for name in ["d", "f", "l"] {
        absent(&scene.outside.join(name))?;
    }
    scene.victim_is_untouched()
}

fn flipping() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let program = format!(
        "if (!fork) {{ for (1..10000) {{ unlink 'p'; symlink '{0}', 'p'; unlink 'p'; open(my $f, '>', 'p'); }} exit }}
         for (1..10000) {{ if (open(my $f, '+<', 'p')) {{ print $f 'overwritten' }} }} wait; print 'done';",
        scene.outside.join("victim").display()
    );
    let output = scene.perl(&program)?;
    ensure!(text(&output) == "done", "{output:?}");
    scene.victim_is_untouched()
}

fn ioctl() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let output =
        scene.perl("open(my $f, '<', '/dev/zero') or die; my $b = ''; ioctl($f, 0x541B, $b) or print $! + 0;")?;
    ensure!(text(&output) == "13", "{output:?}");
    Ok(())
}

fn credentials() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let output = scene.run(
        "cd; cat .ssh/id_test .aws/credentials .config/gh/hosts.yml .claude/.credentials.json; \
         cat /proc/self/root$HOME/.ssh/id_test; ln .ssh/id_test project/key; cat .ssh/known_hosts .config/git/ignore",
    )?;
    ensure!(text(&output) == "a host*.o", "{output:?}");
    ensure!(errors(&output).matches("Permission denied").count() >= 5, "{}", errors(&output));
    absent(&scene.tree.join("key"))
}

fn temporary() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let name = format!("ringfence-escapes-{}", std::process::id());
    let output = scene.run(&format!(
        "mktemp && echo a > /tmp/{name} && echo b > /dev/shm/{name} && cat /tmp/{name} /dev/shm/{name} && \
         rm /tmp/{name} /dev/shm/{name} && echo $RINGFENCE && cat <<E\nhere\nE"
    ))?;
    let said = text(&output);
    ensure!(said.starts_with(&format!("/tmp/ringfence-{}/", scene.person.uid())), "{output:?}");
    ensure!(said.ends_with("a\nb\n1\nhere\n"), "{output:?}");
    Ok(())
}

fn strict() -> CaseResult {
    let scene = Scene::fenced("strict")?;
    let name = format!("ringfence-strict-{}", std::process::id());
    let output = scene.run(&format!(
        "echo a > inside && echo b > $TMPDIR/t && cat inside $TMPDIR/t; echo x > /tmp/{name}; echo x > /dev/shm/{name}"
    ))?;
    ensure!(text(&output) == "a\nb\n", "{output:?}");
    absent(std::path::Path::new(&format!("/tmp/{name}")))?;
    absent(std::path::Path::new(&format!("/dev/shm/{name}")))?;
    ensure!(fs::read_to_string(scene.tree.join("inside"))? == "a\n");
    Ok(())
}
