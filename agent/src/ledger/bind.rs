//! Binding: which launch is which call's. Exact by digest, directory and tree; equal calls are told apart by their ends.
#![forbid(unsafe_code)]

use super::entry::{Binding, Gravity, Verdict};
use super::tree::{Item, Launch, MOST_STRAYS, Ns, Owner, Place, SECOND, SETTLE, Tree, id_of};

/// Most launches that one call is shown with.
const MOST_LAUNCHES: usize = 4;
/// Most equal calls and launches that are dealt at once.
const MOST_DEALT: usize = 64;
/// By how many seconds the host may measure less than the kernel saw.
const MEASURE_SLACK: f64 = 0.02;

impl Tree {
    /// Deals the launches of one command out to the calls that asked for it. Run again whenever one of them changes, since
    /// facts come late: what ended first is then known to be what the host reported first.
    pub(super) fn deal(&mut self, digest: [u8; 32]) {
        let known = self.by_digest.get(&digest).cloned().unwrap_or_default();
        let calls: Vec<u64> =
            known.into_iter().filter(|k| self.items.get(k).is_some_and(|i| i.may_launch() && !i.frozen)).collect();
        let takes_part = |l: &Launch| {
            let free = match &l.owner {
                Owner::Nobody => true,
                Owner::Item(item) => calls.contains(item),
                Owner::Host => false,
            };
            l.digest == Some(digest) && l.ripe && !l.frozen && free
        };
        let launches: Vec<u64> = self.launches.iter().filter(|(_, l)| takes_part(l)).map(|(k, _)| *k).collect();
        let dealt = {
            let calls: Vec<(u64, &Item)> = calls.iter().filter_map(|k| Some((*k, self.items.get(k)?))).collect();
            let launches: Vec<(u64, &Launch)> =
                launches.iter().filter_map(|k| Some((*k, self.launches.get(k)?))).collect();
            assign(&calls, &launches)
        };
        for call in calls {
            let mine = dealt.iter().find(|(c, _, _)| *c == call);
            let new: Vec<u64> = mine.map(|(_, launch, _)| *launch).into_iter().collect();
            let Some(item) = self.items.get_mut(&call) else { continue };
            // A second launch that was concluded to be this call's stays with it.
            let extra: Vec<u64> = item.launches.iter().copied().filter(|l| !launches.contains(l)).collect();
            let mut wanted = new;
            wanted.extend(extra);
            let binding = match mine {
                Some((_, _, binding)) => *binding,
                None if wanted.is_empty() => Binding::None,
                // What was concluded without a deal keeps the ground it was concluded on.
                None => item.binding,
            };
            if item.launches != wanted || (item.binding != binding && !wanted.is_empty()) {
                item.launches = wanted;
                item.binding = binding;
                self.touch(call);
            }
        }
        for launch in launches {
            let owner =
                dealt.iter().find(|(_, l, _)| *l == launch).map_or(Owner::Nobody, |(call, _, _)| Owner::Item(*call));
            if let Some(launch_of) = self.launches.get_mut(&launch) {
                match owner {
                    Owner::Nobody => self.waiting.insert(launch),
                    _ => self.waiting.remove(&launch),
                };
                launch_of.owner = owner;
            }
        }
    }

    /// Programs and launches whose wait is over get an answer.
    pub(super) fn conclude(&mut self, everything: bool) {
        let due: Vec<u64> = self
            .waiting
            .iter()
            .copied()
            .filter(|k| self.launches.get(k).is_some_and(|l| everything || l.deadline <= self.now))
            .collect();
        for key in due {
            let Some(launch) = self.launches.get_mut(&key) else { continue };
            launch.ripe = true;
            let (digest, owner) = (launch.digest, launch.owner.clone());
            if owner != Owner::Nobody {
                self.waiting.remove(&key);
                continue;
            }
            if let Some(digest) = digest {
                self.deal(digest);
            }
            if self.launches.get(&key).is_some_and(|l| l.owner == Owner::Nobody) {
                self.explain(key);
            }
        }
    }

