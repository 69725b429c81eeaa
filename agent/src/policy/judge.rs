//! From a tool call to a decision.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::rules::{self, INSPECTION_INCOMPLETE};
use super::{Mode, Policy, fingerprint, redact};
use crate::host::{HostKind, ToolClass, ToolUse};

/// What the policy may know of the world when it reads a call. Nothing of it comes from the tool's own environment.
#[derive(Clone, Debug)]
pub struct World {
    /// The person's home, from the passwd entry.
    pub home: PathBuf,
    /// The person's name.
    pub user: String,
    /// `/run/user/UID` or its stand-in.
    pub runtime_dir: PathBuf,
    /// The working tree (W), when there is one.
    pub tree: Option<PathBuf>,
    /// Whether the real file system may be consulted (globs, links). Corpus cases have none.
    pub file_system: bool,
}

/// One call to judge.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Which host asks.
    pub host: HostKind,
    /// The call.
    pub call: &'a ToolUse,
    /// The call's working directory.
    pub cwd: &'a str,
    /// What the person asked for; `None` is unknown, which authorises nothing.
    pub task: Option<&'a str>,
    /// The world around it.
    pub world: &'a World,
}

/// How strong a rule speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing to say.
    None,
    /// Recorded and shown.
    Warn,
    /// Held for a person.
    Review,
    /// Refused.
    Deny,
}

/// A rule's fixed id, such as `TR-CRED-EXFIL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct RuleId(pub &'static str);

/// One rule that matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleHit {
    /// Which.
    pub rule: RuleId,
    /// How strong.
    pub severity: Severity,
    /// What matched, redacted, one line: for the person and the agent.
    pub evidence: String,
}

/// What the rules say of a call, before modes and reviews. Carries its evidence.
#[must_use]
#[derive(Clone, Debug)]
pub struct Judgement {
    /// Every rule that matched, strongest first.
    pub hits: Vec<RuleHit>,
    /// The tool's class.
    pub class: ToolClass,
    /// What may be stored and shown of the call (redacted, at most 200 bytes).
    pub summary: String,
    /// The command whose digest binds a launch to this call, for tools that execute one.
    pub command_digest: Option<[u8; 32]>,
    /// The fence chosen for it.
    pub fence: String,
}

impl Judgement {
    /// The strongest severity among the hits.
    pub fn severity(&self) -> Severity {
        self.hits.iter().map(|hit| hit.severity).max().unwrap_or(Severity::None)
    }
}

/// The two outcomes. There is no "allow": the host's own permissions stay in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Ringfence imposes no denial.
    NoOverride,
    /// The call must not run.
    Deny,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionSource {
    /// A rule, in the service.
    LocalRule,
    /// A person, in a review.
    Human,
    /// A model, in a review.
    ModelReview,
    /// The hook's built-in rules, because the service could not answer.
    EmergencyFallback,
    /// The hook, because something failed.
    Fallback,
}

/// A decision of a tool call, with its obligations: it must be recorded, and its fence published, before it is answered.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The outcome.
    pub outcome: Outcome,
    /// A rule id, or one of `review_unavailable`, `inspection_incomplete`, `none`, ….
    pub reason_code: String,
    /// One line for the person and the agent.
    pub explanation: String,
    /// The rules that matched.
    pub rules: Vec<String>,
    /// Who decided.
    pub source: DecisionSource,
    /// `sha256:…` over the whole policy.
    pub policy: String,
    /// The fence chosen for the call.
    pub fence: String,
}

/// Longest explanation, in bytes.
const EXPLANATION_BYTES: usize = 400;
/// Most rules that one decision names.
const RULES: usize = 16;

/// Whether somebody can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reviews {
    /// Nobody: what would be held is denied, with the reason `review_unavailable`.
    Unavailable,
}

impl Policy {
    /// What the rules say of a call, with the layers' levels applied. Bounded in time and stack for any input.
    pub fn judge(&self, question: &Question<'_>) -> Judgement {
        let class = ToolClass::of_tool(&question.call.tool);
        let hits = self.levelled_hits(rules::evaluate(question, class));
        let command = command_of(class, question.call);
        Judgement {
            hits,
            class,
            summary: rules::summary(question),
            command_digest: command.map(fingerprint::command),
            fence: self.default_fence().to_owned(),
        }
    }

