//! The real host with the launcher as its shell prefix: everything it does around a command must pass the fence.

use std::fs;
use std::time::Duration;

use anyhow::ensure;
use ringfence::fence::line::digest;
use ringfence::fence::plan::{SESSION_PLAN, call_plan_name};
use ringfence_tests::host::{ClaudeSession, Host, pinned};
use ringfence_tests::model::{Model, Script, Step};
use ringfence_tests::suite::{CaseResult, Suite};
use serde_json::json;

use crate::scene::{Scene, absent};

/// Adds this file's cases.
pub fn cases(suite: Suite) -> Suite {
    let mut suite = suite.limit(Duration::from_secs(180));
    for host in pinned().into_iter().filter(|host| host.name == "claude-code") {
        let version = host.version.clone();
        suite = suite.case(format!("Claude Code {version} works behind the default fence"), move || works(&version));
    }
    suite
}

fn works(version: &str) -> CaseResult {
    let host = Host::claude_code(version)?;
    let scene = Scene::fenced("default")?;
    // A call of its own fence is found by the digest of the command inside the host's line.
    let strict = "echo 'it'\"'\"'s' \"$TMPDIR\"; echo x > /dev/shm/ringfence-host-case || echo refused";
    let mut plan = scene.plan("strict")?;
    plan.call = Some(digest(strict.as_bytes()));
    scene.publish(&call_plan_name(&digest(strict.as_bytes())), &plan)?;
    scene.publish(SESSION_PLAN, &scene.plan("default")?)?;
    let model = Model::start(Script::new([
        Step::bash("id -u > canary.txt; echo $RINGFENCE; grep NoNewPrivs /proc/self/status"),
        Step::bash("echo x > ../outside/new"),
        Step::bash("cat <<'EOF'\nit's $HOME\nEOF\ncat ~/.ssh/id_test"),
        Step::bash("exit 3"),
        Step::bash(strict),
        Step::bash("mkdir -p sub && cd sub && pwd"),
        Step::bash("pwd"),
        Step::done(),
    ]))?;
    let prefix = scene.stage.launcher();
    let settings = json!({"env": {"CLAUDE_CODE_SHELL_PREFIX": prefix}});
    let ended = ClaudeSession::new(&host, &scene.person, &scene.tree).settings(settings).run(&model)?;
    ensure!(ended.success() && ended.stdout.trim() == "done", "{ended:?}");
    let results = model.tool_results();
    ensure!(results.len() == 7, "{results:?}");
    let uid = fs::read_to_string(scene.tree.join("canary.txt"))?;
    ensure!(uid.trim() == scene.person.uid().to_string(), "{uid}");
    ensure!(results[0].2.contains("1\nNoNewPrivs:\t1"), "{results:?}");
    ensure!(results[1].1 && results[1].2.contains("Permission denied"), "{results:?}");
    absent(&scene.outside.join("new"))?;
    ensure!(results[2].2.contains("it's $HOME") && results[2].2.contains("Permission denied"), "{results:?}");
    ensure!(!results[2].2.contains("PRIVATE KEY"), "{results:?}");
    ensure!(results[3].1, "a non-zero exit is an error to the host: {results:?}");
    ensure!(results[4].2.contains("it's /tmp/ringfence-") && results[4].2.ends_with("refused"), "{results:?}");
    ensure!(!results[4].1, "the host's own end of the line works in strict, too: {results:?}");
    // The host reads the directory that the line wrote at its end, outside the tree.
    ensure!(results[6].2.trim().ends_with("/project/sub"), "{results:?}");
    Ok(())
}