    /// What a launch is that no open call asked for.
    fn explain(&mut self, key: u64) {
        let Some(launch) = self.launches.get(&key) else { return };
        let began = launch.began;
        if let Some(kind) = self.host_line(launch) {
            self.count_internal(&kind);
            self.set_owner(key, Owner::Host);
            return;
        }
        if let Some(digest) = launch.digest {
            let same: Vec<u64> = self.by_digest.get(&digest).cloned().unwrap_or_default();
            let find = |wanted: &dyn Fn(&Item) -> bool| {
                same.iter().rev().copied().find(|k| self.items.get(k).is_some_and(|i| i.began <= began.1 && wanted(i)))
            };
            let open = |item: &Item| !item.denied() && item.said.as_ref().is_none_or(|said| began.0 <= said.time_ns);
            // It ran twice inside its window, or it was denied and ran.
            if let Some(item) = find(&open).or_else(|| find(&Item::denied)) {
                return self.attach(key, item, Binding::Digest);
            }
        } else if launch.fenced {
            let fits = |(key, item): (&u64, &Item)| {
                (item.may_launch() && item.launches.is_empty() && in_window(item, began)).then_some(*key)
            };
            let mut open = self.items.iter().filter_map(fits);
            if let (Some(only), None) = (open.next(), open.next()) {
                return self.attach(key, only, Binding::Window);
            }
        }
        if self.is_run() {
            return self.attach_to_run(key);
        }
        self.stray(key);
    }

    /// A session of `ringfence run` is one command: what runs in it is that command.
    fn attach_to_run(&mut self, key: u64) {
        let run = self.items.iter().find(|(_, item)| item.tool == "run").map(|(key, _)| *key);
        let run = match run {
            Some(run) => run,
            None => {
                let Some(launch) = self.launches.get(&key) else { return };
                let (began, summary) = (launch.began.0, launch.summary.clone());
                let Some(session) = self.current().map(|s| s.summary.id.clone()) else { return };
                let id = id_of(&[&session, "run"]);
                let run = self.fresh_key();
                self.items.insert(run, Item { tool: "run".into(), summary, ..Item::new(id, session, began) });
                run
            }
        };
        let first = self.items.get(&run).and_then(|item| item.launches.first()).copied();
        match first {
            // Programs beside the launch (the waiting parent's own) are the same run.
            Some(first) if first != key && self.launches.get(&key).is_some_and(|l| !l.fenced) => {
                self.drop_launch(key, Place::Launch(first))
            }
            _ => self.attach(key, run, Binding::Window),
        }
    }

    /// The kind, when it is a line of the host's settings.
    fn host_line(&self, launch: &Launch) -> Option<String> {
        if let Some(kind) = launch.line_digests.iter().find_map(|digest| self.host_lines.get(digest)) {
            return Some(kind.clone());
        }
        // The launcher told the line by its digest in the plan and chose the fence by it.
        match launch.notice.as_ref()?.fence.as_str() {
            "host-hook" => Some("hook of the user".into()),
            "mcp" => Some("MCP server".into()),
            _ => None,
        }
    }

    fn set_owner(&mut self, launch: u64, owner: Owner) {
        self.waiting.remove(&launch);
        if let Some(launch) = self.launches.get_mut(&launch) {
            launch.owner = owner;
        }
    }

    fn attach(&mut self, launch: u64, item: u64, binding: Binding) {
        self.set_owner(launch, Owner::Item(item));
        if let Some(item) = self.items.get_mut(&item) {
            if item.launches.len() < MOST_LAUNCHES {
                item.launches.push(launch);
            } else {
                item.more_launches += 1;
            }
            if item.binding == Binding::None {
                item.binding = binding;
            }
        }
        self.touch(item);
    }

    /// An entry of its own for what nothing explains.
    fn stray(&mut self, key: u64) {
        let Some(launch) = self.launches.get(&key) else { return };
        let call_pending =
            self.items.values().any(|i| i.may_launch() && i.launches.is_empty() && in_window(i, launch.began));
        let typed_shape = launch.shell_line || launch.digest.is_some();
        let (began, summary, root) = (launch.began.0, launch.summary.clone(), launch.root);
        let Some(session) = self.current() else { return };
        let typed = typed_shape && session.interactive && session.hooks_seen && !call_pending;
        session.strays += 1;
        session.dirty = true;
        if !typed {
            session.summary.unhooked += 1;
        }
        let (id, many) = (session.summary.id.clone(), session.strays > MOST_STRAYS);
        if many {
            self.find(
                &id,
                None,
                "unhooked_many",
                Gravity::Alarm,
                "more executions without a decision than are listed one by one",
            );
            self.set_owner(key, Owner::Host);
            return;
        }
        let item = self.fresh_key();
        let root = root.map_or(String::new(), |r| format!("{}.{}", r.pid, r.start));
        self.items.insert(
            item,
            Item {
                tool: if typed { "typed".into() } else { "process".into() },
                summary,
                stray: Some(if typed { Verdict::UserTyped } else { Verdict::Unhooked }),
                ..Item::new(id_of(&[&id, "stray", &root, &began.to_string()]), id, began)
            },
        );
        self.attach(key, item, Binding::None);
    }

