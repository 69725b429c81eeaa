//! What the launcher adds to a spawn: `/bin/true` bare, behind the default fence, and behind bubblewrap.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};

use super::Ground;
use super::results::Results;

const COMMAND: &str = "/bin/true";

/// Milliseconds from spawn to exit.
pub fn run(ground: &Ground, results: &mut Results) -> anyhow::Result<()> {
    let person = &ground.person;
    let tree = person.directory("bench-tree")?;
    let plan = person.home().join("bench.plan");
    let compiled = person
        .command(ground.stage.program("ringfence"))
        .args(["plan", "compile", "--tree"])
        .arg(&tree)
        .arg("-o")
        .arg(&plan)
        .output()?;
    ensure!(
        compiled.status.success(),
        "`ringfence plan compile` failed: {}",
        String::from_utf8_lossy(&compiled.stderr).trim()
    );

    let bare = || person.command(COMMAND);
    let fenced = || {
        let mut command = person.command(ground.stage.launcher());
        command.arg("--plan").arg(&plan).args(["--", COMMAND]);
        command
    };
    let bwrap = || {
        let mut command = person.command("bwrap");
        command.args([
            "--ro-bind",
            "/",
            "/",
            "--dev",
            "/dev",
            "--proc",
            "/proc",
            "--unshare-pid",
            "--die-with-parent",
            COMMAND,
        ]);
        command
    };
    let in_tree = |make: &dyn Fn() -> Command| {
        let mut command = make();
        command.current_dir(&tree);
        time(&mut command)
    };
    in_tree(&fenced).context("the launcher")?;
    let with_bwrap = in_tree(&bwrap);
    if let Err(error) = &with_bwrap {
        results.note(format!("launch: without bubblewrap: {error:#}"));
    }
    let mut samples = [const { Vec::new() }; 3];
    for _ in 0..ground.n {
        samples[0].push(in_tree(&bare)?);
        samples[1].push(in_tree(&fenced)?);
        if with_bwrap.is_ok() {
            samples[2].push(in_tree(&bwrap)?);
        }
    }
    let [bare, fenced, bwrap] = samples;
    results.add("launch", "ms", vec![("bare", bare), ("ringfence-exec", fenced), ("bubblewrap", bwrap)]);
    Ok(())
}

fn time(command: &mut Command) -> anyhow::Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let begun = Instant::now();
    let status = command.status().with_context(|| format!("starting {:?}", command.get_program()))?;
    let took = begun.elapsed().as_secs_f64() * 1e3;
    ensure!(status.success(), "{:?} failed: {status}", command.get_program());
    Ok(took)
}