    /// What is said of a call whose input could not be decoded: `reason` is one plain line, never the input.
    pub fn judge_unreadable(&self, class: ToolClass, reason: &str) -> Judgement {
        let severity = if class.executes_or_mutates() { Severity::Deny } else { Severity::Warn };
        let hit = RuleHit {
            rule: INSPECTION_INCOMPLETE,
            severity,
            evidence: format!("the call could not be read: {reason}"),
        };
        Judgement {
            hits: self.levelled_hits(vec![hit]),
            class,
            summary: String::from("(a call that could not be read)"),
            command_digest: None,
            fence: self.default_fence().to_owned(),
        }
    }

    fn levelled_hits(&self, hits: Vec<RuleHit>) -> Vec<RuleHit> {
        let levelled = hits.into_iter().map(|hit| RuleHit { severity: self.levelled(hit.rule, hit.severity), ..hit });
        let mut hits: Vec<RuleHit> = levelled.filter(|hit| hit.severity > Severity::None).collect();
        hits.sort_by(|a, b| b.severity.cmp(&a.severity).then(a.rule.cmp(&b.rule)));
        hits.dedup_by(|b, a| a.rule == b.rule);
        hits
    }
}

fn command_of(class: ToolClass, call: &ToolUse) -> Option<&str> {
    call.input.get("command").filter(|_| class == ToolClass::ShellExec).and_then(|command| command.as_str())
}

impl Judgement {
    /// The decision, with the judgement that must be recorded beside it. `source` is [`DecisionSource::LocalRule`];
    /// a hook that judges because the service is away says so by replacing it.
    pub fn decide(self, policy: &Policy, reviews: Reviews) -> (Decision, Judgement) {
        let Reviews::Unavailable = reviews;
        let strongest = self.hits.first();
        let refused = strongest.filter(|hit| match (policy.mode(), hit.severity) {
            (_, Severity::None | Severity::Warn) => false,
            (Mode::Observe, Severity::Review | Severity::Deny) => {
                hit.severity == Severity::Deny && rules::is_catastrophic(hit.rule)
            }
            (Mode::Enforce | Mode::Strict, Severity::Review | Severity::Deny) => true,
        });
        let (outcome, reason_code, explanation) = match (refused, strongest) {
            (Some(hit), _) if hit.severity == Severity::Review => (
                Outcome::Deny,
                String::from("review_unavailable"),
                format!("{}: {}; a person would have to allow this, and nobody can be asked", hit.rule.0, hit.evidence),
            ),
            (Some(hit), _) if hit.rule == INSPECTION_INCOMPLETE => {
                (Outcome::Deny, String::from("inspection_incomplete"), format!("{}: {}", hit.rule.0, hit.evidence))
            }
            (Some(hit), _) => (Outcome::Deny, hit.rule.0.to_owned(), format!("{}: {}", hit.rule.0, hit.evidence)),
            (None, Some(hit)) => {
                (Outcome::NoOverride, hit.rule.0.to_owned(), format!("{}: {}", hit.rule.0, hit.evidence))
            }
            (None, None) => (Outcome::NoOverride, String::from("none"), String::new()),
        };
        let decision = Decision {
            outcome,
            reason_code,
            explanation: one_line(explanation),
            rules: self.hits.iter().take(RULES).map(|hit| hit.rule.0.to_owned()).collect(),
            source: DecisionSource::LocalRule,
            policy: policy.hash().to_owned(),
            fence: self.fence.clone(),
        };
        (decision, self)
    }
}

/// The decision for host input that could not be decoded at all: denied for a class that executes or mutates, whatever
/// the mode. `reason` is one plain line, never the input itself.
pub fn incomplete(policy: &Policy, class: ToolClass, reason: &str) -> Decision {
    let outcome = if class.executes_or_mutates() { Outcome::Deny } else { Outcome::NoOverride };
    Decision {
        outcome,
        reason_code: String::from("inspection_incomplete"),
        explanation: one_line(format!("{}: the call could not be read: {reason}", INSPECTION_INCOMPLETE.0)),
        rules: vec![INSPECTION_INCOMPLETE.0.to_owned()],
        source: DecisionSource::LocalRule,
        policy: policy.hash().to_owned(),
        fence: policy.default_fence().to_owned(),
    }
}

fn one_line(text: String) -> String {
    let mut line = text.replace(['\n', '\r'], " ");
    if line.len() > EXPLANATION_BYTES {
        let end = (0..=EXPLANATION_BYTES - 3).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}

/// Evidence for a person and the agent: redacted, one line, short.
pub(super) fn evidence(world: &World, text: &str) -> String {
    redact::summary(text, &world.home)
}