    /// A decision came later than what it explains (the hook judged alone): the stray entry is taken back.
    pub(super) fn reconsider(&mut self, digest: [u8; 32], decided: Ns) {
        let mistaken = |(key, launch): (&u64, &Launch)| match launch.owner {
            Owner::Item(item) if launch.digest == Some(digest) && launch.began.1 >= decided => {
                self.items.get(&item).is_some_and(|i| i.stray.is_some()).then_some((*key, item))
            }
            _ => None,
        };
        let strays: Vec<(u64, u64)> = self.launches.iter().filter_map(mistaken).collect();
        for (launch, item) in strays {
            let Some(gone) = self.items.remove(&item) else { continue };
            self.dirty.remove(&item);
            if gone.stray == Some(Verdict::Unhooked)
                && let Some(session) = self.session_mut(&gone.session)
            {
                session.summary.unhooked = session.summary.unhooked.saturating_sub(1);
                session.dirty = true;
            }
            if gone.announced {
                self.retracted.push((gone.session, gone.id));
            }
            if let Some(launch) = self.launches.get_mut(&launch) {
                launch.owner = Owner::Nobody;
            }
            self.waiting.insert(launch);
        }
    }

    /// What ended long enough ago is never dealt again.
    pub(super) fn freeze(&mut self) {
        let now = self.now;
        for item in self.items.values_mut().filter(|i| !i.frozen) {
            let Some(said) = item.said.as_ref().map(|said| said.time_ns) else { continue };
            if said + SETTLE > now || (item.may_launch() && item.launches.is_empty() && said + 2 * SETTLE > now) {
                continue;
            }
            let ended = |l: &Launch| l.root_exit.is_none_or(|(_, at)| at + SETTLE <= now);
            if item.launches.iter().filter_map(|l| self.launches.get(l)).all(ended) {
                item.frozen = true;
                for launch in &item.launches {
                    if let Some(launch) = self.launches.get_mut(launch) {
                        launch.frozen = true;
                    }
                }
            }
        }
    }
}

/// Whether a launch that began then can be this call's.
fn in_window(item: &Item, began: (Ns, Ns)) -> bool {
    item.began <= began.1 && item.said.as_ref().is_none_or(|said| began.0 <= said.time_ns)
}

fn same_directory(item: &Item, launch: &Launch) -> bool {
    match (&item.cwd, launch.notice.as_ref().map(|n| &n.cwd)) {
        (Some(said), Some(seen)) => said == seen,
        _ => true,
    }
}

fn binding_of(item: &Item, launch: &Launch) -> Binding {
    if launch.fenced && same_directory(item, launch) { Binding::Digest } else { Binding::Window }
}

type Pair = (u64, u64, Binding);
type Calls<'a> = Vec<(u64, &'a Item)>;
type Launches<'a> = Vec<(u64, &'a Launch)>;

