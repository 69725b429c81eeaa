//! What may happen: policy files, reading shell, rules, and the judge.

pub mod cases;
pub mod files;
pub mod fingerprint;
pub mod judge;
pub mod redact;
pub mod rules;
pub mod shell;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::judge::{RuleId, Severity};

/// How far decisions are carried out. Ordered: a later one is tighter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Everything is decided and joined, nothing is refused but the catastrophic.
    Observe,
    /// Decisions are carried out.
    Enforce,
    /// As `enforce`, and launches refuse where a layer is missing.
    Strict,
}

impl Mode {
    /// The word used in files and shown.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Observe => "observe",
            Mode::Enforce => "enforce",
            Mode::Strict => "strict",
        }
    }
}

/// How long rows are kept, in days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Retention {
    /// Events, decisions, launches, observations and entries.
    pub events_days: u32,
    /// Findings.
    pub findings_days: u32,
    /// Reviews.
    pub reviews_days: u32,
}

/// What the layers say of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RuleLevel {
    /// A hit of the rule is never weaker than this.
    pub at_least: Severity,
    /// A hit of the rule is never stronger than this, unless `at_least` says so. Always `Deny` for a catastrophic rule.
    pub at_most: Severity,
}

impl Default for RuleLevel {
    fn default() -> Self {
        RuleLevel { at_least: Severity::None, at_most: Severity::Deny }
    }
}

/// Every layer, validated and put together. Decisions, receipts and events carry its [`Policy::hash`].
#[derive(Clone, Debug)]
pub struct Policy {
    settings: Settings,
    hash: String,
    tests: Vec<cases::Case>,
}

/// What is hashed: all that can change a decision, in one fixed order.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Settings {
    mode: Mode,
    fence: String,
    strict_offline: bool,
    required: std::collections::BTreeSet<String>,
    retention: Retention,
    rules: BTreeMap<RuleId, RuleLevel>,
}

impl Policy {
    /// `sha256:…` over the compiled whole and the version of the rules.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// How far decisions are carried out.
    pub fn mode(&self) -> Mode {
        self.settings.mode
    }

    /// The name of the fence that a command gets when nothing else was chosen for it.
    pub fn default_fence(&self) -> &str {
        &self.settings.fence
    }

    /// Whether every executing or mutating tool is denied while the service is away.
    pub fn strict_offline(&self) -> bool {
        self.settings.strict_offline
    }

    /// Names of the layers without which nothing is launched.
    pub fn required_layers(&self) -> impl Iterator<Item = &str> {
        self.settings.required.iter().map(String::as_str)
    }

    /// How long rows are kept.
    pub fn retention(&self) -> Retention {
        self.settings.retention
    }

    /// The `[[test]]` tables of all layers.
    pub fn tests(&self) -> &[cases::Case] {
        &self.tests
    }

    /// Everything that can change a decision, as JSON, for `policy show`.
    pub fn shown(&self) -> serde_json::Value {
        let mut all = serde_json::to_value(&self.settings).unwrap_or_default();
        all["hash"] = self.hash.clone().into();
        all
    }

    /// What the layers say of one rule.
    pub fn level(&self, rule: RuleId) -> RuleLevel {
        self.settings.rules.get(&rule).copied().unwrap_or_default()
    }
}
