//! Labelled cases: the `[[test]]` tables of policy files and files of `[[case]]` tables, run against a policy.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Policy;
use super::judge::{Question, Severity, World};
use crate::host::{HostKind, ToolClass, ToolUse};

/// A case as it was typed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawCase {
    id: String,
    tool: String,
    command: Option<String>,
    input: Option<toml::Value>,
    #[serde(default = "project")]
    cwd: String,
    task: Option<String>,
    expect: Expect,
    #[serde(default)]
    rules: Vec<String>,
    #[serde(default)]
    not_rules: Vec<String>,
    #[serde(default)]
    #[expect(dead_code, reason = "for the reader of the file")]
    why: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Expect {
    One(Severity),
    Any(Vec<Severity>),
}

fn project() -> String {
    "/home/dev/project".into()
}

/// One labelled call.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name.
    pub id: String,
    /// The host's name of the tool.
    pub tool: String,
    /// The input, or the raw text of one that cannot be decoded.
    pub input: CaseInput,
    /// The call's working directory.
    pub cwd: String,
    /// What the person asked for.
    pub task: Option<String>,
    /// Any of these is right.
    pub expected: Vec<Severity>,
    /// Rules that must be among the hits.
    pub rules: Vec<String>,
    /// Rules that must not be.
    pub not_rules: Vec<String>,
}

/// What the tool was given.
#[derive(Clone, Debug)]
pub enum CaseInput {
    /// Decoded input.
    Decoded(Value),
    /// Text that stands for what the host sent.
    Raw(String),
}

impl RawCase {
    /// What it means, or why it means nothing.
    pub fn check(self) -> Result<Case, String> {
        let RawCase { id, tool, command, input, cwd, task, expect, rules, not_rules, why: _ } = self;
        let input = match (command, input) {
            (Some(command), None) => CaseInput::Decoded(serde_json::json!({ "command": command })),
            (None, Some(toml::Value::String(raw))) => CaseInput::Raw(raw),
            (None, Some(table)) => {
                CaseInput::Decoded(serde_json::to_value(table).map_err(|e| format!("case {id:?}: input: {e}"))?)
            }
            (None, None) => return Err(format!("case {id:?} has neither command nor input")),
            (Some(_), Some(_)) => return Err(format!("case {id:?} has both command and input")),
        };
        let expected = match expect {
            Expect::One(one) => vec![one],
            Expect::Any(any) => any,
        };
        if expected.is_empty() {
            return Err(format!("case {id:?} expects nothing"));
        }
        Ok(Case { id, tool, input, cwd, task, expected, rules, not_rules })
    }
}

/// Why a file of cases cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum CasesError {
    /// It is not a file of `[[case]]` or `[[test]]` tables.
    #[error("line {line}: {reason}")]
    Text {
        /// Line, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
}

#[derive(Deserialize)]
struct RawCases {
    #[serde(default)]
    case: Vec<toml::Spanned<RawCase>>,
    #[serde(default)]
    test: Vec<toml::Spanned<RawCase>>,
}

/// Reads the `[[case]]` and `[[test]]` tables of a file; of a policy file the rest is left to [`Policy::load`].
pub fn read(text: &str) -> Result<Vec<Case>, CasesError> {
    let line = |start: usize| text[..start.min(text.len())].matches('\n').count() + 1;
    let RawCases { case, test } = toml::from_str(text).map_err(|error| CasesError::Text {
        line: line(error.span().map_or(0, |span| span.start)),
        reason: error.message().to_owned(),
    })?;
    let all = case.into_iter().chain(test);
    all.map(|raw| {
        let start = raw.span().start;
        raw.into_inner().check().map_err(|reason| CasesError::Text { line: line(start), reason })
    })
    .collect()
}

/// How one case went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaseResult {
    /// The case.
    pub id: String,
    /// Whether verdict and rules are as expected.
    pub passed: bool,
    /// Verdicts that would have been right.
    pub expected: Vec<Severity>,
    /// The verdict.
    pub got: Severity,
    /// The rules that matched.
    pub rules: Vec<String>,
}

/// How all of them went: the JSON of `policy test --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CasesReport {
    /// One per case, in the order of the files.
    pub cases: Vec<CaseResult>,
    /// How many passed.
    pub passed: usize,
    /// How many did not.
    pub failed: usize,
}

/// The world that the cases of the shipped files live in.
pub fn world() -> World {
    World {
        home: "/home/dev".into(),
        user: "dev".into(),
        runtime_dir: "/run/user/1000".into(),
        tree: Some(project().into()),
        file_system: false,
    }
}

/// Judges every case by `policy`.
pub fn run(policy: &Policy, cases: &[Case]) -> CasesReport {
    let mut report = CasesReport::default();
    for case in cases {
        let result = run_one(policy, case);
        *(if result.passed { &mut report.passed } else { &mut report.failed }) += 1;
        report.cases.push(result);
    }
    report
}

fn run_one(policy: &Policy, case: &Case) -> CaseResult {
    let Case { id, tool, input, cwd, task, expected, rules, not_rules } = case;
    let decoded = match input {
        CaseInput::Decoded(value) => Ok(value.clone()),
        CaseInput::Raw(raw) => serde_json::from_str::<Value>(raw).map_err(|_| "its JSON cannot be read"),
    };
    let world = world();
    let judgement = match decoded {
        Ok(input) => {
            let call = ToolUse { call_id: id.clone(), tool: tool.clone(), input };
            policy.judge(&Question {
                host: HostKind::ClaudeCode,
                call: &call,
                cwd,
                task: task.as_deref(),
                world: &world,
            })
        }
        Err(reason) => policy.judge_unreadable(ToolClass::of_tool(tool), reason),
    };
    let got = judgement.severity();
    let hits: Vec<String> = judgement.hits.iter().map(|hit| hit.rule.0.to_owned()).collect();
    let passed = expected.contains(&got)
        && rules.iter().all(|rule| hits.contains(rule))
        && !not_rules.iter().any(|rule| hits.contains(rule));
    CaseResult { id: id.clone(), passed, expected: expected.clone(), got, rules: hits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_policy_passes_its_own_tests() {
        let policy = Policy::builtin();
        let report = run(&policy, policy.tests());
        assert_eq!(report.failed, 0, "{:#?}", report.cases.iter().filter(|case| !case.passed).collect::<Vec<_>>());
    }
}
