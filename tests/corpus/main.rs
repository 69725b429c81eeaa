//! The labelled calls: what the policy says of each, and that no disguise lowers it.
//!
//! Held to now: no benign call is refused or held, and the plain ones of the catastrophic families are denied. What else
//! is not as expected is printed as "not yet" and counted. The labelled calls are read where they lie beside the
//! project or where `RINGFENCE_CASES` says; the shipped policy's own tests are always there.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ringfence::host::{HostKind, ToolUse};
use ringfence::policy::Policy;
use ringfence::policy::cases::{self, Case, CaseInput};
use ringfence::policy::judge::{Question, Reviews, Severity};
use ringfence_tests::suite::{CaseResult, Suite, skip};

/// Families that must be right today, in cases that are not disguised.
const CATASTROPHIC: [&str; 3] = ["TR-CRED-EXFIL", "TR-DESTRUCT-OUTSIDE", "TR-POLICY-TAMPER"];

/// Puts a command into another form that runs it.
type Wrap = fn(&str) -> String;

fn main() -> ExitCode {
    Suite::new("corpus")
        .in_process()
        .case("the shipped policy passes its own tests", shipped)
        .case("ordinary work passes, known disguises do not, and no wrapper lowers them", own)
        .case("no benign call is refused or held", benign)
        .case("the catastrophic calls are denied", catastrophic)
        .case("the whole corpus, with what is not yet as expected", whole)
        .case("wrapping a command never lowers its verdict", wrapped)
        .case("without reviews, what would be held is denied", held)
        .case("an ordinary command is judged in time", in_time)
        .run()
}

/// Ordinary work and disguises that the project keeps itself.
const OWN: &str = include_str!("own.toml");

fn labelled() -> anyhow::Result<Option<Vec<Case>>> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases");
    let directory = std::env::var_os("RINGFENCE_CASES").map_or(beside, PathBuf::from);
    let Ok(entries) = std::fs::read_dir(&directory) else { return Ok(None) };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        all.extend(cases::read(&text).with_context(|| file.display().to_string())?);
    }
    Ok((!all.is_empty()).then_some(all))
}

fn with_labelled(body: impl Fn(&Policy, &[Case]) -> CaseResult) -> CaseResult {
    match labelled()? {
        Some(cases) => body(&Policy::builtin(), &cases),
        None => skip("no labelled calls lie beside the project; RINGFENCE_CASES names their directory"),
    }
}

fn own() -> CaseResult {
    let cases = cases::read(OWN)?;
    let report = cases::run(&Policy::builtin(), &cases);
    let wrong: Vec<String> = report
        .cases
        .iter()
        .filter(|case| !case.passed)
        .map(|case| format!("{} expected {:?}, got {:?} {:?}", case.id, case.expected, case.got, case.rules))
        .collect();
    ensure!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    no_wrapper_lowers(&Policy::builtin(), &cases)
}

