//! From a tool call to a decision.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
