//! What the scene proves: the report's words against what really happened outside the fence.

use serde_json::Value;

use super::Told;
use super::project::{Project, STEPS, Step};
use super::servers::Servers;

/// Everything that is compared.
pub struct Proof<'a> {
    /// The report's JSON.
    pub report: &'a Value,
    /// What the host told of each call, in order.
    pub calls: &'a [Told],
    /// Who was talked to.
    pub servers: &'a Servers,
    /// What was on disk.
    pub project: &'a Project,
    /// Whether the kernel observed.
    pub probe: bool,
}

/// One thing that holds or does not.
pub struct Check {
    /// What, as a sentence.
    pub what: String,
    /// Whether it does.
    pub holds: bool,
}

impl Proof<'_> {
    /// All checks.
    pub fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        let mut check = |holds: bool, what: String| checks.push(Check { what, holds });
        check(self.calls.len() == STEPS.len(), format!("the host ran a script of {} tool calls", STEPS.len()));
        for step in STEPS {
            let entry = self.entry(step);
            let verdict = entry["verdict"].as_str().unwrap_or("no entry at all");
            let expected = match step {
                Step::Compile | Step::Connect | Step::Background => "confirmed",
                Step::Exfiltrate => "blocked",
                Step::WriteOutside if self.probe => "refused_in_kernel",
                Step::WriteOutside => "confirmed", // Without observation nobody saw the refusal: only the file is proof.
            };
            check(verdict == expected, format!("{step:?}: the report says {verdict} (expected: {expected})"));
        }
        check(self.project.made.exists(), "Compile: the program was built".into());
        check(self.servers.plain().connections() > 0, "Connect: the TCP server was reached".into());
        check(self.servers.unix_connections() > 0, "Connect: the unix socket was reached".into());
        let upload = self.servers.upload().connections();
        check(upload == 0, format!("Exfiltrate: the upload server got {upload} connections"));
        let told = STEPS.iter().position(|step| *step == Step::Exfiltrate).and_then(|index| self.calls.get(index));
        check(told.is_some_and(|told| told.error), "Exfiltrate: the host was told that it is denied".into());
        let denied = self.entry(Step::Exfiltrate);
        check(
            denied["decision"]["outcome"] == "deny",
            format!("Exfiltrate: denied, for {}", denied["decision"]["rules"]),
        );
        check(list(&denied["executions"]).is_empty(), "Exfiltrate: nothing of it was executed".into());
        check(
            !self.project.outside.exists(),
            format!("WriteOutside: {} does not exist", self.project.outside.display()),
        );
        check(self.servers.late().connections() > 0, "Background: the child connected after its call had ended".into());
        if self.probe {
            self.observed(&mut check);
        }
        checks
    }

    fn observed(&self, check: &mut impl FnMut(bool, String)) {
        let runs = |step: Step, name: &str| {
            list(&self.entry(step)["executions"])
                .iter()
                .any(|one| one["path"].as_str().is_some_and(|path| path.ends_with(name)))
        };
        check(
            runs(Step::Compile, "/make") && runs(Step::Compile, "/count"),
            "Compile: make and the new program are in its tree".into(),
        );
        let talked = |step: Step, peer: &str| {
            list(&self.entry(step)["connections"]).iter().any(|one| one["peer"].as_str() == Some(peer))
        };
        let unix = self.servers.unix().display().to_string();
        check(
            talked(Step::Connect, &self.servers.plain().address()),
            "Connect: the TCP connection is in its entry".into(),
        );
        check(talked(Step::Connect, &unix), "Connect: the unix connection is in its entry".into());
        let refusals = list(&self.entry(Step::WriteOutside)["refusals"]);
        check(
            refusals.iter().any(|one| one["layer"] == "landlock"),
            "WriteOutside: Landlock's refusal is in its entry".into(),
        );
        let late = self.servers.late().address();
        check(talked(Step::Background, &late), format!("Background: the late connection to {late} is in its entry"));
        let unhooked: Vec<&Value> =
            self.sessions().flat_map(|s| list(&s["entries"])).filter(|e| e["verdict"] == "unhooked").collect();
        let counted: u64 = self.sessions().filter_map(|session| session["unhooked"].as_u64()).sum();
        check(
            unhooked.is_empty() && counted == 0,
            format!("nothing is called unhooked ({counted} counted): the host's own programs are known"),
        );
        check(self.report["losses"]["lost"] == 0, format!("losses: {}", self.report["losses"]));
    }

    fn sessions(&self) -> impl Iterator<Item = &Value> {
        list(&self.report["sessions"]).iter()
    }

    /// The entry of a step, by the host's own id of the call.
    fn entry(&self, step: Step) -> &Value {
        let index = STEPS.iter().position(|one| *one == step).unwrap_or_default();
        let Some(told) = self.calls.get(index) else { return &Value::Null };
        let entries = self.sessions().flat_map(|session| list(&session["entries"]));
        entries.into_iter().find(|entry| entry["call_id"] == told.call_id.as_str()).unwrap_or(&Value::Null)
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