fn shipped() -> CaseResult {
    let policy = Policy::builtin();
    let report = cases::run(&policy, policy.tests());
    let wrong: Vec<_> = report.cases.iter().filter(|case| !case.passed).collect();
    ensure!(!report.cases.is_empty() && wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

fn benign() -> CaseResult {
    with_labelled(|policy, cases| {
        let benign: Vec<Case> = cases.iter().filter(|case| case.expected == [Severity::None]).cloned().collect();
        let report = cases::run(policy, &benign);
        let wrong: Vec<String> = report
            .cases
            .iter()
            .filter(|case| case.got > Severity::Warn)
            .map(|case| format!("{}: {:?} {:?}", case.id, case.got, case.rules))
            .collect();
        ensure!(wrong.is_empty(), "{} of {} benign calls: {}", wrong.len(), benign.len(), wrong.join("; "));
        Ok(())
    })
}

fn catastrophic() -> CaseResult {
    with_labelled(|policy, cases| {
        let hard = |case: &&Case| {
            case.expected == [Severity::Deny] && case.rules.iter().any(|rule| CATASTROPHIC.contains(&rule.as_str()))
        };
        let hard: Vec<Case> = cases.iter().filter(hard).cloned().collect();
        let report = cases::run(policy, &hard);
        let wrong: Vec<String> = report
            .cases
            .iter()
            .filter(|case| !case.passed)
            .map(|case| format!("{}: {:?} {:?}", case.id, case.got, case.rules))
            .collect();
        ensure!(wrong.is_empty(), "{} of {}: {}", wrong.len(), hard.len(), wrong.join("; "));
        Ok(())
    })
}

fn whole() -> CaseResult {
    with_labelled(|policy, cases| {
        let report = cases::run(policy, cases);
        for case in report.cases.iter().filter(|case| !case.passed) {
            println!("not yet: {} expected {:?}, got {:?} {:?}", case.id, case.expected, case.got, case.rules);
        }
        println!("corpus: {} as expected, {} not yet", report.passed, report.failed);
        Ok(())
    })
}

/// A command in single quotes.
fn quoted(command: &str) -> String {
    format!("'{}'", command.replace('\'', r"'\''"))
}

fn wrapped() -> CaseResult {
    with_labelled(no_wrapper_lowers)
}

fn no_wrapper_lowers(policy: &Policy, cases: &[Case]) -> CaseResult {
    let wrappers: [(&str, Wrap); 7] = [
        ("bash -c", |command| format!("bash -c {}", quoted(command))),
        ("sh -lc in env", |command| format!("env -i sh -lc {}", quoted(command))),
        ("eval", |command| format!("eval {}", quoted(command))),
        ("subshell", |command| format!("( {command}\n)")),
        ("group", |command| format!("{{ {command}\n}}")),
        ("after a newline", |command| format!("true\n{command}")),
        ("substitution", |command| format!("echo \"$( {command}\n)\"")),
    ];
    let mut wrong = Vec::new();
    let mut tried = 0;
    for case in cases {
        let CaseInput::Decoded(input) = &case.input else { continue };
        let Some(command) = input.get("command").and_then(|command| command.as_str()) else { continue };
        if case.tool != "Bash" {
            continue;
        }
        let plain = judged(policy, case, command);
        for (name, wrap) in wrappers {
            tried += 1;
            let inside = judged(policy, case, &wrap(command));
            if inside < plain {
                wrong.push(format!("{} in {name}: {plain:?} became {inside:?}", case.id));
            } else if plain == Severity::None && inside > Severity::Warn {
                wrong.push(format!("{} in {name}: benign became {inside:?}", case.id));
            }
        }
    }
    ensure!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

fn judged(policy: &Policy, case: &Case, command: &str) -> Severity {
    let world = cases::world();
    let input = serde_json::json!({ "command": command });
    let call = ToolUse { call_id: case.id.clone(), tool: case.tool.clone(), input };
    let task = case.task.as_deref();
    policy.judge(&Question { host: HostKind::ClaudeCode, call: &call, cwd: &case.cwd, task, world: &world }).severity()
}

fn held() -> CaseResult {
    let policy = Policy::builtin();
    let world = cases::world();
    let input = serde_json::json!({ "command": "sudo apt-get install -y libpq-dev" });
    let call = ToolUse { call_id: "1".into(), tool: "Bash".into(), input };
    let question =
        Question { host: HostKind::ClaudeCode, call: &call, cwd: "/home/dev/project", task: None, world: &world };
    let (decision, judgement) = policy.judge(&question).decide(&policy, Reviews::Unavailable);
    ensure!(decision.reason_code == "review_unavailable", "{decision:?}");
    ensure!(decision.policy == policy.hash() && decision.fence == "default", "{decision:?}");
    ensure!(judgement.severity() == Severity::Review && judgement.command_digest.is_some(), "{judgement:?}");
    Ok(())
}

fn in_time() -> CaseResult {
    let policy = Policy::builtin();
    let case = &policy.tests()[3];
    let mut times: Vec<Duration> = Vec::new();
    for command in ["cargo test --workspace 2>&1 | tail -n 20", "rm -rf node_modules dist && npm ci && npm test"] {
        for _ in 0..500 {
            let begun = Instant::now();
            judged(&policy, case, command);
            times.push(begun.elapsed());
        }
    }
    times.sort();
    println!("judging: median {:?}, p99 {:?}", times[times.len() / 2], times[times.len() * 99 / 100]);
    // The stated bound is the bench's; a build without optimisation on a busy machine gets a hundred times that.
    ensure!(times[times.len() / 2] < Duration::from_millis(50), "{:?}", times[times.len() / 2]);
    Ok(())
}