/// Pairs of call and launch, the strongest ground first: ends that agree with what the host reported; reports that came
/// while the launch ran (a background command); then first in, first out. Calls in another directory come last.
fn assign(calls: &[(u64, &Item)], launches: &[(u64, &Launch)]) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = Vec::new();
    for strict in [true, false] {
        let fits =
            |call: &Item, launch: &Launch| in_window(call, launch.began) && (!strict || same_directory(call, launch));
        // What failed is told apart from what did not, and by its code where the host says it.
        let mut classes: Vec<(bool, Option<i32>)> =
            calls.iter().filter_map(|(_, call)| call.said.as_ref()).map(|said| (said.failed, said.exit_code)).collect();
        classes.sort_by_key(|(failed, code)| (code.is_none(), *code, *failed));
        classes.dedup();
        for class in classes {
            let (mut reported, mut ended) = left(calls, launches, &pairs);
            reported.retain(|(_, call)| call.said.as_ref().is_some_and(|said| (said.failed, said.exit_code) == class));
            ended.retain(|(_, launch)| launch.root_exit.is_some());
            pairs.extend(cheapest(&reported, &ended, &|call, launch| {
                by_end(call, launch).filter(|_| fits(call, launch))
            }));
        }
        let (mut reported, running) = left(calls, launches, &pairs);
        reported.retain(|(_, call)| call.said.is_some());
        pairs.extend(cheapest(&reported, &running, &|call, launch| {
            by_start(call, launch).filter(|_| fits(call, launch))
        }));

        let (mut waiting, mut free) = left(calls, launches, &pairs);
        waiting.sort_by_key(|(key, call)| (call.began, *key));
        free.sort_by_key(|(key, launch)| (launch.began, *key));
        for (call, item) in waiting {
            if let Some(at) = free.iter().position(|(_, launch)| fits(item, launch)) {
                let (launch_key, launch) = free.remove(at);
                pairs.push((call, launch_key, binding_of(item, launch)));
            }
        }
    }
    pairs
}

/// What no pair has taken.
fn left<'a>(calls: &[(u64, &'a Item)], launches: &[(u64, &'a Launch)], pairs: &[Pair]) -> (Calls<'a>, Launches<'a>) {
    let calls = calls.iter().filter(|(key, _)| pairs.iter().all(|(call, _, _)| call != key)).copied();
    let launches = launches.iter().filter(|(key, _)| pairs.iter().all(|(_, launch, _)| launch != key)).copied();
    (calls.collect(), launches.collect())
}

/// Of all ways to pair calls with launches, the one that pairs most and then costs least.
fn cheapest(calls: &Calls<'_>, launches: &Launches<'_>, cost: &dyn Fn(&Item, &Launch) -> Option<f64>) -> Vec<Pair> {
    // Calls are dealt the newest launches first when there are very many: older ones are settled before long.
    let calls = &calls[calls.len().saturating_sub(MOST_DEALT)..];
    let launches = &launches[launches.len().saturating_sub(MOST_DEALT)..];
    let costs: Vec<Vec<Option<f64>>> =
        calls.iter().map(|(_, call)| launches.iter().map(|(_, launch)| cost(call, launch)).collect()).collect();
    let pair = |(row, column): (usize, usize)| {
        (calls[row].0, launches[column].0, binding_of(calls[row].1, launches[column].1))
    };
    super::assignment::cheapest(&costs).into_iter().map(pair).collect()
}

/// The host speaks of a call soon after its launch ended, and says what that said. Squared times, since otherwise two ends
/// before two reports could be paired crosswise at the same cost. The host's own measure of the call tells parallel equal
/// calls apart even when they end together: it is longer than the launch by about the same for each.
fn by_end(item: &Item, launch: &Launch) -> Option<f64> {
    let (said, (exit, at)) = (item.said.as_ref()?, launch.root_exit?);
    let agrees = match said.exit_code {
        Some(code) => code == exit.code,
        None => said.failed == (exit.code != 0),
    };
    if !agrees || at > said.time_ns {
        return None;
    }
    let lived = seconds(launch.began.0, at);
    let measured = said.duration_ms.map(|ms| ms as f64 / 1000.0);
    if measured.is_some_and(|measured| measured + MEASURE_SLACK < lived) {
        return None;
    }
    let off = measured.map_or(0.0, |measured| measured - lived);
    Some(seconds(at, said.time_ns).powi(2) + off.powi(2))
}

/// The host's word came while the launch ran (a background command), or its end was not seen.
fn by_start(item: &Item, launch: &Launch) -> Option<f64> {
    let said = item.said.as_ref()?;
    let ran = launch.root_exit.is_none_or(|(_, at)| at > said.time_ns);
    (ran && launch.began.0 <= said.time_ns).then(|| seconds(launch.began.0, said.time_ns).powi(2))
}

fn seconds(from: Ns, until: Ns) -> f64 {
    until.saturating_sub(from) as f64 / SECOND as f64
}
