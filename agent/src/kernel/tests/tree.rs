//! A directory of Alice's with rules about names in it, and a process of hers that is judged by them.

use ringfence_common::rules::NAME_WRITABLE;

use super::*;
use crate::probe::protocol::GateEvent;
use crate::probe::rules::{NameRule, ObjectRule, RuleSet};

/// The state of [`Tree::root`] where names begin.
pub const BEGIN: u32 = 1;

/// The tree, and the rules for it as they are put together.
pub struct Tree {
    pub bench: Bench,
    pub root: PathBuf,
    pub rules: RuleSet,
    /// Files of which the rules speak, beside the root.
    known: Vec<(PathBuf, u32, u32)>,
    /// What the root is.
    pub root_bits: u32,
}

/// What came of it.
pub struct Outcome {
    /// One errno per deed.
    pub errnos: Vec<i32>,
    /// What gates refused and noted, in this order for each.
    pub events: Vec<GateEvent>,
}

impl Tree {
    /// `None`, with a loud reason, where no LSM programs load.
    pub fn new(test: &str) -> Option<Tree> {
        let bench = Bench::new(test)?;
        let programs = bench.kernel.programs();
        let of_files = programs.iter().find(|state| state.program == "rf_file_open").unwrap();
        if !of_files.attached {
            eprintln!("SKIPPED {test}: LSM programs do not load: {:?}", of_files.reason);
            return None;
        }
        let root = bench.home(ALICE).join("w");
        let tree = Tree { bench, root, rules: RuleSet::default(), known: Vec::new(), root_bits: NAME_WRITABLE };
        tree.directory("");
        Some(tree)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Whether there is something by this name, be it a link that leads nowhere.
    pub fn has(&self, name: &str) -> bool {
        self.path(name).symlink_metadata().is_ok()
    }

    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn directory(&self, name: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        for directory in path.ancestors().take_while(|directory| directory.starts_with(&self.root)) {
            chown(directory, Some(ALICE), Some(ALICE)).unwrap();
        }
    }

    pub fn file(&self, name: &str, mode: u32) {
        std::fs::write(self.path(name), "before").unwrap();
        std::fs::set_permissions(self.path(name), PermissionsExt::from_mode(mode)).unwrap();
        chown(self.path(name), Some(ALICE), Some(ALICE)).unwrap();
    }

    /// A step from `state` to `name` (empty for any), where the names go on at `next`.
    pub fn name(&mut self, state: u32, name: &str, bits: u32, next: u32) {
        let label = self.rules.names.len() as u32 + 100;
        self.rules.names.push(NameRule { state, name: name.as_bytes().to_vec(), bits, label, next });
    }

    /// A rule about what exists at a path.
    pub fn known(&mut self, path: &Path, bits: u32, state: u32) {
        self.known.push((path.to_owned(), bits, state));
    }

    /// Starts an actor that is judged by the rules, as `launched` or as the host.
    pub fn actor(&mut self, role: Role, act: &[&str]) -> (u64, Actor) {
        let (session, actor) = self.bench.enrolled(role, act);
        let mut known = vec![(self.root.clone(), self.root_bits, BEGIN)];
        known.extend(self.known.iter().cloned());
        let files = known.iter().map(|(path, ..)| File::open(path).unwrap().into()).collect();
        let ids = self.bench.kernel.identify_held(session, files).unwrap();
        let mut rules = self.rules.clone();
        for (label, (file, (_, bits, state))) in (1..).zip(ids.into_iter().zip(known)) {
            rules.objects.push(ObjectRule { file, bits, label, state });
        }
        self.bench.kernel.set_rules(session, &rules, &rules).unwrap();
        (session, actor)
    }

    /// Has these deeds done, with `/` before a name of the tree, by a process of a launch.
    pub fn deeds(&mut self, deeds: &[&str]) -> Outcome {
        self.deeds_as(Role::Launched, deeds)
    }

    pub fn deeds_as(&mut self, role: Role, deeds: &[&str]) -> Outcome {
        let in_tree = |word: &str| match word.strip_prefix('/') {
            Some(name) => format!("{}/{name}", self.root.display()),
            None => word.strip_prefix('=').unwrap_or(word).to_owned(),
        };
        let deeds: Vec<String> =
            deeds.iter().map(|deed| deed.split(':').map(in_tree).collect::<Vec<_>>().join(":")).collect();
        let mut act = vec!["deeds"];
        act.extend(deeds.iter().map(String::as_str));
        let (_, mut actor) = self.actor(role, &act);
        let id = actor.id();
        actor.go();
        let answers = actor.wait_for("done");
        let errnos = answers.split(' ').map(|errno| errno.parse().unwrap()).collect();
        assert!(actor.end().success());
        Outcome { errnos, events: self.gates_until_exit(id) }
    }

    /// What gates told of until a process ended.
    pub fn gates_until_exit(&mut self, id: ProcessId) -> Vec<GateEvent> {
        let mut seen = self.bench.observe_until_exit(ALICE, id);
        // Refusals have a ring of their own, which was read before the one that the exit is in.
        seen.extend(self.bench.observe(ALICE, |_| true));
        let gate = |one: Observation| match one.kind {
            ObservationKind::Gate(event) => Some(event),
            _ => None,
        };
        seen.into_iter().filter_map(gate).collect()
    }

    /// Every one of these deeds is refused, and told.
    #[track_caller]
    pub fn refuses(&mut self, deeds: &[&str]) -> Outcome {
        let outcome = self.deeds(deeds);
        for (deed, errno) in deeds.iter().zip(&outcome.errnos) {
            assert_eq!(*errno, libc::EACCES, "{deed}");
        }
        let refused = outcome.events.iter().filter(|event| event.errno == libc::EACCES as u16).count();
        assert!(refused >= deeds.len(), "{refused} of {} told: {:#?}", deeds.len(), outcome.events);
        outcome
    }

    /// Every one of these deeds is done.
    #[track_caller]
    pub fn allows(&mut self, deeds: &[&str]) -> Outcome {
        let outcome = self.deeds(deeds);
        for (deed, errno) in deeds.iter().zip(&outcome.errnos) {
            assert_eq!(*errno, 0, "{deed}: {:#?}", outcome.events);
        }
        outcome
    }
}
