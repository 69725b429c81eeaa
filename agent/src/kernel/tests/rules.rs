//! Rule sets: written, made current, replaced and removed; and an executable that is refused.

use ringfence_common::rules::OBJECT_EXEC_REFUSED;

use super::*;
use crate::probe::protocol::GateEvent;
use crate::probe::rules::{NameRule, ObjectRule, RuleSet};

/// A copy of `true` that the rules can speak of.
fn program(bench: &Bench, name: &str) -> std::path::PathBuf {
    let path = bench.directory.path().join(name);
    std::fs::copy("/bin/true", &path).unwrap();
    path
}

fn refusing(bench: &mut Bench, session: u64, path: &Path) -> RuleSet {
    let file = File::open(path).unwrap();
    let files = bench.kernel.identify_held(session, vec![file.into()]).unwrap();
    let rule = ObjectRule { file: files[0], bits: OBJECT_EXEC_REFUSED, label: 7, state: 0 };
    RuleSet { objects: vec![rule], ..RuleSet::default() }
}

#[test]
fn a_refused_executable_does_not_run() {
    let Some(mut bench) = Bench::new("a_refused_executable_does_not_run") else { return };
    let refused = program(&bench, "refused");
    let (session, mut actor) = bench.enrolled(Role::Launched, &["exec", &refused.display().to_string()]);
    let rules = refusing(&mut bench, session, &refused);
    let (generation, _) = bench.kernel.set_rules(session, &rules, &RuleSet::default()).unwrap();
    actor.go();
    assert!(!actor.end().success());
    let denied = |seen: &[Observation]| seen.iter().any(|one| matches!(one.kind, ObservationKind::Gate(_)));
    let seen = bench.observe(ALICE, denied);
    let event = seen.iter().find_map(|one| match &one.kind {
        ObservationKind::Gate(event) => Some((one.mark, event.clone())),
        _ => None,
    });
    let (mark, GateEvent { gate, errno, label, path, killed, .. }) = event.unwrap();
    assert_eq!((gate, errno, label), (ringfence_common::rules::gate::EXEC, libc::EACCES as u16, 7));
    assert_eq!(mark.generation, generation);
    assert!(path.bytes.ends_with(b"/refused"), "{path:?}");
    let by_lsm = bench.kernel.programs().iter().any(|state| state.program == "rf_bprm" && state.attached);
    assert_eq!(killed, !by_lsm);
}

#[test]
fn no_other_name_or_loader_runs_a_refused_executable() {
    let Some(mut bench) = Bench::new("no_other_name_or_loader_runs_a_refused_executable") else { return };
    let refused = program(&bench, "refused");
    let named = |name: &str| bench.directory.path().join(name);
    let (hard, soft, script, moved) = (named("hard"), named("soft"), named("script"), named("moved"));
    std::fs::hard_link(&refused, &hard).unwrap();
    std::os::unix::fs::symlink(&hard, &soft).unwrap();
    std::fs::write(&script, format!("#!{}\n", hard.display())).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::rename(&refused, &moved).unwrap();
    let by_lsm = bench.kernel.programs().iter().any(|state| state.program == "rf_mmap" && state.attached);
    let loader = "/lib64/ld-linux-x86-64.so.2";
    let [hard, soft, script, moved] = [hard, soft, script, moved].map(|path| path.display().to_string());
    for words in [vec![&*hard], vec![&*soft], vec![&*script], vec![&*moved], vec![loader, &*moved]] {
        let (session, mut actor) = bench.enrolled(Role::Launched, &[&["exec"], &words[..]].concat());
        let rules = refusing(&mut bench, session, Path::new(&moved));
        bench.kernel.set_rules(session, &rules, &rules).unwrap();
        actor.go();
        // What a loader maps is seen by an LSM program alone.
        let runs = words[0] == loader && !by_lsm;
        assert_eq!(actor.end().success(), runs, "{words:?}");
    }
}

#[test]
fn another_session_does_not_see_the_rules() {
    let Some(mut bench) = Bench::new("another_session_does_not_see_the_rules") else { return };
    let program = program(&bench, "somebody");
    let (session, _waiting) = bench.enrolled(Role::Launched, &["exec", "/bin/true"]);
    let rules = refusing(&mut bench, session, &program);
    bench.kernel.set_rules(session, &rules, &rules).unwrap();
    let (_, mut other) = bench.enrolled(Role::Launched, &["exec", &program.display().to_string()]);
    other.go();
    assert!(other.end().success());
}

#[test]
fn rules_that_do_not_fit_change_nothing() {
    let Some(mut bench) = Bench::new("rules_that_do_not_fit_change_nothing") else { return };
    let session = bench.kernel.open_session(ALICE).unwrap();
    let long = NameRule { state: 1, name: vec![b'x'; 64], bits: 0, label: 0, next: 0 };
    let wrong = RuleSet { names: vec![long], ..RuleSet::default() };
    assert!(matches!(bench.kernel.set_rules(session, &wrong, &wrong), Err(KernelError::Rules(_))));
    let (first, second) = bench.kernel.set_rules(session, &RuleSet::default(), &RuleSet::default()).unwrap();
    let (third, _) = bench.kernel.set_rules(session, &RuleSet::default(), &RuleSet::default()).unwrap();
    assert!(first < second && second < third);
    bench.kernel.close_session(session).unwrap();
    assert_eq!(bench.kernel.closed_with_rules().unwrap(), [session]);
    bench.kernel.sweep_rules(&|_| false).unwrap();
    assert_eq!(bench.kernel.closed_with_rules().unwrap(), [0; 0]);
}
