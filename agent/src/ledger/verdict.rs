//! The verdict of an entry: do decision, confinement and what was seen agree, and by what evidence.
#![forbid(unsafe_code)]

use super::entry::{Evidence, Gravity, Verdict};
use super::tree::{Item, Launch, Ns, SECOND, SETTLE, Tree};
use crate::host::{HostKind, ToolClass};

/// How long a call that nothing is heard of stays open while its session lives.
const SILENCE: Ns = 600 * SECOND;

/// A verdict with its ground.
#[derive(Clone, Debug)]
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    pub(super) evidence: Evidence,
    pub(super) why: String,
    /// Kind, gravity and text of the finding that goes with it.
    pub(super) finding: Option<(&'static str, Gravity, String)>,
}

fn judged(verdict: Verdict, evidence: Evidence, why: impl Into<String>) -> Judged {
    Judged { verdict, evidence, why: why.into(), finding: None }
}

impl Judged {
    fn alarming(mut self, kind: &'static str, gravity: Gravity) -> Judged {
        self.finding = Some((kind, gravity, self.why.clone()));
        self
    }
}

impl Tree {
    pub(super) fn judge(&self, item: &Item) -> Judged {
        let launches: Vec<&Launch> = item.launches.iter().filter_map(|l| self.launches.get(l)).collect();
        if let Some(stray) = item.stray {
            return self.judge_stray(stray, &launches);
        }
        if item.denied() {
            return self.judge_denied(item, &launches);
        }
        match item.class {
            ToolClass::ShellExec => self.judge_command(item, &launches),
            ToolClass::Unknown if item.digest.is_some() => self.judge_command(item, &launches),
            ToolClass::FileEdit => self.judge_edit(item),
            _ => self.judge_by_host(item),
        }
    }

    fn is_closed(&self, item: &Item) -> bool {
        self.session(&item.session).is_some_and(|s| s.closed.is_some_and(|at| at + SECOND <= self.now))
    }

    fn given_up(&self, item: &Item) -> bool {
        self.is_closed(item) || item.changed.max(item.began) + SILENCE <= self.now
    }

    fn judge_stray(&self, stray: Verdict, launches: &[&Launch]) -> Judged {
        let fenced = launches.iter().any(|l| l.fenced);
        let evidence = launches.first().map_or(Evidence::None, |l| evidence_of(l));
        if stray == Verdict::UserTyped {
            return judged(stray, evidence, "a line that a person typed in the host: no call was pending");
        }
        let why = match (fenced, launches.iter().any(|l| l.digest.is_none())) {
            (true, true) => "ran behind the fence, but its command was not seen whole and no single open call fits",
            (true, false) => "ran behind the fence, but no call asked for it",
            (false, _) => "started by the host without the launcher, and no call asked for it",
        };
        judged(stray, evidence, why).alarming("unhooked", Gravity::Alarm)
    }

    fn judge_denied(&self, item: &Item, launches: &[&Launch]) -> Judged {
        if let Some(launch) = launches.first() {
            return judged(Verdict::Diverged, evidence_of(launch), "denied, yet it was seen to run")
                .alarming("diverged", Gravity::Alarm);
        }
        if item.said.is_some() && item.class.executes_or_mutates() {
            // The host reports a result only for a call that it ran.
            return judged(Verdict::Diverged, Evidence::Host, "denied, yet the host reports a result")
                .alarming("diverged", Gravity::Alarm);
        }
        if item.began + SETTLE > self.now && !self.is_closed(item) {
            return judged(Verdict::Running, Evidence::None, "denied; waiting whether anything of it runs");
        }
        // What a file tool does inside the host the kernel does not show.
        let would_be_seen = item.digest.is_some() && self.sees_everything(item);
        match would_be_seen {
            true => judged(Verdict::Blocked, Evidence::Kernel, "denied, and nothing of it ran"),
            false => judged(Verdict::Blocked, Evidence::Host, "denied; that nothing of it ran is the host's word"),
        }
    }

    fn judge_command(&self, item: &Item, launches: &[&Launch]) -> Judged {
        let Some(launch) = launches.first() else { return self.judge_unseen(item) };
        let evidence = launches.iter().map(|l| evidence_of(l)).min().unwrap_or(Evidence::None);
        if launches.len() > 1 || item.more_launches > 0 {
            let times = launches.len() as u64 + item.more_launches;
            return judged(Verdict::Diverged, evidence, format!("ran {times} times, and was decided once"))
                .alarming("diverged", Gravity::Alarm);
        }
        if !launch.fenced && self.wants_fence(item) {
            return judged(
                Verdict::Diverged,
                evidence,
                "ran without the fence that was decided for it: the launcher was bypassed",
            )
            .alarming("unfenced", Gravity::Alarm);
        }
        if !self.finished(item, launch) {
            return judged(Verdict::Running, evidence, "not finished");
        }
        if launches.iter().any(|l| l.fold.fence_refused()) {
            return judged(Verdict::RefusedInKernel, evidence, "ran, and the fence refused part of it");
        }
        match evidence {
            Evidence::Kernel => judged(Verdict::Confirmed, evidence, "ran as decided, inside the fence"),
            _ => judged(
                Verdict::Confirmed,
                evidence,
                "started as decided, inside the fence, by the launcher's notice; what it did was not observed",
            ),
        }
    }

