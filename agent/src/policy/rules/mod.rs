//! The rules, one file per family, and what they look at.
//!
//! A rule is a function from a [`Subject`] to hits. Adding one: a file, a line in [`RULES`], cases in a policy file.
#![forbid(unsafe_code)]

mod broker_escape;
mod cred_exfil;
mod credentials;
mod destruct_outside;
mod dotenv_access;
mod encoded_command;
mod files;
mod inspection_incomplete;
mod places;
mod policy_tamper;
mod priv_esc;
mod publish_deploy;
mod remote_exec;
mod security_config;
mod sensitive_read;
mod task;
mod transfer;
mod unknown_egress;

use serde_json::Value;

use self::files::FileUse;
use super::judge::{Question, RuleHit, RuleId, Severity, evidence};
use super::redact;
use super::shell::{self, Action, Command};
use crate::host::ToolClass;

pub(super) const CRED_EXFIL: RuleId = RuleId("TR-CRED-EXFIL");
pub(super) const DESTRUCT_OUTSIDE: RuleId = RuleId("TR-DESTRUCT-OUTSIDE");
pub(super) const POLICY_TAMPER: RuleId = RuleId("TR-POLICY-TAMPER");
pub(super) const SENSITIVE_READ: RuleId = RuleId("TR-SENSITIVE-READ");
pub(super) const SECURITY_CONFIG: RuleId = RuleId("TR-SECURITY-CONFIG");
pub(super) const REMOTE_EXEC: RuleId = RuleId("TR-REMOTE-EXEC");
pub(super) const PRIV_ESC: RuleId = RuleId("TR-PRIV-ESC");
pub(super) const BROKER_ESCAPE: RuleId = RuleId("TR-BROKER-ESCAPE");
pub(super) const UNKNOWN_EGRESS: RuleId = RuleId("TR-UNKNOWN-EGRESS");
pub(super) const PUBLISH_DEPLOY: RuleId = RuleId("TR-PUBLISH-DEPLOY");
pub(super) const DOTENV_ACCESS: RuleId = RuleId("TR-DOTENV-ACCESS");
pub(super) const ENCODED_COMMAND: RuleId = RuleId("TR-ENCODED-COMMAND");
pub(super) const INSPECTION_INCOMPLETE: RuleId = RuleId("TR-INSPECTION-INCOMPLETE");

type Rule = fn(&Subject<'_>, &mut Hits<'_>);

/// Every rule that this build judges by.
const RULES: [(RuleId, Rule); 13] = [
    (CRED_EXFIL, cred_exfil::judge),
    (DESTRUCT_OUTSIDE, destruct_outside::judge),
    (POLICY_TAMPER, policy_tamper::judge),
    (SENSITIVE_READ, sensitive_read::judge),
    (SECURITY_CONFIG, security_config::judge),
    (REMOTE_EXEC, remote_exec::judge),
    (PRIV_ESC, priv_esc::judge),
    (BROKER_ESCAPE, broker_escape::judge),
    (UNKNOWN_EGRESS, unknown_egress::judge),
    (PUBLISH_DEPLOY, publish_deploy::judge),
    (DOTENV_ACCESS, dotenv_access::judge),
    (ENCODED_COMMAND, encoded_command::judge),
    (INSPECTION_INCOMPLETE, inspection_incomplete::judge),
];

/// The id of a rule by its name, when this build has it.
pub fn known(name: &str) -> Option<RuleId> {
    RULES.iter().map(|(id, _)| *id).find(|id| id.0 == name)
}

/// Whether nothing may lower or excuse the rule.
pub fn is_catastrophic(rule: RuleId) -> bool {
    [CRED_EXFIL, DESTRUCT_OUTSIDE, POLICY_TAMPER].contains(&rule)
}

/// What a rule looks at: the call, read once for all of them.
pub(super) struct Subject<'a> {
    question: &'a Question<'a>,
    class: ToolClass,
    /// What its command does; empty for a tool that runs none.
    action: Action,
    /// Files that it reads or changes by structured input.
    files: Vec<FileUse>,
}

impl Subject<'_> {
    fn commands(&self) -> &[Command] {
        &self.action.commands
    }

    /// Commands that run on this machine.
    fn local(&self) -> impl Iterator<Item = &Command> {
        self.action.commands.iter().filter(|command| !command.remote)
    }
}

/// The hits of one rule.
pub(super) struct Hits<'a> {
    rule: RuleId,
    question: &'a Question<'a>,
    hits: &'a mut Vec<RuleHit>,
}

impl Hits<'_> {
    /// Adds a hit; `what` is one plain sentence, which is redacted here.
    fn add(&mut self, severity: Severity, what: &str) {
        // The strongest says it; more of the same would only be longer.
        if self.hits.iter().any(|hit| hit.rule == self.rule && hit.severity >= severity) {
            return;
        }
        let readable = what.replace(shell::UNKNOWN, "…");
        self.hits.push(RuleHit { rule: self.rule, severity, evidence: evidence(self.question.world, &readable) });
    }
}

/// Judges a call by every rule.
pub(super) fn evaluate(question: &Question<'_>, class: ToolClass) -> Vec<RuleHit> {
    let input = &question.call.input;
    let command = input.get("command").and_then(Value::as_str);
    let action = match command {
        Some(command) if class == ToolClass::ShellExec => shell::read(command, question.cwd, question.world),
        _ => Action::default(),
    };
    let subject = Subject { question, class, action, files: files::uses(question, class) };
    let mut hits = Vec::new();
    for (rule, judge) in RULES {
        judge(&subject, &mut Hits { rule, question, hits: &mut hits });
    }
    hits
}

/// What may be shown of a call.
pub(super) fn summary(question: &Question<'_>) -> String {
    let input = &question.call.input;
    let keys = ["command", "file_path", "notebook_path", "path", "url", "query", "pattern", "description", "prompt"];
    let text = keys.iter().find_map(|key| input.get(key).and_then(Value::as_str)).unwrap_or("");
    redact::summary(text, &question.world.home)
}
