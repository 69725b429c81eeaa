//! Real hosts against the scripted model: what is built on must hold.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use ringfence_tests::host::{ClaudeSession, Host, pinned};
use ringfence_tests::model::{Call, Model, Script, Step};
use ringfence_tests::person::Person;
use ringfence_tests::suite::{CaseResult, Suite};

fn main() -> ExitCode {
    let mut suite = Suite::new("hosts").limit(Duration::from_secs(180));
    for host in pinned() {
        let version = host.version.clone();
        suite = suite
            .case(format!("{} {version} runs the scripted session offline", host.name), move || runs_offline(&version));
    }
    suite.run()
}

fn runs_offline(version: &str) -> CaseResult {
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