    fn wants_fence(&self, item: &Item) -> bool {
        let is_run = self.session(&item.session).is_some_and(|s| s.host == HostKind::Run);
        !is_run && item.decision.as_ref().is_some_and(|d| !d.fence.is_empty() && d.fence != "none")
    }

    fn finished(&self, item: &Item, launch: &Launch) -> bool {
        if !launch.unattributed.is_empty() {
            return false;
        }
        let told = item.said.as_ref().map(|said| said.time_ns);
        let watched = launch.exec_seen && self.mark.is_some();
        match (launch.root_exit, told) {
            // The exit and the host's word come together; without the word the exit counts after a while.
            (Some((_, at)), None) => at + SETTLE <= self.now || self.is_closed(item),
            (Some(_), Some(_)) => true,
            (None, Some(_)) if !watched || self.session(&item.session).is_some_and(|s| s.summary.losses.lost > 0) => {
                true
            }
            // A background command goes on after the host's word; when the session is over it is shown with what it did.
            _ => self.is_closed(item),
        }
    }

    /// A command of which no launch was seen.
    fn judge_unseen(&self, item: &Item) -> Judged {
        let complete = self.sees_everything(item);
        let Some(said) = &item.said else {
            if !self.given_up(item) {
                return judged(Verdict::Running, Evidence::None, "decided; nothing was heard of it yet");
            }
            let lost = self.session(&item.session).is_some_and(|s| s.summary.losses.lost > 0);
            return match (complete, lost) {
                (true, _) => judged(
                    Verdict::NotExecuted,
                    Evidence::Kernel,
                    "the host did not run it: no result, and nothing was seen to run",
                ),
                (false, true) => judged(
                    Verdict::Unobserved,
                    Evidence::None,
                    "no result and nothing seen, but kernel events were lost",
                ),
                (false, false) => judged(Verdict::NotExecuted, Evidence::Host, "the host gave no result for it"),
            };
        };
        if said.time_ns + SETTLE > self.now && !self.is_closed(item) {
            return judged(Verdict::Running, Evidence::None, "waiting for what was seen of it");
        }
        if complete && said.failed && said.exit_code.is_none() {
            return judged(
                Verdict::NotExecuted,
                Evidence::Kernel,
                "it failed before it started: nothing was seen to run",
            );
        }
        judged(Verdict::Unobserved, Evidence::None, "the host says that it ran, and nothing of it was seen")
            .alarming("unobserved", Gravity::Warning)
    }

    /// An edit inside the host's process.
    fn judge_edit(&self, item: &Item) -> Judged {
        let Some(said) = &item.said else {
            return match self.given_up(item) {
                true => judged(Verdict::NotExecuted, Evidence::Host, "the host gave no result for it"),
                false => judged(Verdict::Running, Evidence::None, "decided; the host has not said more"),
            };
        };
        let changed = match (&item.file, &said.file) {
            (Some(before), Some(after)) if before.path == after.path => Some(before.content != after.content),
            _ => None,
        };
        match (said.failed, changed) {
            (false, Some(true)) => judged(Verdict::Confirmed, Evidence::File, "the file changed"),
            (false, Some(false)) => {
                judged(Verdict::Unobserved, Evidence::None, "the host says that it was done, and the file is as it was")
            }
            (false, None) => judged(Verdict::HostReported, Evidence::Host, "the host says that it was done"),
            (true, Some(true)) => {
                judged(Verdict::Diverged, Evidence::File, "the host says that it failed, and the file changed")
                    .alarming("diverged", Gravity::Warning)
            }
            (true, Some(false)) => judged(Verdict::NotExecuted, Evidence::File, "it failed, and the file is as it was"),
            (true, None) => judged(Verdict::NotExecuted, Evidence::Host, "the host says that it failed"),
        }
    }

    fn judge_by_host(&self, item: &Item) -> Judged {
        match &item.said {
            Some(said) if said.failed => judged(Verdict::HostReported, Evidence::Host, "the host says that it failed"),
            Some(_) => judged(Verdict::HostReported, Evidence::Host, "the host says that it was done"),
            None if self.given_up(item) => {
                judged(Verdict::NotExecuted, Evidence::Host, "the host gave no result for it")
            }
            None => judged(Verdict::Running, Evidence::None, "decided; the host has not said more"),
        }
    }
}

/// What shows that a launch was.
fn evidence_of(launch: &Launch) -> Evidence {
    match (launch.exec_seen, &launch.notice) {
        (true, _) => Evidence::Kernel,
        (false, Some(_)) => Evidence::Launcher,
        (false, None) => Evidence::None,
    }
}
