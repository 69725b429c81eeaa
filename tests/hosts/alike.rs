//! What real hosts do that the product is built on, and that the scripted host does it too.

use anyhow::ensure;
use ringfence_tests::host::{ClaudeSession, Host};
use ringfence_tests::model::{Call, Model, Script, Step};
use ringfence_tests::person::Person;
use ringfence_tests::suite::CaseResult;
use serde_json::json;

/// Tools run, in order and in parallel, as the person, and only the scripted model is asked.
pub fn runs_offline(version: &str) -> CaseResult {
    let host = Host::claude_code(version)?;
    let person = Person::new()?;
    let project = person.directory("project")?;
    let both = Step::Calls(vec![Call::bash("echo a > one.txt"), Call::bash("echo b > two.txt")]);
    let model =
        Model::start(Script::new([Step::bash("id -u > canary.txt"), both, Step::bash("exit 3"), Step::done()]))?;
    let ended = ClaudeSession::new(&host, &person, &project).run(&model)?;
    ensure!(ended.success() && ended.stdout.trim() == "done", "{ended:?}");
    ensure!(std::fs::read_to_string(project.join("canary.txt"))?.trim() == person.uid().to_string());
    ensure!(project.join("one.txt").exists() && project.join("two.txt").exists());
    let results = model.tool_results();
    ensure!(results.len() == 4, "{results:?}");
    ensure!(results[3].1, "a non-zero exit is an error to the host: {results:?}");
    ensure!(!std::path::Path::new(&format!("/tmp/claude-{}", person.uid())).exists());
    Ok(())
}

/// A hook that denies what holds `forbidden`, and a prefix that keeps the line it got: the same for both hosts.
fn settings_with_recorders(person: &Person) -> anyhow::Result<serde_json::Value> {
    let home = person.home().display();
    let hook = format!(
        "input=$(cat); printf '%s\\n' \"$input\" >> {home}/hooks; case $input in *forbidden*) echo no >&2; exit 2;; esac"
    );
    let prefix =
        person.file("prefix", format!("#!/bin/bash\necho \"$# $1\" >> {home}/lines\nexec /bin/bash -c \"$1\"\n"))?;
    std::fs::set_permissions(&prefix, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let group = json!([{"hooks": [{"type": "command", "command": "/bin/sh", "args": ["-c", hook], "timeout": 90}]}]);
    Ok(json!({"hooks": {"PreToolUse": group, "PostToolUse": group}, "env": {"CLAUDE_CODE_SHELL_PREFIX": prefix}}))
}

/// One hook, one prefix, one script: both hosts obey and quote alike.
pub fn scripted_is_alike() -> CaseResult {
    let commands = ["echo 'it'\\''s' > one.txt", "touch forbidden.txt", "echo two > two.txt"];
    let scripted = Person::new()?;
    let copy = crate::stand::scripted_host(&scripted)?;
    let settings = scripted.file("settings.json", settings_with_recorders(&scripted)?.to_string())?;
    let script = scripted.file("script.json", serde_json::to_vec(&commands)?)?;
    let project = scripted.directory("project")?;
    let output = scripted.command(copy).arg(settings).arg(script).current_dir(&project).output()?;
    ensure!(output.status.success(), "{output:?}");

    let host = Host::claude_code("2.1.332")?;
    let real = Person::new()?;
    let real_project = real.directory("project")?;
    let model = Model::start(Script::new(commands.map(Step::bash).into_iter().chain([Step::done()])))?;
    let ended =
        ClaudeSession::new(&host, &real, &real_project).settings(settings_with_recorders(&real)?).run(&model)?;
    ensure!(ended.success(), "{ended:?}");

    for (person, project) in [(&scripted, &project), (&real, &real_project)] {
        ensure!(std::fs::read_to_string(project.join("one.txt"))?.trim() == "it's", "{}", person.name());
        ensure!(project.join("two.txt").exists() && !project.join("forbidden.txt").exists(), "{}", person.name());
        let hooks = std::fs::read_to_string(person.home().join("hooks"))?;
        let events: Vec<serde_json::Value> = hooks.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        let names: Vec<&str> = events.iter().filter_map(|event| event["hook_event_name"].as_str()).collect();
        ensure!(
            names == ["PreToolUse", "PostToolUse", "PreToolUse", "PreToolUse", "PostToolUse"],
            "{}: {names:?}",
            person.name()
        );
        let lines = std::fs::read_to_string(person.home().join("lines"))?;
        for (line, command) in lines.lines().zip([commands[0], commands[2]]) {
            let quoted = command.replace('\'', r#"'"'"'"#);
            let end = format!("eval '{quoted}' < /dev/null && pwd -P >| /tmp/claude-");
            ensure!(line.starts_with("1 source ") && line.contains(&end), "{}: {line}", person.name());
        }
        ensure!(lines.lines().count() == 2, "{}: {lines}", person.name());
    }
    Ok(())
}
