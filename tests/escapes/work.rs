//! Ordinary work under the default fence: what a fence breaks, people turn off.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use ringfence_tests::suite::{CaseResult, Suite, skip};

use crate::scene::{Scene, text};

/// Adds this file's cases.
pub fn cases(suite: Suite) -> Suite {
    suite
        .limit(Duration::from_secs(180))
        .case("git init, commit, branch, rebase and worktree work", git)
        .case("a C program is built and run", compiled)
        .case("cargo builds and runs a program", cargo)
        .case("python works, with processes and sockets of its own", python)
        .case("a loopback server is reached", server)
        .case("heredocs and process substitution work", shell)
}

fn program(name: &str) -> bool {
    ["/usr/local/bin", "/usr/bin", "/bin"].iter().any(|directory| Path::new(directory).join(name).exists())
}

fn git() -> CaseResult {
    if !program("git") {
        return skip("no git");
    }
    let scene = Scene::fenced("default")?;
    let output = scene.run(
        "set -e; git init -q -b main .; git config user.email a@b; git config user.name n; echo a > f; git add f; \
         git commit -qm one; git checkout -qb side; echo b > g; git add g; git commit -qm two; git checkout -q main; \
         echo c > h; git add h; git commit -qm three; git rebase -q main side; git stash list; git gc -q; \
         git worktree add -q wt -b other; git log --oneline side | wc -l",
    )?;
    ensure!(output.status.success() && text(&output).trim() == "3", "{output:?}");
    Ok(())
}

fn compiled() -> CaseResult {
    if !program("cc") {
        return skip("no cc");
    }
    let scene = Scene::fenced("default")?;
    let output = scene.run(
        "printf '#include <stdio.h>\\nint main(void) { puts(\"built\"); return 0; }\\n' > a.c && cc -o a a.c && ./a",
    )?;
    ensure!(text(&output) == "built\n", "{output:?}");
    Ok(())
}

fn cargo() -> CaseResult {
    let scene = Scene::fenced("default")?;
    // The person's own PATH: a toolchain in somebody else's home is none.
    if !program("cargo") || !scene.person.command("cargo").arg("--version").output().is_ok_and(|o| o.status.success()) {
        return skip("no cargo that an ordinary user can run");
    }
    let output = scene.run("cargo init -q --vcs none --name p . && cargo run -q --offline")?;
    ensure!(text(&output) == "Hello, world!\n", "{output:?}");
    Ok(())
}

fn python() -> CaseResult {
    if !Path::new("/usr/bin/python3").exists() {
        return skip("no /usr/bin/python3");
    }
    let scene = Scene::fenced("default")?;
    let code = "import asyncio, subprocess\nfrom concurrent.futures import ProcessPoolExecutor\n\
                def twice(x): return 2 * x\n\
                async def main():\n    p = await asyncio.create_subprocess_exec('echo', 'child', stdout=-1)\n    \
                print((await p.communicate())[0].decode().strip())\n\
                if __name__ == '__main__':\n    print(list(ProcessPoolExecutor(2).map(twice, [1, 2])))\n    \
                asyncio.run(main())\n";
    std::fs::write(scene.tree.join("p.py"), code)?;
    let output = scene.run("/usr/bin/python3 p.py")?;
    ensure!(text(&output) == "[2, 4]\nchild\n", "{output:?}");
    Ok(())
}

fn server() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let output = scene.perl(
        "use Socket; socket(my $l, PF_INET, SOCK_STREAM, 0) or die; bind($l, pack_sockaddr_in(0, INADDR_LOOPBACK)) or die; \
         listen($l, 1) or die; my ($port) = unpack_sockaddr_in(getsockname($l)); \
         if (!fork) { accept(my $c, $l); syswrite($c, 'served'); exit } \
         socket(my $s, PF_INET, SOCK_STREAM, 0); connect($s, pack_sockaddr_in($port, INADDR_LOOPBACK)) or die; \
         sysread($s, my $t, 16); print $t; wait;",
    )?;
    ensure!(text(&output) == "served", "{output:?}");
    Ok(())
}

fn shell() -> CaseResult {
    let scene = Scene::fenced("default")?;
    let output =
        scene.run("cat <(echo one) - <<E\ntwo\nE\necho three | tee >(cat > f) > /dev/null; sleep 0.2; cat f")?;
    ensure!(text(&output) == "one\ntwo\nthree\n", "{output:?}");
    Ok(())
}
